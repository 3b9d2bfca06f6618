// The function that XLA calls of short convolutions. Shapes are checked here, so that the kernel never reads past an
// array.

#include "short_convolution.h"

#include <algorithm>
#include <type_traits>

#include "arguments.h"
#include "chunks.h"
#include "parallel.h"
#include "units.h"

namespace kernels {
namespace {

const char* CheckArrays(const ffi::AnyBuffer& projected, const ffi::AnyBuffer& taps, const ffi::AnyBuffer& bias,
                        const ffi::AnyBuffer& states, const ffi::AnyBuffer& out, int64_t layer) {
  if (ItemSize(projected.element_type()) == 0) return "the rows are neither float32 nor bfloat16";
  for (const ffi::AnyBuffer* buffer : {&taps, &bias, &states, &out})
    if (buffer->element_type() != projected.element_type()) return "the arrays are not of one type";
  const auto rows = projected.dimensions(), filter = taps.dimensions(), kept = states.dimensions();
  const auto made = out.dimensions(), added = bias.dimensions();
  if (rows.size() != 2 || filter.size() != 2 || (rows[1] != 3 * filter[1] && rows[1] != filter[1]))
    return "the taps do not fit the rows";
  if (added.size() != 1 || (added[0] != 0 && added[0] != filter[1])) return "the bias does not fit the taps";
  if (kept.size() != 4 || kept[2] + 1 != filter[0] || kept[3] != filter[1]) return "the states do not fit the taps";
  if (made.size() != 2 || made[0] != rows[0] || made[1] != filter[1]) return "the result does not fit the rows";
  return layer < 0 || layer >= kept[1] ? "the layer does not exist" : nullptr;
}

template <bool kGated, typename Element>
void Convolve(ffi::ThreadPool& pool, const ffi::AnyBuffer& projected, const ffi::AnyBuffer& taps,
              const ffi::AnyBuffer& bias, const Chunks& chunks, int64_t layer, ffi::AnyBuffer& out,
              ffi::AnyBuffer& states) {
  const auto data = [](const ffi::AnyBuffer& buffer) { return static_cast<Element*>(buffer.untyped_data()); };
  const int64_t num_taps = taps.dimensions()[0], width = taps.dimensions()[1], layers = states.dimensions()[1];
  const int64_t pieces = Ceil(width, kChannels);
  ForEach(pool, chunks.count() * pieces, [&](int64_t item) {
    const int64_t r = item / pieces, first = item % pieces * kChannels;
    const int64_t state = chunks.row(r) * layers + layer;
    const ConvolvedChunk<Element> chunk = {
        data(projected) + chunks.first(r) * projected.dimensions()[1], data(taps),
        bias.element_count() == 0 ? nullptr : data(bias), data(states) + state * (num_taps - 1) * width,
        data(out) + chunks.first(r) * width, chunks.tokens(r), chunks.position(r), num_taps, width};
    ConvolveChannels<kGated>(chunk, first, std::min(kChannels, width - first));
  });
}

ffi::Error ShortConvolution(ffi::ThreadPool pool, ffi::AnyBuffer projected, ffi::AnyBuffer taps, ffi::AnyBuffer bias,
                            ffi::AnyBuffer, Scalar layer, Integers starts, Integers context_lens, Integers rows,
                            Scalar num_rows, ffi::Result<ffi::AnyBuffer> out, ffi::Result<ffi::AnyBuffer> states) {
  const int64_t index = layer.typed_data()[0];
  if (const char* reason = CheckArrays(projected, taps, bias, *states, *out, index)) return Refuse(reason);
  const Chunks chunks(starts, context_lens, rows, num_rows);
  if (const char* reason = chunks.Check(projected.dimensions()[0], states->dimensions()[0])) return Refuse(reason);
  const auto convolve = [&](auto element, auto is_gated) {
    Convolve<is_gated.value, decltype(element)>(pool, projected, taps, bias, chunks, index, *out, *states);
  };
  const auto with_element = [&](auto is_gated) {
    projected.element_type() == ffi::F32 ? convolve(float(), is_gated) : convolve(Bfloat16(), is_gated);
  };
  if (projected.dimensions()[1] == taps.dimensions()[1]) {
    with_element(std::false_type());
  } else {
    with_element(std::true_type());
  }
  return ffi::Error::Success();
}

}  // namespace
}  // namespace kernels

KERNELS_HANDLER(ShortConvolution, kernels::ShortConvolution)
