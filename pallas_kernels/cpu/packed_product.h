// y = x weight^T, or residual + that, with a packed weight: [panels][depth units][kPanel outputs].

#ifndef PALLAS_KERNELS_CPU_PACKED_PRODUCT_H_
#define PALLAS_KERNELS_CPU_PACKED_PRODUCT_H_

#include <algorithm>

#include "elements.h"
#include "pack.h"
#include "scratch.h"
#include "tile.h"

namespace kernels {

constexpr int kPanel = 64;
constexpr int kDepthBlock = 128;  // units: 32 KiB of a panel, which stay in the first-level cache for all rows
constexpr int kItemTiles = 16;    // of kTileRows rows each: as much of x as a second-level cache holds

template <typename Unit, typename Out>
struct PackedProduct {
  const Unit* x;  // [tokens][depth]
  const Unit* packed;
  Out* y;               // [tokens][outputs]
  const Out* residual;  // the same, or null
  int64_t tokens, depth, outputs;
  int64_t rows_per_item;  // a multiple of kTileRows

  int64_t panels() const { return Ceil(outputs, kPanel); }
  int64_t items() const { return panels() * Ceil(tokens, rows_per_item); }

  // Cut the rows into `least` parts if there are as many tiles, and so that an item's part of x stays close.
  void Cut(int64_t least) {
    const int64_t tiles = std::max(Ceil(tokens, kTileRows), 1);
    const int64_t cuts = std::max<int64_t>(Ceil(tiles, kItemTiles), least);
    rows_per_item = Ceil(tiles, cuts) * kTileRows;
  }

  // The panel that an item multiplies with.
  const Unit* PanelOf(int64_t item) const { return Panel(item % panels()); }

  // One panel of outputs for some rows. Items with the same rows follow each other. `next_panel()` is that of the item
  // which this thread does after it, or null where that is not known yet.
  template <typename Next>
  void Run(int64_t item, Scratch& scratch, const Next& next_panel) const {
    const int64_t panel = item % panels(), first = item / panels() * rows_per_item;
    const int rows = static_cast<int>(std::min(rows_per_item, tokens - first));
    const Matrix<float> sums = {scratch.Get<float>(size_t(rows) * kPanel), kPanel};
    for (int64_t k = 0; k < depth; k += kDepthBlock) {
      const int count = static_cast<int>(std::min<int64_t>(kDepthBlock, depth - k));
      const Unit* block = Panel(panel) + k * kPanel;
      const auto multiply = [&](auto fetch) {
        Product<Unit>({x + first * depth + k, depth}, Packed<Unit>{block, kPanel}, sums, rows, kPanel / kLanes, count,
                      k == 0 ? Start::kZero : Start::kAdd, fetch);
      };
      // A block that is read once, from end to end, the processor fetches best by itself. One that is read again leaves
      // time to ask for the next, of this panel or of the next item's.
      const Unit* next = rows <= kTileRows ? nullptr : k + count < depth ? block + count * kPanel : next_panel();
      if (next == nullptr) {
        multiply(FetchNothing());
      } else {
        multiply(FetchRows{reinterpret_cast<const char*>(next), kPanel * sizeof(Unit)});
      }
    }
    for (int r = 0; r < rows; ++r) Finish(sums.Row(r), (first + r) * outputs, panel * kPanel);
  }

 private:
  // A row's sums to results, each rounded to its type before the residual is added.
  void Finish(const float* sums, int64_t row, int64_t column) const {
    ForVectors(std::min<int64_t>(kPanel, outputs - column), [&](int64_t i, int count) {
      Floats result = Load<Floats>(sums + i);
      if (residual != nullptr) result = LoadSome(residual + row + column + i, count) + Rounded(y, result);
      StoreSome(y + row + column + i, result, count);
    });
  }

  const Unit* Panel(int64_t panel) const { return packed + panel * depth * kPanel; }
};

}  // namespace kernels

#endif  // PALLAS_KERNELS_CPU_PACKED_PRODUCT_H_
