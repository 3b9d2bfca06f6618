// What a thread holds of the work it shares, and how it computes.

#ifndef PALLAS_KERNELS_CPU_CLAIM_H_
#define PALLAS_KERNELS_CPU_CLAIM_H_

#include <atomic>
#include <cstdint>
#include <utility>

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

// One thread's hold on the items [0, count), which are given out in order.
class Claim {
 public:
  Claim(std::atomic<int64_t>& next, int64_t count, int64_t threads) : next_(next), count_(count), threads_(threads) {}

  // The next item for this thread to do, or kNone when all are taken.
  int64_t operator()() { return ahead_ == kNone ? Take() : std::exchange(ahead_, kNone); }

  // The same while the item before it is not done, so that the memory can be asked for it in time. kNone when so few
  // are left that another thread may be done sooner, which could not take what this one holds.
  int64_t Ahead() {
    if (ahead_ == kNone && next_.load(std::memory_order_relaxed) + threads_ < count_) ahead_ = Take();
    return ahead_;
  }

  int64_t taken() const { return taken_; }

 private:
  int64_t Take() {
    const int64_t item = next_.fetch_add(1);
    if (item >= count_) return kNone;
    ++taken_;
    return item;
  }

  std::atomic<int64_t>& next_;
  const int64_t count_, threads_;
  int64_t ahead_ = kNone, taken_ = 0;
};

}  // namespace kernels

#endif  // PALLAS_KERNELS_CPU_CLAIM_H_
