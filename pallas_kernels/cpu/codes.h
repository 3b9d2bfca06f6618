// Codes of 2 to 8 bits, packed: how they become bytes and are multiplied.

#ifndef PALLAS_KERNELS_CPU_CODES_H_
#define PALLAS_KERNELS_CPU_CODES_H_

#include <cstdint>
#include <type_traits>
#include <utility>

#include "integers.h"
#include "panels.h"
#include "tile.h"

namespace kernels {

// Bits of the parts of a code: the low ones, and the high ones, if there are any.
constexpr int LowBits(int bits) { return bits == 8 ? 8 : bits == 2 ? 2 : 4; }
constexpr int HighBits(int bits) { return bits - LowBits(bits); }
// Quads of the unit: the fewest whose parts fill words of 32 bits.
constexpr int UnitQuads(int bits) { return 8 / (HighBits(bits) == 0 ? LowBits(bits) : HighBits(bits)); }

// Codes of `quad`, of those of a unit at `unit`, as bytes.
template <int kBits>
[[gnu::always_inline]] inline Words QuadOf(const uint32_t* unit, int quad) {
  constexpr int kLow = LowBits(kBits), kHigh = HighBits(kBits), kEach = 8 / kLow;
  constexpr uint32_t kMask = ((1u << kLow) - 1) * 0x01010101u;
  if constexpr (kBits == 8) return Load<Words>(unit + quad * kPanel);
  const Words low = Load<Words>(unit + quad / kEach * kPanel) >> (kLow * (quad % kEach)) & kMask;
  if constexpr (kHigh == 0) {
    return low;
  } else {
    constexpr uint32_t kHighMask = ((1u << kHigh) - 1) * 0x01010101u;
    const Words high = Load<Words>(unit + UnitQuads(kBits) / kEach * kPanel);
    return low | (high >> (kHigh * quad) & kHighMask) << kLow;
  }
}

// Ask the memory for `bytes` from `data` on, into the second-level cache. Addresses without memory do no harm.
KERNELS_FETCH inline void FetchBytes(uintptr_t data, int64_t bytes) {
  constexpr int64_t kLine = 64;
  for (int64_t i = 0; i < bytes; i += kLine) __builtin_prefetch(reinterpret_cast<const char*>(data + i), 0, 2);
}

// Codes that are read once are asked for this many bytes ahead, the fastest of 2 to 32 KiB on Zen 5.
constexpr uintptr_t kFetchAhead = 8192;

// Add to each sum the products of `quads` quads. `asks`: whether to ask for codes that are kFetchAhead bytes farther.
template <int kBits, int kRows>
[[gnu::always_inline]] inline void AddCodes(const uint32_t* inputs, const uint32_t* codes, int64_t quads, bool asks,
                                            Ints (&sums)[kRows][kIntegerVectors]) {
  constexpr int kUnit = UnitQuads(kBits), kUnitWords = kUnit * kBits / 8, kWords = kQuadWords * kTileRows;
  for (int64_t i = 0; i < quads; i += kUnit, codes += kUnitWords * kPanel) {
    if (asks) FetchBytes(reinterpret_cast<uintptr_t>(codes) + kFetchAhead, kUnitWords * kPanel * sizeof(*codes));
#pragma GCC unroll 8
    for (int part = 0; part < kUnit; ++part, inputs += kWords) {
      Words quad[kIntegerVectors];
#pragma GCC unroll 16
      for (int v = 0; v < kIntegerVectors; ++v) quad[v] = QuadOf<kBits>(codes + v * kLanes, part);
#pragma GCC unroll 16
      for (int r = 0; r < kRows; ++r)
#pragma GCC unroll 16
        for (int v = 0; v < kIntegerVectors; ++v) sums[r][v] = AddProducts(quad[v], inputs + r, sums[r][v]);
    }
  }
}

// Codes to units of 8 bits.
template <int kBits>
void WidenCodes(const uint32_t* codes, int64_t quads, uint32_t* target) {
  constexpr int kUnit = UnitQuads(kBits);
  for (int64_t i = 0; i < quads; i += kUnit, codes += kUnit * kBits / 8 * kPanel, target += kUnit * kPanel)
    for (int output = 0; output < kPanel; output += kLanes)
#pragma GCC unroll 8
      for (int quad = 0; quad < kUnit; ++quad)
        Store(target + quad * kPanel + output, QuadOf<kBits>(codes + output, quad));
}

template <int... kBits>
using Widths = std::integer_sequence<int, kBits...>;

// Those of the codes that a library multiplies, or a source file: parts.py gives each its own.
using OwnWidths = Widths<KERNELS_BITS>;

template <int... kBits>
constexpr bool IsOneOf(int64_t bits, Widths<kBits...>) {
  return ((bits == kBits) || ...);
}

// Call visit with the number of bits, which is one of these, as a constant.
template <typename Visit, int... kBits>
void WithBits(int bits, Widths<kBits...>, const Visit& visit) {
  ((bits == kBits ? visit(std::integral_constant<int, kBits>()) : void()), ...);
}

}  // namespace kernels

#endif  // PALLAS_KERNELS_CPU_CODES_H_
