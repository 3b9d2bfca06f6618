// Attention and products of float32.

#include "shares_impl.h"

namespace kernels {

template void AttendShare<float>(const Cache&, const AttentionBatch&, const std::vector<AttentionItem>&, int64_t, Claim&);
template void MultiplyShare(const PackedProduct<float, float>&, int64_t, Claim&);

}  // namespace kernels
