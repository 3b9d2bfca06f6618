// Work shared between the calling thread and XLA's own pool.

#ifndef PALLAS_KERNELS_CPU_PARALLEL_H_
#define PALLAS_KERNELS_CPU_PARALLEL_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "claim.h"
#include "xla/ffi/api/ffi.h"

namespace kernels {

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
