// What a thread holds of the work it shares, and how it computes.

#ifndef PALLAS_KERNELS_CPU_CLAIM_H_
#define PALLAS_KERNELS_CPU_CLAIM_H_

#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

namespace kernels {

// Subnormal numbers are zeros while it lives. Threads may differ in this, and a result must not depend on who computes.
class FlushSubnormals {
 public:
  FlushSubnormals() : saved_(Read()) { Write(saved_ | kFlush); }
  ~FlushSubnormals() { Write(saved_); }
  FlushSubnormals(const FlushSubnormals&) = delete;
  FlushSubnormals& operator=(const FlushSubnormals&) = delete;

 private:
#if defined(__SSE__)
  static constexpr uint64_t kFlush = 0x8040;  // flush results to zero, read subnormals as zeros
  static uint64_t Read() { return _mm_getcsr(); }
  static void Write(uint64_t mode) { _mm_setcsr(static_cast<unsigned>(mode)); }
#elif defined(__aarch64__)
  static constexpr uint64_t kFlush = 1 << 24;
  static uint64_t Read() {
    uint64_t mode;
    asm volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
  }
  static void Write(uint64_t mode) { asm volatile("msr fpcr, %0" : : "r"(mode)); }
#else
  static constexpr uint64_t kFlush = 0;
  static uint64_t Read() { return 0; }
  static void Write(uint64_t) {}
#endif
  uint64_t saved_;
};

constexpr int64_t kNone = -1;

// The items [0, count) that threads share, in parts of neighbours. Each part is given out in order.
class Parts {
 public:
  Parts(int64_t count, int64_t parts) : count_(count), next_(parts) {
    for (int64_t part = 0; part < parts; ++part) next_[part] = Begin(part);
  }

  int64_t parts() const { return static_cast<int64_t>(next_.size()); }

  // The next item of a part, or kNone where all are taken.
  int64_t Take(int64_t part) {
    const int64_t item = next_[part].fetch_add(1);
    return item < Begin(part + 1) ? item : kNone;
  }

  int64_t Left(int64_t part) const { return Begin(part + 1) - next_[part].load(std::memory_order_relaxed); }

 private:
  int64_t Begin(int64_t part) const { return count_ * part / parts(); }

  const int64_t count_;
  std::vector<std::atomic<int64_t>> next_;
};

// One thread's hold on items: it takes those of its part, then what other threads have not taken of theirs.
class Claim {
 public:
  Claim(Parts& items, int64_t part, int64_t threads) : items_(items), part_(part), threads_(threads) {}

  // The next item for this thread to do, or kNone when all are taken.
  int64_t operator()() {
    if (ahead_ != kNone) return std::exchange(ahead_, kNone);
    for (int64_t tried = 0; tried < items_.parts(); ++tried) {
      if (const int64_t item = Take(); item != kNone) return item;
      part_ = (part_ + 1) % items_.parts();
    }
    return kNone;
  }

  // The same while the item before it is not done, so that the memory can be asked for it in time. kNone when so few
  // are left, as this part tells, that another thread may be done sooner, which could not take what this one holds.
  int64_t Ahead() {
    if (ahead_ == kNone && items_.Left(part_) * items_.parts() > threads_) ahead_ = Take();
    return ahead_;
  }

  int64_t taken() const { return taken_; }

 private:
  int64_t Take() {
    const int64_t item = items_.Take(part_);
    if (item != kNone) ++taken_;
    return item;
  }

  Parts& items_;
  int64_t part_;
  const int64_t threads_;
  int64_t ahead_ = kNone, taken_ = 0;
};

}  // namespace kernels

#endif  // PALLAS_KERNELS_CPU_CLAIM_H_
