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

// A tile's rows of rounded inputs, from one group on.
struct InputTile {
  const uint32_t* words;
  const float* scales;
  const int32_t* offsets;
};

// Add to each sum the products of `quads` quads.
template <int kBits, int kRows, typename Fetch>
[[gnu::always_inline]] inline void AddCodes(const uint32_t* inputs, const uint32_t* codes, int64_t quads, Fetch fetch,
                                            Ints (&sums)[kRows][kIntegerVectors]) {
  constexpr int kParts = 8 / kBits, kWords = kQuadWords * kTileRows;
  for (int64_t i = 0; i < quads; i += kParts, codes += kPanel) {
    fetch(i / kParts);
    Words unit[kIntegerVectors];
#pragma GCC unroll 16
    for (int v = 0; v < kIntegerVectors; ++v) unit[v] = Load<Words>(codes + v * kLanes);
#pragma GCC unroll 2
    for (int part = 0; part < kParts; ++part, inputs += kWords) {
      Words quad[kIntegerVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kIntegerVectors; ++v) quad[v] = kBits == 8 ? unit[v] : unit[v] >> (4 * part) & 0x0f0f0f0fu;
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 16
        for (int v = 0; v < kIntegerVectors; ++v) sums[r][v] = AddProducts(quad[v], inputs + r, sums[r][v]);
    }
  }
}

// Exact sums begin at kMagic's bits, so that as bits of a float they are kMagic + the sum: 1.5 * 2^23, beside which any
// integer of less than 2^22 fits. Sums are less: 128 inputs of at most 127 times codes that are at most 255 from zero.
constexpr float kMagic = 12582912.0f;

// sum * scale, rounded once: as (sum + kMagic) * scale - kMagic * scale, whose last product is exact if scales have few
// bits, as bfloat16's.
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
template <int kBits, int kRows, typename Fetch>
[[gnu::always_inline]] inline void AddGroup(const QuantizedWeight& weight, int64_t group, const InputTile& x,
                                            const uint32_t* codes, int64_t quads, int output, float* sums,
                                            Fetch fetch) {
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
  AddCodes<kBits, kRows>(x.words, codes + output, quads, fetch, exact);
#pragma GCC unroll 16
  for (int v = 0; v < kIntegerVectors; ++v) {
    const GroupScale scaled(weight.Scales(group, output + v * kLanes), weight.scale_bytes == 2);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      float* const sum = sums + r * kPanel + output + v * kLanes;
      Store(sum, MultiplyAdd(scaled(exact[r][v]), Broadcast(x.scales[r]), Load<Floats>(sum)));
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

// Add the products of a range of groups. Codes of kBits, and `x`, are those from its first group on.
template <int kBits, int kRows, typename Fetch>
void AddGroups(const QuantizedWeight& weight, const uint32_t* codes, InputTile x, int rows, GroupRange range,
               float* sums, Fetch fetch) {
  if constexpr (kRows > 1) {
    if (rows < kRows) return AddGroups<kBits, kRows - 1>(weight, codes, x, rows, range, sums, fetch);
  }
  const int64_t units = range.quads * kBits / 8;
  int64_t of_weight = range.begin * range.quads / weight.group_quads;
  for (int64_t group = range.begin; group < range.end; ++group) {
    const int64_t quads = range.QuadsOf(group);
    if (group * range.quads == (of_weight + 1) * weight.group_quads) ++of_weight;
    AddGroup<kBits, kRows>(weight, of_weight, x, codes, quads, 0, sums, fetch);
    for (int output = kIntegerVectors * kLanes; output < kPanel; output += kIntegerVectors * kLanes)
      AddGroup<kBits, kRows>(weight, of_weight, x, codes, quads, output, sums, FetchNothing());
    x = {x.words + range.quads * kQuadWords * kTileRows, x.scales + kTileRows, x.offsets + kTileRows};
    codes += units * kPanel;
    fetch = fetch.From(units);
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
  int64_t first_tile;
  QuantizedWeight weight;
  PanelResult<Out> result;

  // Rows from `first` on with the weight of another expert, of those that follow each other.
  QuantizedProduct OfExpert(int64_t expert, int64_t first, int64_t rows) const {
    return {x, x.FirstTile(expert, first), weight.From(expert * result.panels()), result.Part(first, rows)};
  }

  // The panel that an item multiplies with.
  const uint32_t* PanelOf(int64_t item) const { return weight.Codes(result.Panel(item)); }

  // As PackedProduct's. What comes next is asked for also where a panel is read once: codes of few bits leave too little
  // time between one page and the next.
  template <typename Next>
  void Run(int64_t item, Scratch& scratch, const Next& next_panel) const {
    const int rows = result.Rows(item);
    const bool widen = weight.bits == 4 && rows > kTileRows;
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
      if (widen) {
        WidenCodes(codes, range.all_quads(), wide);
        AddTiles<8>(panel, item, wide, range, sums, next);
      } else {
        weight.bits == 8 ? AddTiles<8>(panel, item, codes, range, sums, next)
                         : AddTiles<4>(panel, item, codes, range, sums, next);
      }
      codes = after;
    }
  }

 private:
  template <int kBits>
  void AddTiles(const QuantizedWeight& panel, int64_t item, const uint32_t* codes, GroupRange range,
                Matrix<float> sums, const uint32_t* next) const {
    const ptrdiff_t stride = next == nullptr ? 0 : kPanel * kQuad * weight.bits / kBits;  // as many units are widened
    const FetchAhead fetch(next, stride);
    const int steps = static_cast<int>(range.all_quads() * kBits / 8);
    const int rows = result.Rows(item), tiles = Ceil(rows, kTileRows);
    const int64_t first = first_tile + result.FirstRow(item) / kTileRows;
    for (int tile = 0; tile < tiles; ++tile) {
      const int row = tile * kTileRows, some = std::min(kTileRows, rows - row);
      const int64_t value = x.Value(first + tile, range.begin);
      const InputTile inputs = {x.Words(first + tile, range.begin * range.quads), x.scales + value, x.offsets + value};
      AddGroups<kBits, kTileRows>(panel, codes, inputs, some, range, sums.Row(row), fetch.Share(tile, tiles, steps));
      if (range.end == x.groups()) result.Finish(item, sums, row, some);
    }
  }
};

}  // namespace kernels

#endif  // PALLAS_KERNELS_CPU_QUANTIZED_PRODUCT_H_
