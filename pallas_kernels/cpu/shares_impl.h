// The templates of shares.h, for the source files that instantiate them.

#ifndef PALLAS_KERNELS_CPU_SHARES_IMPL_H_
#define PALLAS_KERNELS_CPU_SHARES_IMPL_H_

#include <algorithm>

#include "attention.h"
#include "scratch.h"
#include "shares.h"

namespace kernels {

template <typename Element>
void AttendShare(const Cache& cache, const AttentionBatch& batch, const std::vector<AttentionItem>& items, int64_t item,
                 Claim& claim) {
  thread_local AttentionScratch scratch;  // a thread's calls reuse its pages
  Element* const zeros = scratch.zeros.Get<Element>(cache.head_dim);
  std::fill_n(zeros, cache.head_dim, Element{});
  Pieces<Element> pieces(cache, batch, items, claim, zeros);
  for (; item != kNone; item = claim()) {
    if (pieces.here().item == nullptr) pieces.Begin(item);
    AttentionWalk<Element>(cache, batch, items[item], scratch).Run(pieces);
  }
}

template <typename Multiplied>
void MultiplyShare(const Multiplied& product, int64_t item, Claim& claim) {
  thread_local Scratch scratch;  // a thread's calls reuse its pages
  const auto next_panel = [&] {
    const int64_t ahead = claim.Ahead();
    return ahead == kNone ? nullptr : product.PanelOf(ahead);
  };
  for (; item != kNone; item = claim()) product.Run(item, scratch, next_panel);
}

}  // namespace kernels

#endif  // PALLAS_KERNELS_CPU_SHARES_IMPL_H_
