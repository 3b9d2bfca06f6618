// Element-wise work on rows, and norms. A row's bits depend on that row alone.

#ifndef PALLAS_KERNELS_CPU_ELEMENTS_H_
#define PALLAS_KERNELS_CPU_ELEMENTS_H_

#include <cmath>
#include <cstdint>
#include <cstring>

#include "units.h"

namespace kernels {

inline Floats LoadFloats(const float* source) { return Load<Floats>(source); }
inline Floats LoadFloats(const Bfloat16* source) { return BitCast<Floats>(LoadWide(source) << 16); }

// Finite ones. Those below the normal numbers stay what they are where float32 of that kind are taken for zeros.
inline Floats LoadFloats(const Float16* source) {
#if defined(__AVX512F__)
  return _mm512_cvtph_ps(Load<__m256i>(source));
#elif defined(__F16C__)
  return _mm256_cvtph_ps(Load<__m128i>(source));
#else
  const Words bits = LoadWide(reinterpret_cast<const Bfloat16*>(source)), size = bits & 0x7fffu;
  const Words small = BitCast<Words>(__builtin_convertvector(BitCast<Ints>(size), Floats) * Broadcast(0x1p-24f));
  const Words normal = (size << 13) + (112u << 23);
  return BitCast<Floats>((size < 0x400u ? small : normal) | (bits & 0x8000u) << 16);
#endif
}

// Call visit(i, count) for each vector of a row: all kLanes elements, then what is left of them.
template <typename Visit>
inline void ForVectors(int64_t elements, const Visit& visit) {
  int64_t i = 0;
  for (; i + kLanes <= elements; i += kLanes) visit(i, kLanes);
  if (i < elements) visit(i, static_cast<int>(elements - i));
}

// Part of a vector, zeros behind it: so the last elements are computed as all others are.
template <typename Element>
inline Floats LoadSome(const Element* source, int count) {
  if (count == kLanes) return LoadFloats(source);
  Element padded[kLanes] = {};
  std::memcpy(padded, source, count * sizeof(Element));
  return LoadFloats(padded);
}

template <typename Element>
inline void StoreSome(Element* target, Floats x, int count) {
  if (count == kLanes) return StoreElements(target, x);
  Element padded[kLanes];
  StoreElements(padded, x);
  std::memcpy(target, padded, count * sizeof(Element));
}

// The nearest value that an element of the pointer's type can have.
inline Floats Rounded(const float*, Floats x) { return x; }
inline Floats Rounded(const Bfloat16*, Floats x) { return BitCast<Floats>(RoundToBfloat16(x) << 16); }

template <typename Element>
inline float MeanSquare(const Element* row, float mean, int64_t width) {
  Floats sum = {};
  ForVectors(width, [&](int64_t i, int count) {
    Floats x = LoadSome(row + i, count) - Broadcast(mean);
    for (int lane = count; lane < kLanes; ++lane) x[lane] = 0.0f;
    sum = MultiplyAdd(x, x, sum);
  });
  return Sum(sum) / static_cast<float>(width);
}

// out = weight * (x / rms(x)), the quotient rounded to the weight's type first.
template <typename Element, typename Weight>
inline void RmsNormRow(const Element* row, const Weight* weight, Element* out, int64_t width, float eps) {
  const Floats scale = Broadcast(1.0f / std::sqrt(MeanSquare(row, 0.0f, width) + eps));
  ForVectors(width, [&](int64_t i, int count) {
    const Floats normed = Rounded(weight, LoadSome(row + i, count) * scale);
    StoreSome(out + i, LoadSome(weight + i, count) * normed, count);
  });
}

// out = (x - mean) / std * weight + bias, rounded once.
template <typename Element, typename Weight>
inline void LayerNormRow(
    const Element* row, const Weight* weight, const Weight* bias, Element* out, int64_t width, float eps) {
  Floats sum = {};
  ForVectors(width, [&](int64_t i, int count) { sum += LoadSome(row + i, count); });
  const float mean = Sum(sum) / static_cast<float>(width);
  const Floats scale = Broadcast(1.0f / std::sqrt(MeanSquare(row, mean, width) + eps));
  ForVectors(width, [&](int64_t i, int count) {
    const Floats normed = (LoadSome(row + i, count) - Broadcast(mean)) * scale;
    StoreSome(out + i, MultiplyAdd(normed, LoadSome(weight + i, count), LoadSome(bias + i, count)), count);
  });
}

}  // namespace kernels

#endif  // PALLAS_KERNELS_CPU_ELEMENTS_H_
