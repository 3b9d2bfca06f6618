// Vectors of float32 and the two kinds of operands that products are made of.
//
// A Unit is 32 bits of an operand: one float32, or a pair of bfloat16 that are neighbours along the summed axis. Every
// product of the package is a sum over units, so float32 and bfloat16 share one kernel.

#ifndef PALLAS_KERNELS_CPU_UNITS_H_
#define PALLAS_KERNELS_CPU_UNITS_H_

#include <cstddef>
#include <cstdint>
#include <cstring>

#if defined(__AVX512F__) || defined(__AVX2__) || defined(__FMA__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace kernels {

#if defined(__AVX512F__)
constexpr int kLanes = 16;
constexpr int kTileRows = 6;  // 6 x 4 accumulators and 4 operands of 32 registers
constexpr int kTileVectors = 4;
#elif defined(__AVX__)
constexpr int kLanes = 8;
constexpr int kTileRows = 6;  // 6 x 2 accumulators and 2 operands of 16 registers
constexpr int kTileVectors = 2;
#else
constexpr int kLanes = 4;
constexpr int kTileRows = 4;
constexpr int kTileVectors = 4;
#endif

typedef float Floats __attribute__((vector_size(4 * kLanes)));
typedef int32_t Ints __attribute__((vector_size(4 * kLanes)));
typedef uint32_t Words __attribute__((vector_size(4 * kLanes)));
typedef uint16_t Halves __attribute__((vector_size(2 * kLanes)));

inline int Ceil(int64_t value, int64_t divisor) { return static_cast<int>((value + divisor - 1) / divisor); }

// The bits of one bfloat16; a type of its own so that templates tell it from other integers.
struct Bfloat16 {
  uint16_t bits;
};

// The bits of one float16, IEEE's.
struct Float16 {
  uint16_t bits;
};

struct Pair {
  uint32_t bits;
};

template <typename Element>
struct UnitOf;
template <>
struct UnitOf<float> {
  using type = float;
  static constexpr int kElements = 1;
};
template <>
struct UnitOf<Bfloat16> {
  using type = Pair;
  static constexpr int kElements = 2;
};

template <typename To, typename From>
inline To BitCast(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

template <typename Vector, typename Source>
inline Vector Load(const Source* source) {
  Vector loaded;
  std::memcpy(&loaded, source, sizeof(loaded));
  return loaded;
}

template <typename Vector, typename Target>
inline void Store(Target* target, Vector stored) {
  std::memcpy(target, &stored, sizeof(stored));
}

inline Floats Broadcast(float value) { return value - Floats{}; }  // x - 0 is x, also for -0

inline Ints LaneNumbers() {
  Ints lanes;
  for (int i = 0; i < kLanes; ++i) lanes[i] = i;
  return lanes;
}

// a * b + c, rounded once where the machine can; the compiler is told never to contract on its own, so that every
// instance of a template rounds alike.
inline Floats MultiplyAdd(Floats a, Floats b, Floats c) {
#if defined(__AVX512F__)
  return _mm512_fmadd_ps(a, b, c);
#elif defined(__AVX__) && defined(__FMA__)
  return _mm256_fmadd_ps(a, b, c);
#elif defined(__aarch64__)
  return vfmaq_f32(c, a, b);
#else
  return a * b + c;
#endif
}

#if defined(__AVX512F__) || (defined(__AVX__) && defined(__FMA__)) || defined(__aarch64__)
constexpr bool kFusedMultiplyAdd = true;
#else
constexpr bool kFusedMultiplyAdd = false;
#endif

// gcc would carry what one round of a loop stored to the next in registers, of which there are too few.
inline void KeepInMemory() { asm volatile("" ::: "memory"); }

// acc + sum of the products of the units' elements.
inline Floats Accumulate(float x, Floats w, Floats acc) { return MultiplyAdd(Broadcast(x), w, acc); }

inline Floats FirstElements(Words pairs) { return BitCast<Floats>(pairs << 16); }
inline Floats SecondElements(Words pairs) { return BitCast<Floats>(pairs & 0xffff0000u); }

// The second product is added first, each sum rounded once: so does Intel's instruction.
inline Floats Accumulate(Pair x, Words w, Floats acc) {
#if defined(__AVX512BF16__)
  return _mm512_dpbf16_ps(acc, BitCast<__m512bh>(Words{} + x.bits), BitCast<__m512bh>(w));
#else
  acc = MultiplyAdd(Broadcast(BitCast<float>(x.bits & 0xffff0000u)), SecondElements(w), acc);
  return MultiplyAdd(Broadcast(BitCast<float>(x.bits << 16)), FirstElements(w), acc);
#endif
}

template <typename Unit>
struct OperandOf;
template <>
struct OperandOf<float> {
  using type = Floats;
};
template <>
struct OperandOf<Pair> {
  using type = Words;
};

// Bits of the nearest bfloat16, ties to even; NaN stays NaN.
inline Words RoundToBfloat16(Floats x) {
  const Words bits = BitCast<Words>(x);
  const Words rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  return x == x ? rounded : (bits >> 16) | 0x40u;
}

inline void StoreElements(float* target, Floats x) { Store(target, x); }

inline void StoreElements(Bfloat16* target, Floats x) {
#if defined(__AVX512BF16__)
  Store(target, _mm512_cvtneps_pbh(x));
#else
  Store(target, __builtin_convertvector(RoundToBfloat16(x), Halves));
#endif
}

inline Words LoadWide(const Bfloat16* source) {
#if defined(__AVX512F__)
  return BitCast<Words>(_mm512_cvtepu16_epi32(Load<__m256i>(source)));  // gcc 12 would do it in halves
#else
  return __builtin_convertvector(Load<Halves>(source), Words);
#endif
}

// Pairs of the elements of two rows.
inline Words LoadPairs(const Bfloat16* even, const Bfloat16* odd) {
#if defined(__AVX512BW__)
  // Words 2 i and 2 i + 1 of the result are words i and 32 + i of both.
  const Words zip = BitCast<Words>(LaneNumbers()) * 0x10001u + 0x200000u;
  const __m512i first = _mm512_castsi256_si512(Load<__m256i>(even));
  const __m512i second = _mm512_castsi256_si512(Load<__m256i>(odd));
  return BitCast<Words>(_mm512_permutex2var_epi16(first, BitCast<__m512i>(zip), second));
#else
  return LoadWide(even) | LoadWide(odd) << 16;
#endif
}

// Horizontal sum and maximum, each by one fixed tree.
inline float Sum(Floats x) {
#if defined(__AVX512F__)
  return _mm512_reduce_add_ps(x);
#else
  alignas(64) float lanes[kLanes];
  Store(lanes, x);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
  return lanes[0];
#endif
}

inline Floats Maximum(Floats a, Floats b) { return a > b ? a : b; }

inline float Largest(Floats x) {
#if defined(__AVX512F__)
  return _mm512_reduce_max_ps(x);
#else
  alignas(64) float lanes[kLanes];
  Store(lanes, x);
  for (int half = kLanes / 2; half > 0; half /= 2)
    for (int i = 0; i < half; ++i) lanes[i] = lanes[i] > lanes[i + half] ? lanes[i] : lanes[i + half];
  return lanes[0];
#endif
}

}  // namespace kernels

#endif  // PALLAS_KERNELS_CPU_UNITS_H_
