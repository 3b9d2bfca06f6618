// Rows of a cache of 8-bit codes, as pallas_kernels/kv_codes.py defines them: of finite rows bit for bit.

#ifndef PALLAS_KERNELS_CPU_KV_CODES_H_
#define PALLAS_KERNELS_CPU_KV_CODES_H_

#include <algorithm>
#include <cstring>
#include <limits>

#include "cache.h"
#include "elements.h"

namespace kernels {

typedef int8_t Codes __attribute__((vector_size(kLanes)));

// Steps of a row, no larger than kLargest, to the codes of the nearest numbers, ties to even, and back.
struct Int8 {
  static constexpr float kLargest = 127.0f;

  static Ints Encode(Floats x) {
    const Floats magic = Broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
    return BitCast<Ints>(x + magic) - BitCast<Ints>(magic);
  }
  static Floats Decode(const char* codes) {
#if defined(__AVX512F__)
    return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(Load<__m128i>(codes)));  // gcc 12 would do it in halves
#else
    return __builtin_convertvector(__builtin_convertvector(Load<Codes>(codes), Ints), Floats);
#endif
  }
};

// float8_e4m3fn: a sign, four bits of exponent with a bias of 7, three of mantissa. A code is the top of a float32 with
// another bias, except numbers below 2^-6, which are multiples of 2^-9.
struct Fp8 {
  static constexpr float kLargest = 448.0f;
  static constexpr uint32_t kBias = (127u - 7) << 3;
  static constexpr int kShift = 20;

  static Ints Encode(Floats x) {
    const Words bits = BitCast<Words>(x), size = bits & 0x7fffffffu;
    const Words normal = ((size + 0x7ffffu + ((size >> kShift) & 1u)) >> kShift) - kBias;
    const Floats magic = Broadcast(16384.0f);  // adding it rounds to a multiple of 2^-9
    const Words small = BitCast<Words>(BitCast<Floats>(size) + magic) - BitCast<Words>(magic);
    return BitCast<Ints>((BitCast<Floats>(size) < Broadcast(0x1p-6f) ? small : normal) | ((bits >> 24) & 0x80u));
  }
  static Floats Decode(const char* codes) {
#if defined(__AVX512BW__) && defined(__AVX512VL__)
    // float16 has the same parts with a bias of 15, and its small numbers are converted exactly.
    const __m256i halves = _mm256_slli_epi16(_mm256_cvtepi8_epi16(Load<__m128i>(codes)), 7);
    const __m256i no_copied_sign = _mm256_set1_epi16(static_cast<int16_t>(0xbfff));
    return _mm512_cvtph_ps(_mm256_and_si256(halves, no_copied_sign)) * Broadcast(256.0f);
#else
    const Words bits = BitCast<Words>(__builtin_convertvector(Load<Codes>(codes), Ints)), size = bits & 0x7fu;
    const Floats normal = BitCast<Floats>((size + kBias) << kShift);
    const Floats small = __builtin_convertvector(BitCast<Ints>(size), Floats) * Broadcast(0x1p-9f);
    return BitCast<Floats>(BitCast<Words>(size < 8u ? small : normal) | ((bits & 0x80u) << 24));
#endif
  }
};

// Call visit with the type of a format's codes.
template <typename Visit>
inline void WithCodes(Cache::Format format, const Visit& visit) {
  format == Cache::kInt8 ? visit(Int8()) : visit(Fp8());
}

// The largest magnitude of a row; NaN if it has one, since the bits of magnitudes are in their order.
template <typename Element>
inline float LargestMagnitude(const Element* row, int64_t elements) {
  Ints most = {};
  ForVectors(elements, [&](int64_t i, int count) {
    const Ints size = BitCast<Ints>(LoadSome(row + i, count)) & 0x7fffffff;
    most = size > most ? size : most;
  });
  int32_t largest = 0;
  for (int lane = 0; lane < kLanes; ++lane) largest = std::max<int32_t>(largest, most[lane]);
  return BitCast<float>(largest);
}

// The codes of a row of elements, and behind them its scale.
template <typename Code, typename Element>
inline void EncodeRow(const Element* row, int64_t elements, char* target) {
  float scale = LargestMagnitude(row, elements) * (1 / Code::kLargest);
  if (scale < std::numeric_limits<float>::min()) scale = 0.0f;
  const Floats inverse = Broadcast(1 / (scale == 0.0f ? 1.0f : scale));
  ForVectors(elements, [&](int64_t i, int count) {
    const Ints codes = scale == 0.0f ? Ints{} : Code::Encode(LoadSome(row + i, count) * inverse);
    const Codes bytes = __builtin_convertvector(codes, Codes);
    std::memcpy(target + i, &bytes, count);
  });
  std::memcpy(target + elements, &scale, sizeof(scale));
}

// Two vectors of elements.
inline void StoreTwo(float* target, Floats first, Floats second) {
  Store(target, first);
  Store(target + kLanes, second);
}

inline void StoreTwo(Bfloat16* target, Floats first, Floats second) {
#if defined(__AVX512BF16__)
  Store(target, _mm512_cvtne2ps_pbh(second, first));
#else
  StoreElements(target, first);
  StoreElements(target + kLanes, second);
#endif
}

// What a row of codes stands for, rounded to elements.
template <typename Code, typename Element>
inline void DecodeRow(const char* row, int64_t elements, Element* target) {
  const Floats scale = Broadcast(Load<float>(row + elements));
  int64_t i = 0;
  for (; i + 2 * kLanes <= elements; i += 2 * kLanes)
    StoreTwo(target + i, Code::Decode(row + i) * scale, Code::Decode(row + i + kLanes) * scale);
  ForVectors(elements - i, [&](int64_t at, int count) {
    char padded[kLanes] = {};
    std::memcpy(padded, row + i + at, count);
    StoreSome(target + i + at, Code::Decode(padded) * scale, count);
  });
}

}  // namespace kernels

#endif  // PALLAS_KERNELS_CPU_KV_CODES_H_
