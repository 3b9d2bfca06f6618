// The one product kernel: c[rows][columns] (+)= a[rows][depth] b[depth][columns].
//
// Each element of c is a single chain of additions over the depth, in order, so its bits depend on its own row of a and
// column of b alone, however the loops around are cut.

#ifndef PALLAS_KERNELS_CPU_TILE_H_
#define PALLAS_KERNELS_CPU_TILE_H_

#include <type_traits>

#include "units.h"

namespace kernels {

template <typename Unit>
struct Matrix {
  Unit* data;
  ptrdiff_t stride;  // units from one row to the next

  Unit* Row(ptrdiff_t row) const { return data + row * stride; }
};

// The right operand of a product, taken row after row in vectors: here of a matrix that is packed in units.
template <typename Unit>
struct Packed {
  using Operand = typename OperandOf<Unit>::type;

  const Unit* data;
  ptrdiff_t stride;  // units from one row to the next

  Operand operator()(int vector) const { return Load<Operand>(data + vector * kLanes); }
  void NextRow() { data += stride; }
  Packed From(int vector) const { return {data + vector * kLanes, stride}; }
};

// Whether a product begins at zero or adds to what c holds.
enum class Start { kZero, kAdd };

// gcc deletes calls of a function that only prefetches, as of one without effect; inlined, prefetches stay.
#define KERNELS_FETCH [[gnu::always_inline]]

// What a product asks the memory for meanwhile: nothing, or at step i of its depth row i of what is multiplied next.
// Share gives what one of its tiles of rows asks for, From what is asked for from a step on, Halves what is asked for in
// two steps for each.
struct FetchNothing {
  KERNELS_FETCH void operator()(int) const {}
  FetchNothing Share(int, int) const { return {}; }
  FetchNothing From(ptrdiff_t) const { return {}; }
  FetchNothing Halves() const { return {}; }
};

struct FetchRows {
  static constexpr ptrdiff_t kLine = 64;

  const char* data;
  ptrdiff_t stride;  // bytes from one row to the next
  ptrdiff_t begin = 0, end = stride / kLine;  // cache lines of a row

  KERNELS_FETCH void operator()(int i) const {
    for (ptrdiff_t line = begin; line < end; ++line) __builtin_prefetch(data + i * stride + line * kLine, 0, 2);
  }
  // Each line once: the first tile alone would ask for more than memory gives in its time, and wait.
  FetchRows Share(int tile, int tiles) const {
    const auto from = [&](int t) { return begin + ((end - begin) * t + tiles - 1) / tiles; };
    return {data, stride, from(tile), from(tile + 1)};
  }
  FetchRows From(ptrdiff_t step) const { return {data + step * stride, stride, begin, end}; }
  FetchRows Halves() const { return {data, stride / 2}; }
};

template <typename Unit, int kRows, int kVectors, typename Right, typename Fetch>
inline void ProductTile(Matrix<const Unit> a, Right b, Matrix<float> c, int depth, Start start, Fetch fetch) {
  Floats acc[kRows][kVectors] = {};
  if (start == Start::kAdd) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) acc[r][v] = Load<Floats>(c.Row(r) + v * kLanes);
  }
  for (int i = 0; i < depth; ++i, b.NextRow()) {
    fetch(i);
    typename OperandOf<Unit>::type w[kVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) w[v] = b(v);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 16
      for (int v = 0; v < kVectors; ++v) acc[r][v] = Accumulate(a.Row(r)[i], w[v], acc[r][v]);
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 16
    for (int v = 0; v < kVectors; ++v) Store(c.Row(r) + v * kLanes, acc[r][v]);
}

// Up to kRows rows and any number of columns, a multiple of kLanes.
template <typename Unit, int kRows, typename Right, typename Fetch>
inline void ProductRows(Matrix<const Unit> a, Right b, Matrix<float> c, int rows, int vectors, int depth, Start start,
                        Fetch fetch) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return ProductRows<Unit, kRows - 1>(a, b, c, rows, vectors, depth, start, fetch);
  }
  int v = 0;
  const auto columns = [&](auto step) {
    for (; v + step.value <= vectors; v += step.value) {
      const auto tile = [&](auto asks) {
        ProductTile<Unit, kRows, step.value>(
            a, b.From(v), {c.data + v * kLanes, c.stride}, depth, start, asks);
      };
      if (v == 0) {
        tile(fetch);
      } else {
        tile(FetchNothing());
      }
    }
  };
  columns(std::integral_constant<int, kTileVectors>());
  columns(std::integral_constant<int, 2>());
  columns(std::integral_constant<int, 1>());
}

// Any number of rows; c has room for whole vectors of columns.
template <typename Unit, typename Right, typename Fetch>
inline void Product(Matrix<const Unit> a, Right b, Matrix<float> c, int rows, int vectors, int depth, Start start,
                    Fetch fetch) {
  for (int r = 0; r < rows; r += kTileRows) {
    const int count = rows - r < kTileRows ? rows - r : kTileRows;
    ProductRows<Unit, kTileRows>({a.Row(r), a.stride}, b, {c.Row(r), c.stride}, count, vectors, depth, start,
                                 fetch.Share(r / kTileRows, (rows + kTileRows - 1) / kTileRows));
  }
}

}  // namespace kernels

#endif  // PALLAS_KERNELS_CPU_TILE_H_
