// Memory that a thread keeps between calls.

#ifndef PALLAS_KERNELS_CPU_SCRATCH_H_
#define PALLAS_KERNELS_CPU_SCRATCH_H_

#include <cstddef>
#include <memory>
#include <new>

namespace kernels {

// Grows to the largest size asked for; the contents do not survive a growth.
class Scratch {
 public:
  template <typename T>
  T* Get(size_t count) {
    if (count * sizeof(T) > size_) {
      size_ = count * sizeof(T);
      memory_.reset(::operator new(size_, kAlignment));
    }
    return static_cast<T*>(memory_.get());
  }

 private:
  static constexpr std::align_val_t kAlignment{64};  // so that no vector lies across two cache lines
  struct Delete {
    void operator()(void* memory) const { ::operator delete(memory, kAlignment); }
  };

  std::unique_ptr<void, Delete> memory_;
  size_t size_ = 0;
};

}  // namespace kernels

#endif  // PALLAS_KERNELS_CPU_SCRATCH_H_
