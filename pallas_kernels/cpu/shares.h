// What one thread does of a kernel's items. float32.cc and bfloat16.cc have it, apart from the handlers, so that both
// compile at the same time.

#ifndef PALLAS_KERNELS_CPU_SHARES_H_
#define PALLAS_KERNELS_CPU_SHARES_H_

#include <cstdint>
#include <vector>

#include "claim.h"
#include "packed_product.h"
#include "pieces.h"

namespace kernels {

// Attention of item `item` and of each that `claim` gives after it.
template <typename Element>
void AttendShare(const Cache& cache, const AttentionBatch& batch, const std::vector<AttentionItem>& items, int64_t item,
                 Claim& claim);

// The same of a product.
template <typename Multiplied>
void MultiplyShare(const Multiplied& product, int64_t item, Claim& claim);

}  // namespace kernels

#endif  // PALLAS_KERNELS_CPU_SHARES_H_
