// What products with weights in panels share: how they are cut into items, and where their sums go.

#ifndef PALLAS_KERNELS_CPU_PANELS_H_
#define PALLAS_KERNELS_CPU_PANELS_H_

#include <algorithm>

#include "elements.h"
#include "tile.h"

namespace kernels {

constexpr int kPanel = 64;      // outputs that are computed together
constexpr int kItemTiles = 16;  // of kTileRows rows each: as much of x as a second-level cache holds

// The result of a product, of which an item is one panel of outputs for some rows. Items with the same rows follow each
// other.
template <typename Out>
struct PanelResult {
  Out* y;               // [tokens][outputs]
  const Out* residual;  // the same, or null
  int64_t tokens, outputs;
  int64_t rows_per_item = 0;  // a multiple of kTileRows

  int64_t panels() const { return Ceil(outputs, kPanel); }
  int64_t items() const { return panels() * Ceil(tokens, rows_per_item); }

  // Cut the rows into `least` parts if there are as many tiles, and so that an item's part of x stays close.
  void Cut(int64_t least) {
    const int64_t tiles = std::max(Ceil(tokens, kTileRows), 1);
    const int64_t cuts = std::max<int64_t>(Ceil(tiles, kItemTiles), least);
    rows_per_item = Ceil(tiles, cuts) * kTileRows;
  }

  // Of `rows` rows from `first` on.
  PanelResult Part(int64_t first, int64_t rows) const {
    return {y + first * outputs, residual == nullptr ? nullptr : residual + first * outputs, rows, outputs};
  }

  int64_t Panel(int64_t item) const { return item % panels(); }
  int64_t FirstRow(int64_t item) const { return item / panels() * rows_per_item; }
  int Rows(int64_t item) const { return static_cast<int>(std::min(rows_per_item, tokens - FirstRow(item))); }

  // Sums of `count` of an item's rows from `first` on to results, each rounded to its type before a residual is added.
  void Finish(int64_t item, Matrix<float> sums, int first, int count) const {
    const int64_t column = Panel(item) * kPanel;
    for (int r = first; r < first + count; ++r) {
      const int64_t at = (FirstRow(item) + r) * outputs + column;
      ForVectors(std::min<int64_t>(kPanel, outputs - column), [&](int64_t i, int count) {
        Floats result = Load<Floats>(sums.Row(r) + i);
        if (residual != nullptr) result = LoadSome(residual + at + i, count) + Rounded(y, result);
        StoreSome(y + at + i, result, count);
      });
    }
  }
};

}  // namespace kernels

#endif  // PALLAS_KERNELS_CPU_PANELS_H_
