// Rows of a matrix brought into the layout of a product's right operand.

#ifndef PALLAS_KERNELS_CPU_PACK_H_
#define PALLAS_KERNELS_CPU_PACK_H_

#include <algorithm>
#include <cstring>

#include "units.h"

namespace kernels {

// The units of one row; an odd last bfloat16 is paired with zero.
inline float UnitAt(const float* row, int64_t, int64_t i) { return row[i]; }

inline Pair UnitAt(const Bfloat16* row, int64_t elements, int64_t i) {
  const uint32_t odd = 2 * i + 1 < elements ? row[2 * i + 1].bits : 0;
  return {row[2 * i].bits | odd << 16};
}

// All of them.
template <typename Element, typename Unit = typename UnitOf<Element>::type>
inline void PackRow(const Element* row, int64_t elements, Unit* target) {
  const int64_t whole = elements / UnitOf<Element>::kElements;
  std::memcpy(target, row, whole * sizeof(Unit));
  for (int64_t i = whole; i < Ceil(elements, UnitOf<Element>::kElements); ++i) target[i] = UnitAt(row, elements, i);
}

#if defined(__AVX512F__)
// target[i][j] = rows[j][i] for 16 rows and up to 16 units of each.
inline void Transpose16(const char* const* rows, int64_t byte_offset, int units, uint32_t* target, ptrdiff_t stride) {
  const __mmask16 mask = static_cast<__mmask16>((1u << units) - 1);
  __m512i x[16], y[16];
#pragma GCC unroll 16
  for (int j = 0; j < 16; ++j) x[j] = _mm512_maskz_loadu_epi32(mask, rows[j] + byte_offset);
#pragma GCC unroll 16
  for (int j = 0; j < 16; j += 2) {
    y[j] = _mm512_unpacklo_epi32(x[j], x[j + 1]);
    y[j + 1] = _mm512_unpackhi_epi32(x[j], x[j + 1]);
  }
#pragma GCC unroll 16
  for (int j = 0; j < 16; j += 4) {
    x[j] = _mm512_unpacklo_epi64(y[j], y[j + 2]);
    x[j + 1] = _mm512_unpackhi_epi64(y[j], y[j + 2]);
    x[j + 2] = _mm512_unpacklo_epi64(y[j + 1], y[j + 3]);
    x[j + 3] = _mm512_unpackhi_epi64(y[j + 1], y[j + 3]);
  }
  // x[4 g + c] holds, in its 128-bit lane l, unit 4 l + c of rows 4 g to 4 g + 3.
#pragma GCC unroll 4
  for (int c = 0; c < 4; ++c) {
    const __m512i low = _mm512_shuffle_i32x4(x[c], x[4 + c], 0x88);
    const __m512i high = _mm512_shuffle_i32x4(x[c], x[4 + c], 0xdd);
    const __m512i low2 = _mm512_shuffle_i32x4(x[8 + c], x[12 + c], 0x88);
    const __m512i high2 = _mm512_shuffle_i32x4(x[8 + c], x[12 + c], 0xdd);
    y[c] = _mm512_shuffle_i32x4(low, low2, 0x88);
    y[8 + c] = _mm512_shuffle_i32x4(low, low2, 0xdd);
    y[4 + c] = _mm512_shuffle_i32x4(high, high2, 0x88);
    y[12 + c] = _mm512_shuffle_i32x4(high, high2, 0xdd);
  }
  const auto store = [&](int end) {
#pragma GCC unroll 16
    for (int i = 0; i < 16; ++i)
      if (i < end) _mm512_storeu_si512(target + i * stride, y[i]);
  };
  units == 16 ? store(16) : store(units);
}
#endif

// target[i][j] = unit i of rows[j], for `count` rows of `elements` elements; columns past them are left alone.
template <typename Element, typename Unit = typename UnitOf<Element>::type>
inline void PackColumns(const Element* const* rows, int count, int64_t elements, Unit* target, ptrdiff_t stride) {
  const int64_t depth = Ceil(elements, UnitOf<Element>::kElements);
  int64_t whole = 0;  // units that the vectors below take
  int first = 0;
#if defined(__AVX512F__)
  whole = elements / UnitOf<Element>::kElements;
  for (; first + 16 <= count; first += 16) {
    for (int64_t i = 0; i < whole; i += 16) {
      const int units = static_cast<int>(std::min<int64_t>(whole - i, 16));
      Transpose16(reinterpret_cast<const char* const*>(rows + first), i * sizeof(Unit), units,
                  reinterpret_cast<uint32_t*>(target + i * stride + first), stride);
    }
  }
#endif
  if (first == count && whole == depth) return;
  for (int64_t i = 0; i < depth; ++i)
    for (int j = i < whole ? first : 0; j < count; ++j) target[i * stride + j] = UnitAt(rows[j], elements, i);
}

// target[i] = unit i along the rows: row i itself, or rows 2 i and 2 i + 1 as pairs. `count` is even for pairs.
inline void PackRows(const float* const* rows, int count, int64_t elements, float* target, ptrdiff_t stride) {
  for (int j = 0; j < count; ++j) std::memcpy(target + j * stride, rows[j], elements * sizeof(float));
}

inline void PackRows(const Bfloat16* const* rows, int count, int64_t elements, Pair* target, ptrdiff_t stride) {
  for (int j = 0; j < count; j += 2) {
    const Bfloat16 *even = rows[j], *odd = rows[j + 1];
    Pair* pairs = target + j / 2 * stride;
    int64_t d = 0;
    for (; d + kLanes <= elements; d += kLanes) Store(pairs + d, LoadPairs(even + d, odd + d));
    for (; d < elements; ++d) pairs[d].bits = even[d].bits | static_cast<uint32_t>(odd[d].bits) << 16;
  }
}

// A product's right operand of rows that lie apart, in whole vectors: what PackRows would store, made again each time.
template <typename Element>
struct Unpacked {
  const Element* const* rows;
  int column = 0;

  auto operator()(int vector) const {
    const int offset = column + vector * kLanes;
    if constexpr (UnitOf<Element>::kElements == 2) {
      return LoadPairs(rows[0] + offset, rows[1] + offset);
    } else {
      return Load<Floats>(rows[0] + offset);
    }
  }
  void NextRow() { rows += UnitOf<Element>::kElements; }
  Unpacked From(int vector) const { return {rows, column + vector * kLanes}; }
};

}  // namespace kernels

#endif  // PALLAS_KERNELS_CPU_PACK_H_
