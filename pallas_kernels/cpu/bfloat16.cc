// Attention and products of bfloat16.

#include "shares_impl.h"

namespace kernels {

template void AttendShare<Bfloat16>(const Cache&, const AttentionBatch&, const std::vector<AttentionItem>&, int64_t,
                                    Claim&);
template void MultiplyShare(const PackedProduct<Pair, float>&, int64_t, Claim&);
template void MultiplyShare(const PackedProduct<Pair, Bfloat16>&, int64_t, Claim&);

}  // namespace kernels
