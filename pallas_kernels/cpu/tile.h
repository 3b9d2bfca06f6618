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

// What a product asks the memory for meanwhile: nothing, or at each step of its depth some of what is multiplied next.
// Share gives what one of its tiles of rows asks for in its own steps, From what is asked for from a step on, Halves
// what is asked for in two steps for each.
struct FetchNothing {
  KERNELS_FETCH void operator()(int) const {}
  FetchNothing Share(int, int, int) const { return {}; }
  FetchNothing From(ptrdiff_t) const { return {}; }
  FetchNothing Halves() const { return {}; }
};

// Bytes from `data` on, in their order and equally many at each step: more at once than memory gives would be waited
// for.
class FetchAhead {
 public:
  FetchAhead(const void* data, ptrdiff_t bytes) : FetchAhead(static_cast<const char*>(data), 0, bytes << kFraction) {}

  KERNELS_FETCH void operator()(int i) const {
    const char* const at = data_ + ((begin_ + i * step_) >> kFraction);
    for (ptrdiff_t line = 0; line << kFraction < step_; line += kLine) __builtin_prefetch(at + line, 0, 2);
  }
  // Of `tiles`, which have `steps` steps each.
  FetchAhead Share(int tile, int tiles, int steps) const {
    const ptrdiff_t step = step_ / tiles;
    return {data_, begin_ + tile * steps * step, step};
  }
  FetchAhead From(ptrdiff_t step) const { return {data_, begin_ + step * step_, step_}; }
  FetchAhead Halves() const { return {data_, begin_, step_ / 2}; }

 private:
  static constexpr ptrdiff_t kLine = 64;
  static constexpr int kFraction = 8;  // bits of `begin` and `step` below one byte

  FetchAhead(const char* data, ptrdiff_t begin, ptrdiff_t step) : data_(data), begin_(begin), step_(step) {}

  const char* data_;
  ptrdiff_t begin_, step_;
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

// Any number of rows, in tiles; c has room for whole vectors of columns. done(row, count) is called for the rows of each
// tile.
template <typename Unit, typename Right, typename Fetch, typename Done>
inline void Product(Matrix<const Unit> a, Right b, Matrix<float> c, int rows, int vectors, int depth, Start start,
                    Fetch fetch, const Done& done) {
  const int tiles = (rows + kTileRows - 1) / kTileRows;
  for (int tile = 0; tile < tiles; ++tile) {
    const int r = tile * kTileRows, count = rows - r < kTileRows ? rows - r : kTileRows;
    ProductRows<Unit, kTileRows>({a.Row(r), a.stride}, b, {c.Row(r), c.stride}, count, vectors, depth, start,
                                 fetch.Share(tile, tiles, depth));
    done(r, count);
  }
}

template <typename Unit, typename Right, typename Fetch>
inline void Product(Matrix<const Unit> a, Right b, Matrix<float> c, int rows, int vectors, int depth, Start start,
                    Fetch fetch) {
  Product<Unit>(a, b, c, rows, vectors, depth, start, fetch, [](int, int) {});
}

}  // namespace kernels

#endif  // PALLAS_KERNELS_CPU_TILE_H_
