// Products of bytes, summed in 32-bit integers: a weight's codes, 0 to 255, and rounded inputs, -127 to 127.
//
// Four neighbours along the summed axis, a quad, are 32 bits of codes. No path saturates, so that all sums are exact.

#ifndef PALLAS_KERNELS_CPU_INTEGERS_H_
#define PALLAS_KERNELS_CPU_INTEGERS_H_

#include "units.h"

namespace kernels {

constexpr int kQuad = 4;

typedef int8_t SignedBytes __attribute__((vector_size(kLanes)));
typedef uint8_t Bytes __attribute__((vector_size(kLanes)));

inline Ints LoadBytes(const uint8_t* source) {
#if defined(__AVX512F__)
  return BitCast<Ints>(_mm512_cvtepu8_epi32(Load<__m128i>(source)));  // gcc 12 would do it in quarters
#else
  return __builtin_convertvector(Load<Bytes>(source), Ints);
#endif
}

inline Ints LoadSignedBytes(const int8_t* source) {
#if defined(__AVX512F__)
  return BitCast<Ints>(_mm512_cvtepi8_epi32(Load<__m128i>(source)));
#else
  return __builtin_convertvector(Load<SignedBytes>(source), Ints);
#endif
}

inline Floats ToFloats(Ints values) { return __builtin_convertvector(values, Floats); }

inline Ints Broadcast(int32_t value) { return Ints{} + value; }

#if defined(__AVX512VNNI__) || (defined(__AVXVNNI__) && !defined(__AVX512F__))

constexpr int kIntegerVectors = kTileVectors;  // of a product's tile
constexpr int kQuadWords = 1;                  // of 32 bits, that hold a quad of inputs

// Words lie kTileRows apart, so that those of a tile's rows are neighbours.
inline void StoreQuad(const int8_t* inputs, uint32_t* words) { std::memcpy(words, inputs, kQuad); }

// sum + the products of each lane's quad of codes with a quad of inputs.
inline Ints AddProducts(Words codes, const uint32_t* inputs, Ints sum) {
  const Words all = Words{} + *inputs;
#if defined(__AVX512VNNI__)
  return BitCast<Ints>(_mm512_dpbusd_epi32(BitCast<__m512i>(sum), BitCast<__m512i>(codes), BitCast<__m512i>(all)));
#else
  return BitCast<Ints>(_mm256_dpbusd_avx_epi32(BitCast<__m256i>(sum), BitCast<__m256i>(codes), BitCast<__m256i>(all)));
#endif
}

#else

constexpr int kIntegerVectors = kTileVectors / 2;  // whose operands take two registers each
constexpr int kQuadWords = 2;                      // inputs 0 and 2, then 1 and 3, in 16 bits each

inline void StoreQuad(const int8_t* inputs, uint32_t* words) {
  for (int odd = 0; odd < 2; ++odd)
    words[odd * kTileRows] = static_cast<uint16_t>(inputs[odd]) | static_cast<uint32_t>(static_cast<uint16_t>(inputs[odd + 2])) << 16;
}

// The same of two codes and two inputs of 16 bits.
inline Ints AddPairs(Words codes, uint32_t inputs, Ints sum) {
#if defined(__AVX512BW__)
  return sum + BitCast<Ints>(_mm512_madd_epi16(BitCast<__m512i>(codes), BitCast<__m512i>(Words{} + inputs)));
#elif defined(__AVX2__)
  return sum + BitCast<Ints>(_mm256_madd_epi16(BitCast<__m256i>(codes), BitCast<__m256i>(Words{} + inputs)));
#else
  const int32_t low = static_cast<int16_t>(inputs), high = static_cast<int16_t>(inputs >> 16);
  return sum + BitCast<Ints>(codes & 0xffffu) * low + BitCast<Ints>(codes >> 16) * high;
#endif
}

inline Ints AddProducts(Words codes, const uint32_t* inputs, Ints sum) {
  sum = AddPairs(codes & 0x00ff00ffu, inputs[0], sum);
  return AddPairs(codes >> 8 & 0x00ff00ffu, inputs[kTileRows], sum);
}

#endif

}  // namespace kernels

#endif  // PALLAS_KERNELS_CPU_INTEGERS_H_
