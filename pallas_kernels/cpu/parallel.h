// Work shared between the calling thread and XLA's own pool.

#ifndef PALLAS_KERNELS_CPU_PARALLEL_H_
#define PALLAS_KERNELS_CPU_PARALLEL_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <utility>

#include "xla/ffi/api/ffi.h"

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

// Share the items [0, count) out between the caller and as many threads as the pool has; return when all are done.
//
// On each thread work(first, claim) does item `first` and then each that claim() gives, until that is kNone. The
// largest items should come first. A helper that starts after the last item was taken touches nothing of the caller's:
// the caller waits for items, never for helpers, and so cannot wait for a thread that waits for it.
template <typename Work>
void ShareOut(xla::ffi::ThreadPool& pool, int64_t count, const Work& work) {
  struct Shared {
    std::atomic<int64_t> next{0}, done{0};
  };
  const auto shared = std::make_shared<Shared>();
  const int64_t threads = count > 1 ? std::min(pool.num_threads(), count) : 1;
  const auto take = [shared, count, threads, &work] {
    Claim claim(shared->next, count, threads);
    const int64_t first = claim();
    if (first == kNone) return;
    const FlushSubnormals mode;
    work(first, claim);
    shared->done.fetch_add(claim.taken(), std::memory_order_release);
  };
  for (int64_t i = 1; i < threads; ++i) pool.Schedule([take] { take(); });
  take();
  while (shared->done.load(std::memory_order_acquire) < count) std::this_thread::yield();
}

// The same for items that need nothing fetched: call work(i) for each i in [0, count).
template <typename Work>
void ForEach(xla::ffi::ThreadPool& pool, int64_t count, const Work& work) {
  ShareOut(pool, count, [&](int64_t i, Claim& claim) {
    for (; i != kNone; i = claim()) work(i);
  });
}

}  // namespace kernels

#endif  // PALLAS_KERNELS_CPU_PARALLEL_H_
