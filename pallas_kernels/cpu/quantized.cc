// The functions that XLA calls for products with weights of 2 to 8 bits. Shapes are checked here, as in handlers.cc.

#include <algorithm>
#include <vector>

#include "arguments.h"
#include "expert_product.h"
#include "parallel.h"
#include "quantized_product.h"
#include "shares_impl.h"

namespace kernels {

// In codes.cc, which compiles at the same time.
extern template void AddGroups<2, kTileRows>(const QuantizedWeight&, const uint32_t*, InputTile, int, GroupRange,
                                             float*, GroupFetch);
extern template void AddGroups<4, kTileRows>(const QuantizedWeight&, const uint32_t*, InputTile, int, GroupRange,
                                             float*, GroupFetch);
extern template void AddGroups<5, kTileRows>(const QuantizedWeight&, const uint32_t*, InputTile, int, GroupRange,
                                             float*, GroupFetch);
extern template void AddGroups<6, kTileRows>(const QuantizedWeight&, const uint32_t*, InputTile, int, GroupRange,
                                             float*, GroupFetch);
extern template void AddGroups<8, kTileRows>(const QuantizedWeight&, const uint32_t*, InputTile, int, GroupRange,
                                             float*, GroupFetch);

namespace {

// The arrays of a stack of weights, [*stack][panels] of all of them, and how they were made. What a weight does not have
// is empty.
struct Operands {
  const ffi::AnyBuffer &codes, &scales, &zeros, &minimums, &block_scales, &block_minimums;
  int64_t bits, group;
  int axis;  // that of the panels

  int64_t panels() const { return codes.dimensions()[axis]; }
  int64_t inputs() const { return codes.dimensions()[axis + 1] * 32 / bits; }
  int64_t groups() const { return scales.dimensions()[axis + 1]; }
  // How many share a scale when they are rounded.
  int64_t input_group() const { return std::min<int64_t>(std::min(group, inputs()), kInputGroup); }

  Factors FactorsOf(const ffi::AnyBuffer& values, const ffi::AnyBuffer& of_blocks) const {
    const bool exist = values.element_count() != 0, has_blocks = of_blocks.element_count() != 0;
    const auto kind = values.element_type() == ffi::F32    ? Factors::Kind::kFloat32
                      : values.element_type() == ffi::BF16 ? Factors::Kind::kBfloat16
                      : values.element_type() == ffi::F16  ? Factors::Kind::kFloat16
                                                                     : Factors::Kind::kInt8;
    return {exist ? static_cast<const char*>(values.untyped_data()) : nullptr,
            has_blocks ? static_cast<const Float16*>(of_blocks.untyped_data()) : nullptr,
            groups(),
            has_blocks ? of_blocks.dimensions()[axis + 1] : 0,
            kBlock / std::min(group, kBlock),
            kind};
  }

  // The weights of one layer, from its first panel on.
  QuantizedWeight Layer(int64_t layer) const {
    const int64_t experts = axis == 1 ? 1 : codes.dimensions()[1];
    const QuantizedWeight all = {static_cast<const uint32_t*>(codes.untyped_data()),
                                 FactorsOf(scales, block_scales),
                                 FactorsOf(minimums, block_minimums),
                                 zeros.element_count() ? static_cast<const uint8_t*>(zeros.untyped_data()) : nullptr,
                                 static_cast<int>(bits),
                                 inputs() * bits / 32,
                                 std::min(group, inputs()) / kQuad};
    return all.From(layer * experts * panels());
  }
};

// Why groups of inputs do not divide what is rounded together, or null.
const char* CheckGroups(const Operands& weight) {
  const int64_t group = weight.group, inputs = weight.inputs();
  if (group < inputs && (group <= 0 || group % 8 != 0 || (group > kInputGroup && group % kInputGroup != 0)))
    return "a group is neither a multiple of 8 inputs, nor one of 128 if it has more, nor all inputs";
  const int64_t unit = UnitQuads(static_cast<int>(weight.bits)) * kQuad;
  if (group % unit != 0 && group < inputs) return "a group ends inside a unit of codes";
  if (inputs % unit != 0) return "the codes end inside a unit";
  return weight.groups() == Ceil(inputs, group) ? nullptr : "there is not one scale for each group of inputs";
}

bool HaveShape(const ffi::AnyBuffer& array, const ffi::AnyBuffer& like) {
  const auto found = array.dimensions(), wanted = like.dimensions();
  return std::equal(found.begin(), found.end(), wanted.begin(), wanted.end());
}

// Why scales or minimums by group do not fit those of blocks, or null.
const char* CheckBlocks(const Operands& weight, const ffi::AnyBuffer& values, const ffi::AnyBuffer& of_blocks) {
  const bool whole = values.element_type() == ffi::S8, has_blocks = of_blocks.element_count() != 0;
  const bool are_floats = ItemSize(values.element_type()) != 0 || values.element_type() == ffi::F16;
  if (!whole && !are_floats) return "the scales are neither float32, float16 nor bfloat16, nor integers of 8 bits";
  if (whole != has_blocks) return "scales of blocks need scales that are integers of 8 bits";
  if (!has_blocks) return nullptr;
  const size_t axis = weight.axis;
  const auto blocks = of_blocks.dimensions(), codes = weight.codes.dimensions();
  if (of_blocks.element_type() != ffi::F16 || kBlock % weight.group != 0 || blocks.size() != axis + 3 ||
      !std::equal(blocks.begin(), blocks.begin() + axis + 1, codes.begin()) || blocks[axis + 2] != kPanel ||
      blocks[axis + 1] != Ceil(weight.groups() * weight.group, kBlock))
    return "the scales of blocks do not fit the codes";
  return nullptr;
}

const char* CheckWeight(const Operands& weight, const ffi::AnyBuffer& x, const Scalar& layer, const ffi::AnyBuffer& y) {
  const auto codes = weight.codes.dimensions(), scales = weight.scales.dimensions();
  const auto rows = x.dimensions(), made = y.dimensions();
  const size_t axis = weight.axis;
  if (weight.codes.element_type() != ffi::U8 || codes.size() != axis + 4 || codes[axis + 2] != kPanel ||
      codes[axis + 3] != kQuad)
    return "the codes are not bytes in units of panels";
  if (!IsOneOf(weight.bits, OwnWidths())) return "codes have a number of bits that the library does not multiply";
  if (scales.size() != axis + 3 || scales[axis + 2] != kPanel ||
      !std::equal(scales.begin(), scales.begin() + axis + 1, codes.begin()))
    return "the scales do not fit the codes";
  if (const char* reason = CheckGroups(weight)) return reason;
  if (const char* reason = CheckBlocks(weight, weight.scales, weight.block_scales)) return reason;
  if (weight.zeros.element_count() != 0) {
    if (weight.zeros.element_type() != ffi::U8 || !HaveShape(weight.zeros, weight.scales))
      return "the zero points are not bytes of the scales' shape";
    if (weight.minimums.element_count() != 0) return "there are both zero points and minimums";
  }
  if (weight.minimums.element_count() != 0) {
    if (weight.minimums.element_type() != weight.scales.element_type() || !HaveShape(weight.minimums, weight.scales))
      return "the minimums are not of the scales' shape and type";
    if (const char* reason = CheckBlocks(weight, weight.minimums, weight.block_minimums)) return reason;
  }
  if (ItemSize(x.element_type()) == 0) return "x is neither float32 nor bfloat16";
  if (ItemSize(y.element_type()) == 0) return "the result is neither float32 nor bfloat16";
  const int64_t unit = UnitQuads(static_cast<int>(weight.bits)) * kQuad;
  if (rows.size() != 2 || Ceil(rows[1], unit) * unit != weight.inputs() || made.size() != 2 || made[0] != rows[0] ||
      Ceil(made[1], kPanel) != weight.panels())
    return "x does not fit the weight";
  const int32_t index = layer.typed_data()[0];
  return index < 0 || index >= codes[0] ? "the layer does not exist" : nullptr;
}

// Round the rows of each expert, which end where those of the next one start.
template <typename Element>
void RoundRows(ffi::ThreadPool& pool, const ffi::AnyBuffer& x, int32_t zero, const std::vector<int64_t>& starts,
               const RoundedInputs& to) {
  constexpr int64_t kItemInputs = 32768;  // fewer are done before another thread has woken up
  const int64_t inputs = x.dimensions()[1], each = std::max<int64_t>(1, kItemInputs / inputs), tokens = starts.back();
  ForEach(pool, Ceil(tokens, each), [&](int64_t item) {
    for (int64_t token = item * each; token < std::min(tokens, (item + 1) * each); ++token) {
      const int64_t expert = std::upper_bound(starts.begin(), starts.end(), token) - starts.begin() - 1;
      const int64_t row = token - starts[expert], tile = to.FirstTile(expert, starts[expert]) + row / kTileRows;
      RoundRow(static_cast<const Element*>(x.untyped_data()) + token * inputs, inputs, zero, to, tile, row % kTileRows);
    }
  });
}

RoundedInputs Rounded(ffi::ThreadPool& pool, const ffi::AnyBuffer& x, const std::vector<int64_t>& starts,
                      const Operands& weight) {
  thread_local Scratch scratch;  // of the caller, whose threads are done with it when it returns
  const int64_t experts = static_cast<int64_t>(starts.size()) - 1, tiles = starts.back() / kTileRows + experts;
  const RoundedInputs to(tiles, weight.inputs() / kQuad, weight.input_group() / kQuad, scratch);
  const int32_t zero = weight.minimums.element_count() != 0 ? 0
                       : weight.zeros.element_count() != 0  ? 1
                                                            : 1 << (weight.bits - 1);
  x.element_type() == ffi::F32 ? RoundRows<float>(pool, x, zero, starts, to)
                                         : RoundRows<Bfloat16>(pool, x, zero, starts, to);
  return to;
}

template <typename Product>
void Share(ffi::ThreadPool& pool, const Product& product, int64_t items) {
  ShareOut(pool, items, Order::kNeighbours, [&](int64_t item, Claim& claim) { MultiplyShare(product, item, claim); });
}

template <typename Out>
PanelResult<Out> ResultOf(const ffi::AnyBuffer& y, const ffi::AnyBuffer* residual, int64_t tokens) {
  return {static_cast<Out*>(y.untyped_data()),
          residual == nullptr ? nullptr : static_cast<const Out*>(residual->untyped_data()), tokens, y.dimensions()[1]};
}

ffi::Error Multiplied(ffi::ThreadPool& pool, const ffi::AnyBuffer& x, const Operands& weight, const Scalar& layer,
                      const Scalar& num_tokens, const ffi::AnyBuffer* residual, ffi::AnyBuffer& y) {
  if (const char* reason = CheckWeight(weight, x, layer, y)) return Refuse(reason);
  if (residual != nullptr) {
    const auto added = residual->dimensions(), made = y.dimensions();
    const bool same = std::equal(added.begin(), added.end(), made.begin(), made.end());
    if (!same || residual->element_type() != y.element_type())
      return Refuse("the residual is not of the result's shape and type");
  }
  const int64_t tokens = std::clamp<int64_t>(num_tokens.typed_data()[0], 0, x.dimensions()[0]);
  const RoundedInputs rounded = Rounded(pool, x, {0, tokens}, weight);
  const auto multiply = [&](auto out) {
    QuantizedProduct<decltype(out)> product = {rounded, 0, weight.Layer(layer.typed_data()[0]),
                                               ResultOf<decltype(out)>(y, residual, tokens)};
    product.result.Cut(Ceil(4 * pool.num_threads(), product.result.panels()));  // so that each thread has items
    Share(pool, product, product.result.items());
  };
  y.element_type() == ffi::F32 ? multiply(float()) : multiply(Bfloat16());
  return ffi::Error::Success();
}

ffi::Error MultiplyQuantized(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer codes, ffi::AnyBuffer scales,
                             ffi::AnyBuffer zeros, ffi::AnyBuffer minimums, ffi::AnyBuffer block_scales,
                             ffi::AnyBuffer block_minimums, Scalar layer, Scalar num_tokens,
                             ffi::Result<ffi::AnyBuffer> y, int64_t bits, int64_t group) {
  return Multiplied(pool, x, {codes, scales, zeros, minimums, block_scales, block_minimums, bits, group, 1}, layer,
                    num_tokens, nullptr, *y);
}

ffi::Error AddMultiplied(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer codes, ffi::AnyBuffer scales,
                         ffi::AnyBuffer zeros, ffi::AnyBuffer minimums, ffi::AnyBuffer block_scales,
                         ffi::AnyBuffer block_minimums, Scalar layer, Scalar num_tokens, ffi::AnyBuffer residual,
                         ffi::Result<ffi::AnyBuffer> y, int64_t bits, int64_t group) {
  return Multiplied(pool, x, {codes, scales, zeros, minimums, block_scales, block_minimums, bits, group, 1}, layer,
                    num_tokens, &residual, *y);
}

ffi::Error MultiplyExperts(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer codes, ffi::AnyBuffer scales,
                           ffi::AnyBuffer zeros, ffi::AnyBuffer minimums, ffi::AnyBuffer block_scales,
                           ffi::AnyBuffer block_minimums, Scalar layer, Integers starts,
                           ffi::Result<ffi::AnyBuffer> y, int64_t bits, int64_t group) {
  const Operands weight = {codes, scales, zeros, minimums, block_scales, block_minimums, bits, group, 2};
  if (const char* reason = CheckWeight(weight, x, layer, *y)) return Refuse(reason);
  const int64_t experts = codes.dimensions()[1];
  if (const char* reason = CheckStarts(starts, experts, x.dimensions()[0])) return Refuse(reason);
  const int64_t tokens = starts.typed_data()[experts];
  const int32_t* const first = starts.typed_data();
  const RoundedInputs rounded = Rounded(pool, x, {first, first + experts + 1}, weight);
  const auto multiply = [&](auto out) {
    const QuantizedProduct<decltype(out)> all = {rounded, 0, weight.Layer(layer.typed_data()[0]),
                                                 ResultOf<decltype(out)>(*y, nullptr, tokens)};
    const ExpertProduct product(all, starts.typed_data(), experts, pool.num_threads());
    Share(pool, product, product.items());
  };
  y->element_type() == ffi::F32 ? multiply(float()) : multiply(Bfloat16());
  return ffi::Error::Success();
}

}  // namespace
}  // namespace kernels

KERNELS_HANDLER(QuantizedProduct, kernels::MultiplyQuantized, "bits", "group")
KERNELS_HANDLER(QuantizedProductAdded, kernels::AddMultiplied, "bits", "group")
KERNELS_HANDLER(QuantizedExpertProduct, kernels::MultiplyExperts, "bits", "group")
