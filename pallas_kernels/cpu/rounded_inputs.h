// Inputs of a product rounded to 8 bits, -127 to 127 times a scale by token and group of inputs.

#ifndef PALLAS_KERNELS_CPU_ROUNDED_INPUTS_H_
#define PALLAS_KERNELS_CPU_ROUNDED_INPUTS_H_

#include <algorithm>
#include <limits>

#include "elements.h"
#include "integers.h"
#include "scratch.h"

namespace kernels {

constexpr int kInputGroup = 128;  // the most inputs that share a scale

// Rows in tiles of kTileRows, of which all have their word, scale or offset next to each other. No tile has rows of two
// experts.
struct RoundedInputs {
  int64_t quads, group_quads;  // of a row, and of each of its groups but the last, which may be shorter
  uint32_t* words;             // [tiles][quads][kQuadWords][kTileRows]
  float* scales;               // [tiles][groups][kTileRows]
  int32_t* offsets;            // the same: what sums begin at, minus the total times the zero point that all have or 1
  float* totals;               // the same: of the rounded inputs, times the scale

  RoundedInputs(int64_t tiles, int64_t quads, int64_t group_quads, Scratch& scratch)
      : quads(quads), group_quads(group_quads) {
    const size_t all_words = size_t(tiles) * quads * kQuadWords * kTileRows, values = tiles * groups() * kTileRows;
    words = scratch.Get<uint32_t>(all_words + 3 * values);
    scales = reinterpret_cast<float*>(words + all_words);
    offsets = reinterpret_cast<int32_t*>(scales + values);
    totals = scales + 2 * values;
  }

  // The first tile of an expert, whose first row is row `first` of all; there may be one before it without rows.
  static int64_t FirstTile(int64_t expert, int64_t first) { return first / kTileRows + expert; }

  int64_t groups() const { return Ceil(quads, group_quads); }
  uint32_t* Words(int64_t tile, int64_t quad) const { return words + (tile * quads + quad) * kQuadWords * kTileRows; }
  int64_t Value(int64_t tile, int64_t group) const { return (tile * groups() + group) * kTileRows; }
};

// The bits of the greatest absolute value, which are in the order of the values; of NaN they are above infinity's.
template <typename Element>
inline int32_t LargestBits(const Element* row, int64_t count) {
  Ints largest = {};
  ForVectors(count, [&](int64_t i, int some) {
    const Ints bits = BitCast<Ints>(LoadSome(row + i, some)) & 0x7fffffff;
    largest = bits > largest ? bits : largest;
  });
  int32_t most = 0;
  for (int lane = 0; lane < kLanes; ++lane) most = std::max<int32_t>(most, largest[lane]);
  return most;
}

// Values times `inverse` to the nearest integers, ties to even; their sum.
template <typename Element>
inline int32_t RoundGroup(const Element* row, int64_t count, float inverse, int8_t* rounded) {
  const Floats magic = Broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  Ints sum = {};
  ForVectors(count, [&](int64_t i, int some) {
    const Floats shifted = LoadSome(row + i, some) * Broadcast(inverse) + magic;
    const Ints value = BitCast<Ints>(shifted) - BitCast<Ints>(magic);
    sum += value;
    Store(rounded + i, __builtin_convertvector(value, SignedBytes));
  });
  int32_t total = 0;
  for (int lane = 0; lane < kLanes; ++lane) total += sum[lane];
  return total;
}

// Round one row of `inputs` values to row `r` of a tile; the padding of its last quad is zeros. A group with a value
// that is not finite becomes zeros times NaN.
template <typename Element>
inline void RoundRow(const Element* row, int64_t inputs, int32_t zero, const RoundedInputs& to, int64_t tile, int64_t r) {
  const int64_t size = to.group_quads * kQuad;
  for (int64_t group = 0; group < to.groups(); ++group) {
    const int64_t first = group * size, count = std::min(size, inputs - first);
    const float largest = BitCast<float>(LargestBits(row + first, count));
    alignas(64) int8_t rounded[kInputGroup + kLanes] = {};
    float& scale = to.scales[to.Value(tile, group) + r];
    int32_t& offset = to.offsets[to.Value(tile, group) + r];
    float& total = to.totals[to.Value(tile, group) + r];
    if (largest <= std::numeric_limits<float>::max()) {
      const float inverse = std::min(127.0f / largest, std::numeric_limits<float>::max());  // of zeros it is infinite
      scale = largest / 127.0f;
      const int32_t sum = RoundGroup(row + first, count, inverse, rounded);
      offset = -zero * sum;
      total = static_cast<float>(sum) * scale;
    } else {
      scale = total = std::numeric_limits<float>::quiet_NaN();
      offset = 0;
    }
    const int64_t begin = group * to.group_quads, end = std::min(begin + to.group_quads, to.quads);
    for (int64_t quad = begin; quad < end; ++quad)
      StoreQuad(rounded + (quad - begin) * kQuad, to.Words(tile, quad) + r);
  }
}

}  // namespace kernels

#endif  // PALLAS_KERNELS_CPU_ROUNDED_INPUTS_H_
