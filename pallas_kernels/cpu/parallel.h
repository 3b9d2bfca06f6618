// Work shared between the calling thread and XLA's own pool.

#ifndef PALLAS_KERNELS_CPU_PARALLEL_H_
#define PALLAS_KERNELS_CPU_PARALLEL_H_

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>

#include "claim.h"
#include "ffi.h"

namespace kernels {

// How threads take items: each the next of all, so that the largest should come first; or each has a part of its own,
// whose items are neighbours in memory, and then takes what others have left of theirs.
enum class Order { kOne, kNeighbours };

// Share the items [0, count) out between the caller and as many threads as the pool has; return when all are done.
//
// On each thread work(first, claim) does item `first` and then each that claim() gives, until that is kNone. A helper
// that starts after the last item was taken touches nothing of the caller's: the caller waits for items, never for
// helpers, and so cannot wait for a thread that waits for it.
template <typename Work>
void ShareOut(ffi::ThreadPool& pool, int64_t count, Order order, const Work& work) {
  struct Shared {
    Parts items;
    std::atomic<int64_t> done{0};
    Shared(int64_t count, int64_t parts) : items(count, parts) {}
  };
  const int64_t threads = count > 1 ? std::min(pool.num_threads(), count) : 1;
  const auto shared = std::make_shared<Shared>(count, order == Order::kOne ? 1 : threads);
  const auto take = [shared, threads, &work](int64_t thread) {
    Claim claim(shared->items, thread % shared->items.parts(), threads);
    const int64_t first = claim();
    if (first == kNone) return;
    const FlushSubnormals mode;
    work(first, claim);
    shared->done.fetch_add(claim.taken(), std::memory_order_release);
  };
  for (int64_t thread = 1; thread < threads; ++thread) pool.Schedule([take, thread] { take(thread); });
  take(0);
  while (shared->done.load(std::memory_order_acquire) < count) std::this_thread::yield();
}

// The same for items that need nothing fetched: call work(i) for each i in [0, count).
template <typename Work>
void ForEach(ffi::ThreadPool& pool, int64_t count, const Work& work) {
  ShareOut(pool, count, Order::kOne, [&](int64_t i, Claim& claim) {
    for (; i != kNone; i = claim()) work(i);
  });
}

}  // namespace kernels

#endif  // PALLAS_KERNELS_CPU_PARALLEL_H_
