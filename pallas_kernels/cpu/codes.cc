// Sums of products with codes of some widths, of which a library compiles several at the same time.

#include <array>

#include "quantized_product.h"

namespace kernels {
namespace {

template <int... kBits>
constexpr auto Instances(Widths<kBits...>) {
  return std::array{AddGroups<kBits, kTileRows>...};
}

[[gnu::used]] constexpr auto kInstances = Instances(OwnWidths());  // for the linker: quantized.cc calls them

}  // namespace
}  // namespace kernels
