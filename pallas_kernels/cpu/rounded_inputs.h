// Inputs of a product rounded to 8 bits, -127 to 127 times a scale by token and group of inputs.

#ifndef PALLAS_KERNELS_CPU_ROUNDED_INPUTS_H_
#define PALLAS_KERNELS_CPU_ROUNDED_INPUTS_H_

#include <algorithm>
#include <limits>

#include "elements.h"
#include "integers.h"
#include "scratch.h"
#include "tile.h"

namespace kernels {

constexpr int kInputGroup = 128;  // the most inputs that share a scale

struct RoundedInputs {
  int64_t quads, group_quads;  // of a row, and of each of its groups but the last, which may be shorter
  Matrix<uint32_t> words;      // [tokens][quads][kQuadWords]
  Matrix<float> scales;        // [tokens][groups]
  Matrix<int32_t> totals;      // the same: the sums of what was rounded

  RoundedInputs(int64_t tokens, int64_t quads, int64_t group_quads, Scratch& scratch)
      : quads(quads), group_quads(group_quads) {
    const ptrdiff_t width = quads * kQuadWords, groups = this->groups();
    words = {scratch.Get<uint32_t>(tokens * (width + 2 * groups)), width};
    scales = {reinterpret_cast<float*>(words.Row(tokens)), groups};
    totals = {reinterpret_cast<int32_t*>(scales.Row(tokens)), groups};
  }

  int64_t groups() const { return Ceil(quads, group_quads); }
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

// Round one row of `inputs` values; those that fill up its last quad are zeros. A group with a value that is not finite
// becomes zeros times NaN.
template <typename Element>
inline void RoundRow(const Element* row, int64_t inputs, const RoundedInputs& to, int64_t token) {
  const int64_t size = to.group_quads * kQuad;
  for (int64_t group = 0; group < to.groups(); ++group) {
    const int64_t first = group * size, count = std::min(size, inputs - first);
    const float largest = BitCast<float>(LargestBits(row + first, count));
    alignas(64) int8_t rounded[kInputGroup + kLanes] = {};
    float& scale = to.scales.Row(token)[group];
    int32_t& total = to.totals.Row(token)[group];
    if (largest <= std::numeric_limits<float>::max()) {
      const float inverse = std::min(127.0f / largest, std::numeric_limits<float>::max());  // of zeros it is infinite
      scale = largest / 127.0f;
      total = RoundGroup(row + first, count, inverse, rounded);
    } else {
      scale = std::numeric_limits<float>::quiet_NaN();
      total = 0;
    }
    const int64_t begin = group * to.group_quads, end = std::min(begin + to.group_quads, to.quads);
    for (int64_t quad = begin; quad < end; ++quad)
      StoreQuad(rounded + (quad - begin) * kQuad, to.words.Row(token) + quad * kQuadWords);
  }
}

}  // namespace kernels

#endif  // PALLAS_KERNELS_CPU_ROUNDED_INPUTS_H_
