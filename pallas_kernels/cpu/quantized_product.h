// y = x weight^T, or residual + that, of rounded inputs and a weight of 2 to 8 bits: (code - zero) * scale, or
// code * scale + minimum.
//
// In each group of inputs a sum is of integers and exact; it is made one of float32 and added to those of the groups
// before it, in their order. So a result's bits depend on its own row and weight alone.

#ifndef PALLAS_KERNELS_CPU_QUANTIZED_PRODUCT_H_
#define PALLAS_KERNELS_CPU_QUANTIZED_PRODUCT_H_

#include <algorithm>

#include "codes.h"
#include "factors.h"
#include "panels.h"
#include "rounded_inputs.h"
#include "scratch.h"
#include "tile.h"

namespace kernels {

constexpr int kBlockQuads = 128;  // 32 KiB of codes of 8 bits, which stay in the first-level cache for all rows

struct QuantizedWeight {
  const uint32_t* codes;  // [panels][words][kPanel]: units, each of its words of low parts and then those of high ones
  Factors scales, minimums;
  const uint8_t* zeros;   // as the scales, or null
  int bits;
  int64_t words, group_quads;

  const uint32_t* Codes(int64_t panel) const { return codes + panel * words * kPanel; }

  QuantizedWeight From(int64_t panel) const {
    return {Codes(panel), scales.From(panel), minimums.From(panel),
            zeros == nullptr ? nullptr : zeros + panel * scales.groups * kPanel, bits, words, group_quads};
  }

  Ints Zeros(int64_t group, int output) const { return LoadBytes(zeros + group * kPanel + output); }
};

// A tile's rows of rounded inputs, from one group on.
struct InputTile {
  const uint32_t* words;
  const float* scales;
  const int32_t* offsets;
  const float* totals;

  // From the group after the first on, which has `quads` quads.
  InputTile Next(int64_t quads) const {
    return {words + quads * kQuadWords * kTileRows, scales + kTileRows, offsets + kTileRows, totals + kTileRows};
  }
};

// Exact sums begin at kMagic's bits, so that as bits of a float they are kMagic + the sum: 1.5 * 2^23, next to which any
// integer of less than 2^22 fits. Sums are less: 128 inputs of at most 127 times codes that are at most 255 from zero.
constexpr float kMagic = 12582912.0f;

// sum * scale, rounded once: as (sum + kMagic) * scale - kMagic * scale, whose last product is exact if scales have few
// bits, as those of 16 bits, and integers times such.
struct GroupScale {
  Floats scale, shift;
  bool few_bits;

  GroupScale(Floats scale, bool few_bits) : scale(scale), shift(Broadcast(-kMagic) * scale), few_bits(few_bits) {}

  Floats operator()(Ints sum) const {
    const Floats shifted = BitCast<Floats>(sum);
    return kFusedMultiplyAdd && few_bits ? MultiplyAdd(shifted, scale, shift) : (shifted - Broadcast(kMagic)) * scale;
  }
};

// Add the products of one group, of the weight's group `group`, to the sums [rows][kPanel] from the first `output` on.
template <int kBits, int kRows>
[[gnu::always_inline]] inline void AddGroup(const QuantizedWeight& weight, int64_t group, const InputTile& x,
                                            const uint32_t* codes, int64_t quads, int output, float* sums, bool asks) {
  Ints exact[kRows][kIntegerVectors];
#pragma GCC unroll 16
  for (int v = 0; v < kIntegerVectors; ++v) {
    if (weight.zeros != nullptr) {
      const Ints zeros = weight.Zeros(group, output + v * kLanes);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) exact[r][v] = Broadcast(x.offsets[r]) * zeros + BitCast<int32_t>(kMagic);
    } else {
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r) exact[r][v] = Broadcast(x.offsets[r] + BitCast<int32_t>(kMagic));
    }
  }
  AddCodes<kBits, kRows>(x.words, codes + output, quads, CodeFetch<2, 8192>{asks}, exact);
  const bool has_minimums = weight.minimums.exist();
  const Float16* const scale_block = weight.scales.OfBlock(group);
  const Float16* const minimum_block = has_minimums ? weight.minimums.OfBlock(group) : nullptr;
#pragma GCC unroll 16
  for (int v = 0; v < kIntegerVectors; ++v) {
    const int first = output + v * kLanes;
    const GroupScale scaled(weight.scales.At(group, scale_block, first), weight.scales.HasFewBits());
    const Floats minimums = has_minimums ? weight.minimums.At(group, minimum_block, first) : Floats{};
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      float* const at = sums + r * kPanel + first;
      const Floats sum = MultiplyAdd(scaled(exact[r][v]), Broadcast(x.scales[r]), Load<Floats>(at));
      Store(at, has_minimums ? MultiplyAdd(minimums, Broadcast(x.totals[r]), sum) : sum);
    }
  }
  KeepInMemory();
}

// Groups [begin, end) of the inputs.
struct GroupRange {
  int64_t begin, end, quads, row_quads;  // of a group, and of a whole row

  int64_t QuadsOf(int64_t group) const { return std::min(quads, row_quads - group * quads); }
  int64_t all_quads() const { return std::min(end * quads, row_quads) - begin * quads; }
};

// What a tile asks the memory for. Where codes are read once, these are the ones at a fixed distance: short codes
// leave the processor too little time to see that a page follows. Else it is at each group a part of what all tiles read
// next.
struct GroupFetch {
  bool reads_once;
  uintptr_t next;
  int64_t bytes;  // of a group's part

  KERNELS_FETCH void Next() {
    if (reads_once) return;
    FetchBytes(next, bytes);
    next += bytes;
  }
};

// Scales or minimums of a block's groups, where they are integers. The floats of the block are converted once for all.
struct BlockFactors {
  const int8_t* values;
  Floats of_block[kIntegerVectors];

  BlockFactors(const Factors& factors, int64_t group) : values(reinterpret_cast<const int8_t*>(factors.values)) {
#pragma GCC unroll 16
    for (int v = 0; v < kIntegerVectors; ++v) of_block[v] = LoadFloats(factors.OfBlock(group) + v * kLanes);
  }

  // As Factors::At.
  Floats At(int64_t group, int v) const {
    return ToFloats(LoadSignedBytes(values + group * kPanel + v * kLanes)) * of_block[v];
  }
  KERNELS_FETCH void Fetch(int64_t group) const { CodeFetch<1, 2048>()(values + group * kPanel, kPanel); }
};

// Add the products of a range of groups of one row, whose scales are integers. The operations are AddGroup's, with the
// same bits; sums and the floats of a block stay in registers. A panel has kIntegerVectors vectors.
template <int kBits, bool kHasMinimums>
void AddBlocks(const QuantizedWeight& weight, const uint32_t* codes, InputTile x, GroupRange range, float* sums) {
  const int64_t words = range.quads * kBits / 8;
  for (int64_t group = range.begin; group < range.end;) {
    const int64_t end = std::min(group + weight.scales.block_groups, range.end);
    const BlockFactors scales(weight.scales, group), minimums(kHasMinimums ? weight.minimums : weight.scales, group);
    Floats sum[kIntegerVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kIntegerVectors; ++v) sum[v] = Load<Floats>(sums + v * kLanes);
    for (; group < end; ++group, codes += words * kPanel, x = x.Next(range.quads)) {
      scales.Fetch(group);
      if (kHasMinimums) minimums.Fetch(group);
      Ints exact[1][kIntegerVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kIntegerVectors; ++v) exact[0][v] = Broadcast(x.offsets[0] + BitCast<int32_t>(kMagic));
      AddCodes<kBits, 1>(x.words, codes, range.QuadsOf(group), CodeFetch<1, 4096>(), exact);
#pragma GCC unroll 16
      for (int v = 0; v < kIntegerVectors; ++v) {
        const GroupScale scaled(scales.At(group, v), true);
        sum[v] = MultiplyAdd(scaled(exact[0][v]), Broadcast(x.scales[0]), sum[v]);
        if (kHasMinimums) sum[v] = MultiplyAdd(minimums.At(group, v), Broadcast(x.totals[0]), sum[v]);
      }
    }
#pragma GCC unroll 16
    for (int v = 0; v < kIntegerVectors; ++v) Store(sums + v * kLanes, sum[v]);
  }
}

// Add the products of a range of groups. Codes of kBits, and `x`, are those from its first group on.
template <int kBits, int kRows>
void AddGroups(const QuantizedWeight& weight, const uint32_t* codes, InputTile x, int rows, GroupRange range,
               float* sums, GroupFetch fetch) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return AddGroups<kBits, kRows - 1>(weight, codes, x, rows, range, sums, fetch);
  }
  if constexpr (kRows == 1 && kBits != 8 && kIntegerVectors * kLanes == kPanel) {
    const bool in_blocks = weight.scales.kind == Factors::Kind::kInt8 && weight.zeros == nullptr;
    if (in_blocks && fetch.reads_once && range.quads == weight.group_quads) {
      return weight.minimums.exist() ? AddBlocks<kBits, true>(weight, codes, x, range, sums)
                                     : AddBlocks<kBits, false>(weight, codes, x, range, sums);
    }
  }
  const int64_t words = range.quads * kBits / 8;
  int64_t of_weight = range.begin * range.quads / weight.group_quads;
  for (int64_t group = range.begin; group < range.end; ++group) {
    const int64_t quads = range.QuadsOf(group);
    if (group * range.quads == (of_weight + 1) * weight.group_quads) ++of_weight;
    fetch.Next();
    AddGroup<kBits, kRows>(weight, of_weight, x, codes, quads, 0, sums, fetch.reads_once);
    for (int output = kIntegerVectors * kLanes; output < kPanel; output += kIntegerVectors * kLanes)
      AddGroup<kBits, kRows>(weight, of_weight, x, codes, quads, output, sums, false);
    x = x.Next(range.quads);
    codes += words * kPanel;
  }
}

template <typename Out>
struct QuantizedProduct {
  RoundedInputs x;
  int64_t first_tile;
  QuantizedWeight weight;
  PanelResult<Out> result;

  // Rows from `first` on with the weight of another expert, in a stack of experts.
  QuantizedProduct OfExpert(int64_t expert, int64_t first, int64_t rows) const {
    return {x, x.FirstTile(expert, first), weight.From(expert * result.panels()), result.Part(first, rows)};
  }

  // The panel that an item multiplies with.
  const uint32_t* PanelOf(int64_t item) const { return weight.Codes(result.Panel(item)); }

  // As PackedProduct's.
  template <typename Next>
  void Run(int64_t item, Scratch& scratch, const Next& next_panel) const {
    const int rows = result.Rows(item);
    const bool widen = weight.bits != 8 && rows > kTileRows;
    const size_t room = widen ? std::max<int64_t>(kBlockQuads, x.group_quads) * kPanel : 0;
    const Matrix<float> sums = {scratch.Get<float>(size_t(rows) * kPanel + room), kPanel};
    std::fill_n(sums.data, size_t(rows) * kPanel, 0.0f);
    uint32_t* const wide = reinterpret_cast<uint32_t*>(sums.Row(rows));
    const QuantizedWeight panel = weight.From(result.Panel(item));
    const uint32_t* codes = panel.codes;
    const int64_t step = std::max<int64_t>(kBlockQuads / x.group_quads, 1);
    for (int64_t group = 0; group < x.groups(); group += step) {
      const GroupRange range = {group, std::min(group + step, x.groups()), x.group_quads, x.quads};
      const uint32_t* const after = codes + range.all_quads() * weight.bits / 8 * kPanel;
      const uint32_t* const next = range.end < x.groups() ? after : next_panel();
      WithBits(weight.bits, OwnWidths(), [&](auto bits) {
        if (widen) {
          WidenCodes<bits()>(codes, range.all_quads(), wide);
          AddTiles<8>(panel, item, wide, range, sums, next);
        } else {
          AddTiles<bits()>(panel, item, codes, range, sums, next);
        }
      });
      codes = after;
    }
  }

 private:
  template <int kBits>
  void AddTiles(const QuantizedWeight& panel, int64_t item, const uint32_t* codes, GroupRange range,
                Matrix<float> sums, const uint32_t* next) const {
    const int rows = result.Rows(item), tiles = Ceil(rows, kTileRows);
    const int64_t first = first_tile + result.FirstRow(item) / kTileRows, groups = range.end - range.begin;
    const int64_t fetched = next == nullptr ? 0 : range.quads * kPanel * weight.bits / 2 / tiles;
    for (int tile = 0; tile < tiles; ++tile) {
      const int row = tile * kTileRows, some = std::min(kTileRows, rows - row);
      const int64_t value = x.Value(first + tile, range.begin);
      const InputTile inputs = {x.Words(first + tile, range.begin * range.quads), x.scales + value, x.offsets + value,
                                x.totals + value};
      const uintptr_t share = reinterpret_cast<uintptr_t>(next) + tile * groups * fetched;
      AddGroups<kBits, kTileRows>(panel, codes, inputs, some, range, sums.Row(row), {tiles == 1, share, fetched});
      if (range.end == x.groups()) result.Finish(item, sums, row, some);
    }
  }
};

}  // namespace kernels

#endif  // PALLAS_KERNELS_CPU_QUANTIZED_PRODUCT_H_
