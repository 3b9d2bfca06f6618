// y = x weight^T, or residual + that, of rounded inputs and a weight of 4 or 8 bits: (code - zero) * scale.
//
// In each group of inputs a sum is of integers and exact; it is made one of float32 and added to those of the groups
// before it, in their order. So a result's bits depend on its own row and weight alone.

#ifndef PALLAS_KERNELS_CPU_QUANTIZED_PRODUCT_H_
#define PALLAS_KERNELS_CPU_QUANTIZED_PRODUCT_H_

#include <algorithm>

#include "integers.h"
#include "panels.h"
#include "rounded_inputs.h"
#include "scratch.h"
#include "tile.h"

namespace kernels {

constexpr int kBlockQuads = 128;  // 32 KiB of codes of 8 bits, which stay in the first-level cache for all rows

struct QuantizedWeight {
  const uint32_t* codes;  // [panels][units][kPanel]; a unit is one quad of 8 bits, or two of 4, the first in low halves
  const char* scales;     // [panels][groups][kPanel], bfloat16 or float32
  const uint8_t* zeros;   // the same, or null
  int bits, scale_bytes;
  int64_t units, groups, group_quads;

  int64_t quads() const { return units * 8 / bits; }
  const uint32_t* Codes(int64_t panel) const { return codes + panel * units * kPanel; }

  QuantizedWeight From(int64_t panel) const {
    const int64_t skipped = panel * groups * kPanel;
    return {Codes(panel),  scales + skipped * scale_bytes, zeros == nullptr ? nullptr : zeros + skipped, bits,
            scale_bytes, units, groups, group_quads};
  }

  // Of kLanes outputs of this first panel and one group.
  Floats Scales(int64_t group, int output) const {
    const char* at = scales + (group * kPanel + output) * scale_bytes;
    return scale_bytes == 4 ? LoadFloats(reinterpret_cast<const float*>(at))
                            : LoadFloats(reinterpret_cast<const Bfloat16*>(at));
  }
  Ints Zeros(int64_t group, int output) const { return LoadBytes(zeros + group * kPanel + output); }
};

// Rows of rounded inputs from the first of a block of groups on.
struct InputBlock {
  Matrix<const uint32_t> words;
  Matrix<const float> scales;
  Matrix<const int32_t> totals;

  InputBlock Rows(int first) const {
    return {{words.Row(first), words.stride}, {scales.Row(first), scales.stride}, {totals.Row(first), totals.stride}};
  }
};

// Add to each sum the products of `quads` quads. Codes are of one group and as many panel outputs as there are sums.
template <int kBits, int kRows, typename Fetch>
inline void AddCodes(Matrix<const uint32_t> inputs, const uint32_t* codes, int64_t quads, Fetch fetch,
                     Ints (&sums)[kRows][kTileVectors]) {
  constexpr int kParts = 8 / kBits;
  for (int64_t i = 0; i < quads; i += kParts, codes += kPanel) {
    Words unit[kTileVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kTileVectors; ++v) unit[v] = Load<Words>(codes + v * kLanes);
#pragma GCC unroll 2
    for (int part = 0; part < kParts; ++part) {
      fetch(i + part);
      Words quad[kTileVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kTileVectors; ++v) quad[v] = kBits == 8 ? unit[v] : unit[v] >> (4 * part) & 0x0f0f0f0fu;
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 16
        for (int v = 0; v < kTileVectors; ++v)
          sums[r][v] = AddProducts(quad[v], inputs.Row(r) + (i + part) * kQuadWords, sums[r][v]);
    }
  }
}

// One group of a tile: `group` is that of the weight, `at` that of the block.
template <int kBits, int kRows, typename Fetch>
inline void AddGroup(const QuantizedWeight& weight, int64_t group, const InputBlock& x, int64_t at,
                     Matrix<const uint32_t> inputs, const uint32_t* codes, int64_t quads, int output, Matrix<float> sums,
                     Fetch fetch) {
  Ints exact[kRows][kTileVectors];
  if (weight.zeros == nullptr) {
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 16
      for (int v = 0; v < kTileVectors; ++v) exact[r][v] = Broadcast(-(x.totals.Row(r)[at] << (weight.bits - 1)));
  } else {
#pragma GCC unroll 16
    for (int v = 0; v < kTileVectors; ++v) {
      const Ints zeros = weight.Zeros(group, output + v * kLanes);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) exact[r][v] = zeros * Broadcast(-x.totals.Row(r)[at]);
    }
  }
  AddCodes<kBits, kRows>(inputs, codes, quads, fetch, exact);
#pragma GCC unroll 16
  for (int v = 0; v < kTileVectors; ++v) {
    const Floats scales = weight.Scales(group, output + v * kLanes);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      float* sum = sums.Row(r) + output + v * kLanes;
      const Floats scaled = ToFloats(exact[r][v]) * scales;
      Store(sum, MultiplyAdd(scaled, Broadcast(x.scales.Row(r)[at]), Load<Floats>(sum)));
    }
  }
}

// Inputs' groups [begin, end) of a panel and one tile of rows.
struct GroupRange {
  int64_t begin, end, quads, row_quads;  // of a group, and of a whole row

  int64_t QuadsOf(int64_t group) const { return std::min(quads, row_quads - group * quads); }
};

template <int kBits, int kRows, typename Fetch>
void AddGroups(const QuantizedWeight& weight, const uint32_t* codes, const InputBlock& x, int rows, GroupRange range,
               Matrix<float> sums, Fetch fetch) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return AddGroups<kBits, kRows - 1>(weight, codes, x, rows, range, sums, fetch);
  }
  for (int64_t group = range.begin; group < range.end; ++group) {
    const int64_t at = group - range.begin, first = at * range.quads, quads = range.QuadsOf(group);
    const auto add = [&](int output, auto asks) {
      AddGroup<kBits, kRows>(weight, group * range.quads / weight.group_quads, x, at,
                             {x.words.data + first * kQuadWords, x.words.stride},
                             codes + first * kBits / 8 * kPanel + output, quads, output, sums, asks);
    };
    add(0, fetch.From(first));
    for (int output = kTileVectors * kLanes; output < kPanel; output += kTileVectors * kLanes)
      add(output, FetchNothing());
  }
}

// Codes of 4 bits to units of 8.
inline void WidenCodes(const uint32_t* codes, int64_t quads, uint32_t* target) {
  for (int64_t i = 0; i < quads; i += 2, codes += kPanel, target += 2 * kPanel)
    for (int output = 0; output < kPanel; output += kLanes) {
      const Words unit = Load<Words>(codes + output);
      Store(target + output, unit & 0x0f0f0f0fu);
      Store(target + kPanel + output, unit >> 4 & 0x0f0f0f0fu);
    }
}

template <typename Out>
struct QuantizedProduct {
  RoundedInputs x;
  int64_t first_token;
  QuantizedWeight weight;
  PanelResult<Out> result;

  // Rows from `first` on with the weight of another expert, of those that follow each other.
  QuantizedProduct OfExpert(int64_t expert, int64_t first, int64_t rows) const {
    return {x, first, weight.From(expert * result.panels()), result.Part(first, rows)};
  }

  // The panel that an item multiplies with.
  const uint32_t* PanelOf(int64_t item) const { return weight.Codes(result.Panel(item)); }

  // As PackedProduct's.
  template <typename Next>
  void Run(int64_t item, Scratch& scratch, const Next& next_panel) const {
    const int rows = result.Rows(item);
    const bool once = rows <= kIntegerRows;
    const size_t room = once || weight.bits == 8 ? 0 : std::max<int64_t>(kBlockQuads, x.group_quads) * kPanel;
    const Matrix<float> sums = {scratch.Get<float>(size_t(rows) * kPanel + room), kPanel};
    std::fill_n(sums.data, size_t(rows) * kPanel, 0.0f);
    uint32_t* const wide = reinterpret_cast<uint32_t*>(sums.Row(rows));
    const QuantizedWeight panel = weight.From(result.Panel(item));
    const int64_t step = once ? x.groups() : std::max<int64_t>(kBlockQuads / x.group_quads, 1);
    for (int64_t group = 0; group < x.groups(); group += step) {
      const GroupRange range = {group, std::min(group + step, x.groups()), x.group_quads, x.quads};
      const uint32_t* const codes = panel.codes + group * x.group_quads * weight.bits / 8 * kPanel;
      const InputBlock block = Block(result.FirstRow(item), group);
      if (once) {
        weight.bits == 8 ? AddGroups<8, kIntegerRows>(panel, codes, block, rows, range, sums, FetchNothing())
                         : AddGroups<4, kIntegerRows>(panel, codes, block, rows, range, sums, FetchNothing());
        continue;
      }
      const int64_t quads = std::min(range.end * x.group_quads, x.quads) - group * x.group_quads;
      const uint32_t* const after = codes + quads * weight.bits / 8 * kPanel;
      const uint32_t* const next = range.end < x.groups() ? after : next_panel();
      if (weight.bits == 4) WidenCodes(codes, quads, wide);
      AddTiles(panel, weight.bits == 4 ? wide : codes, block, rows, range, sums, next);
    }
    result.Finish(item, sums);
  }

 private:
  void AddTiles(const QuantizedWeight& panel, const uint32_t* codes, const InputBlock& block, int rows,
                GroupRange range, Matrix<float> sums, const uint32_t* next) const {
    const int tiles = Ceil(rows, kIntegerRows);
    const ptrdiff_t stride = kPanel * kQuad * weight.bits / 8;
    const FetchRows fetch = next == nullptr ? FetchRows{nullptr, 0} : FetchRows{reinterpret_cast<const char*>(next), stride};
    for (int tile = 0; tile < tiles; ++tile) {
      const int r = tile * kIntegerRows;
      AddGroups<8, kIntegerRows>(panel, codes, block.Rows(r), std::min(kIntegerRows, rows - r), range,
                                 {sums.Row(r), kPanel}, fetch.Share(tile, tiles));
    }
  }

  InputBlock Block(int64_t row, int64_t group) const {
    const int64_t token = first_token + row;
    return {{x.words.Row(token) + group * x.group_quads * kQuadWords, x.words.stride},
            {x.scales.Row(token) + group, x.scales.stride},
            {x.totals.Row(token) + group, x.totals.stride}};
  }
};

}  // namespace kernels

#endif  // PALLAS_KERNELS_CPU_QUANTIZED_PRODUCT_H_
