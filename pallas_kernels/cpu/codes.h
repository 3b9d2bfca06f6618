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

// (x & mask) | y
inline Words AndOr(Words x, uint32_t mask, Words y) {
#if defined(__AVX512F__)
  constexpr int kFunction = 0xea;  // gcc 12 would take two instructions
  return BitCast<Words>(
      _mm512_ternarylogic_epi32(BitCast<__m512i>(x), BitCast<__m512i>(Words{} + mask), BitCast<__m512i>(y), kFunction));
#else
  return (x & mask) | y;
#endif
}

// Codes of `quad`, of those of a unit at `unit`, as bytes.
template <int kBits>
[[gnu::always_inline]] inline Words QuadOf(const uint32_t* unit, int quad) {
  constexpr int kLow = LowBits(kBits), kHigh = HighBits(kBits), kEach = 8 / kLow;
  constexpr uint32_t kMask = ((1u << kLow) - 1) * 0x01010101u;
  if constexpr (kBits == 8) return Load<Words>(unit + quad * kPanel);
  const Words low = Load<Words>(unit + quad / kEach * kPanel) >> (kLow * (quad % kEach));
  if constexpr (kHigh == 0) {
    return low & kMask;
  } else {
    constexpr uint32_t kHighMask = ((1u << kHigh) - 1) * 0x01010101u << kLow;
    const Words high = Load<Words>(unit + UnitQuads(kBits) / kEach * kPanel);
    const int up = kLow - kHigh * quad;  // to where they belong
    return AndOr(low, kMask, (up > 0 ? high << up : high >> -up) & kHighMask);
  }
}

// Ask the memory for `bytes` from `data` on, into the cache of this level. Addresses without memory do no harm.
template <int kLevel = 2>
KERNELS_FETCH inline void FetchBytes(uintptr_t data, int64_t bytes) {
  constexpr int64_t kLine = 64;
  for (int64_t i = 0; i < bytes; i += kLine) __builtin_prefetch(reinterpret_cast<const char*>(data + i), 0, 4 - kLevel);
}

// What is asked for while codes are read: those a number of bytes farther. The best distances were measured on Zen 5.
template <int kLevel, uintptr_t kAhead>
struct CodeFetch {
  bool asks = true;

  KERNELS_FETCH void operator()(const void* data, int64_t bytes) const {
    if (asks) FetchBytes<kLevel>(reinterpret_cast<uintptr_t>(data) + kAhead, bytes);
  }
};

// Add to each sum the products of `quads` quads. `fetch`: called with codes before they are read.
template <int kBits, int kRows, typename Fetch>
[[gnu::always_inline]] inline void AddCodes(const uint32_t* inputs, const uint32_t* codes, int64_t quads, Fetch fetch,
                                            Ints (&sums)[kRows][kIntegerVectors]) {
  constexpr int kUnit = UnitQuads(kBits), kUnitWords = kUnit * kBits / 8, kWords = kQuadWords * kTileRows;
  for (int64_t i = 0; i < quads; i += kUnit, codes += kUnitWords * kPanel) {
    fetch(codes, kUnitWords * kPanel * sizeof(*codes));
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
