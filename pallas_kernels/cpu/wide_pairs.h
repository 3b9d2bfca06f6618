// Products of bfloat16 for many rows as products of float32, on processors that multiply pairs no faster than floats.
//
// Each element of a result has the bits that Accumulate gives it, which adds a pair's second product first.

#ifndef PALLAS_KERNELS_CPU_WIDE_PAIRS_H_
#define PALLAS_KERNELS_CPU_WIDE_PAIRS_H_

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>

#include "elements.h"
#include "tile.h"

namespace kernels {

// AMD's instruction for pairs takes as long as one multiplication of floats, Intel's 1.6 times as long as two.
#if defined(__AVX512BF16__) && !defined(KERNELS_INTEL)
constexpr int kFewestWideRows = std::numeric_limits<int>::max();
#else
constexpr int kFewestWideRows = 4 * kTileRows + 1;  // fewer are not worth the widening
#endif

constexpr int kWideDepth = 64;  // units: a panel of 64 outputs takes 32 KiB when it is widened

// Floats that WideProduct needs in addition to the sums.
constexpr size_t WideRoom(int rows, int columns) {
  return rows < kFewestWideRows ? 0 : size_t(2 * kWideDepth) * (kTileRows + columns);
}

// Rows of pairs to twice as many rows of floats, of each pair the second element first.
inline void WidenRows(const Pair* source, int rows, int columns, float* target) {
  for (int i = 0; i < rows; ++i, source += columns, target += 2 * columns)
    for (int j = 0; j < columns; j += kLanes) {
      const Words pairs = Load<Words>(source + j);
      Store(target + j, SecondElements(pairs));
      Store(target + columns + j, FirstElements(pairs));
    }
}

// A row of pairs to one of twice as many floats, in the same order.
inline void WidenRow(const Pair* source, int count, float* target) {
  alignas(64) Bfloat16 swapped[2 * kLanes];
  for (int i = 0; i < count; i += kLanes, target += 2 * kLanes) {
    const int some = std::min(kLanes, count - i);
    Words pairs = {};
    if (some == kLanes) {
      pairs = Load<Words>(source + i);
    } else {
      std::memcpy(&pairs, source + i, some * sizeof(Pair));
    }
    Store(swapped, pairs << 16 | pairs >> 16);
    Store(target, LoadFloats(swapped));
    Store(target + kLanes, LoadFloats(swapped + kLanes));
  }
}

// c[rows][columns] (+)= a[rows][depth] b[depth][columns], of units; columns: a multiple of kLanes.
// `done` as Product's.
template <typename Fetch, typename Done>
inline void WideProduct(Matrix<const Pair> a, const Pair* b, Matrix<float> c, int rows, int columns, int depth,
                        Start start, Fetch fetch, float* room, const Done& done) {
  const Matrix<float> inputs = {room + 2 * kWideDepth * columns, 2 * kWideDepth};
  const int tiles = Ceil(rows, kTileRows);
  for (int k = 0; k < depth; k += kWideDepth) {
    const int count = std::min(kWideDepth, depth - k);
    WidenRows(b + k * columns, count, columns, room);
    // Tile by tile, so that both operands are still in the first-level cache.
    for (int tile = 0; tile < tiles; ++tile) {
      const int first = tile * kTileRows, some = std::min(kTileRows, rows - first);
      for (int r = 0; r < some; ++r) WidenRow(a.Row(first + r) + k, count, inputs.Row(r));
      Product<float>({inputs.data, inputs.stride}, Packed<float>{room, columns}, {c.Row(first), c.stride}, some,
                     columns / kLanes, 2 * count, k == 0 ? start : Start::kAdd,
                     fetch.From(k).Halves().Share(tile, tiles, 2 * count));
      if (k + count == depth) done(first, some);
    }
  }
}

}  // namespace kernels

#endif  // PALLAS_KERNELS_CPU_WIDE_PAIRS_H_
