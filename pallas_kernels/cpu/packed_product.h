// y = x weight^T, or residual + that, with a packed weight: [panels][depth units][kPanel outputs].

#ifndef PALLAS_KERNELS_CPU_PACKED_PRODUCT_H_
#define PALLAS_KERNELS_CPU_PACKED_PRODUCT_H_

#include <algorithm>
#include <type_traits>

#include "panels.h"
#include "scratch.h"
#include "tile.h"
#include "wide_pairs.h"

namespace kernels {

// What is read once, from end to end, AMD's processors fetch best by themselves; Intel's are faster when they are asked.
#if defined(KERNELS_INTEL)
constexpr bool kFetchesAlways = true;
#else
constexpr bool kFetchesAlways = false;
#endif

constexpr int kDepthBlock = 128;  // units: 32 KiB of a panel, which stay in the first-level cache for all rows

template <typename Unit, typename Out>
struct PackedProduct {
  const Unit* x;  // [tokens][depth]
  const Unit* packed;
  int64_t depth;
  PanelResult<Out> result;

  // Rows from `first` on with the weight of another expert, in a stack of experts.
  PackedProduct OfExpert(int64_t expert, int64_t first, int64_t rows) const {
    return {x + first * depth, Panel(expert * result.panels()), depth, result.Part(first, rows)};
  }

  // The panel that an item multiplies with.
  const Unit* PanelOf(int64_t item) const { return Panel(result.Panel(item)); }

  // One panel of outputs for some rows. `next_panel()` is that of the item which this thread does after it, or null
  // where that is not known yet.
  template <typename Next>
  void Run(int64_t item, Scratch& scratch, const Next& next_panel) const {
    const int64_t first = result.FirstRow(item);
    const int rows = result.Rows(item);
    const size_t num_sums = size_t(rows) * kPanel;
    const Matrix<float> sums = {scratch.Get<float>(num_sums + WideRoom(rows, kPanel)), kPanel};
    for (int64_t k = 0; k < depth; k += kDepthBlock) {
      const int count = static_cast<int>(std::min<int64_t>(kDepthBlock, depth - k));
      const Unit* block = PanelOf(item) + k * kPanel;
      const auto multiply = [&](auto fetch) {
        const Matrix<const Unit> inputs = {x + first * depth + k, depth};
        const Start start = k == 0 ? Start::kZero : Start::kAdd;
        // Tile by tile, so that the memory takes results while the next are computed.
        const auto done = [&](int row, int some) {
          if (k + count == depth) result.Finish(item, sums, row, some);
        };
        if constexpr (std::is_same_v<Unit, Pair>) {
          if (rows >= kFewestWideRows)
            return WideProduct(inputs, block, sums, rows, kPanel, count, start, fetch, sums.data + num_sums, done);
        }
        Product<Unit>(inputs, Packed<Unit>{block, kPanel}, sums, rows, kPanel / kLanes, count, start, fetch, done);
      };
      // A block that is read again leaves time to ask for the next, of this panel or of the next item's.
      const bool asks = kFetchesAlways || rows > kTileRows;
      const Unit* next = !asks ? nullptr : k + count < depth ? block + count * kPanel : next_panel();
      if (next == nullptr) {
        multiply(FetchNothing());
      } else {
        multiply(FetchAhead(next, kPanel * sizeof(Unit)));
      }
    }
  }

 private:
  const Unit* Panel(int64_t panel) const { return packed + panel * depth * kPanel; }
};

}  // namespace kernels

#endif  // PALLAS_KERNELS_CPU_PACKED_PRODUCT_H_
