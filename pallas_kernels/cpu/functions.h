// Functions of real numbers, of a vector at a time, to a few units in the last place of float32.
//
// Subnormal results are zeros, as FlushSubnormals has it. Coefficients without a name are minimax fits in float64
// (Lawson's algorithm) of the relative error.

#ifndef PALLAS_KERNELS_CPU_FUNCTIONS_H_
#define PALLAS_KERNELS_CPU_FUNCTIONS_H_

#include "units.h"

namespace kernels {

// exp(x) for x <= 0, exactly 0 below -87 (and so for -inf), NaN for NaN. Cody and Waite's reduction
// x = n ln 2 + r and a Taylor polynomial of degree 7 on |r| <= ln 2 / 2.
inline Floats Exp(Floats x) {
  const Floats smallest = Broadcast(-87.0f);
  const Floats clamped = x < smallest ? smallest : x;
  const Floats magic = Broadcast(12582912.0f);  // 1.5 * 2^23: adding it rounds to an integer
  const Floats shifted = MultiplyAdd(clamped, Broadcast(1.44269504f), magic);
  const Floats n = shifted - magic;
  Floats r = MultiplyAdd(n, Broadcast(-0.693359375f), clamped);
  r = MultiplyAdd(n, Broadcast(2.12194440e-4f), r);
  Floats p = Broadcast(1.0f / 5040);
  p = MultiplyAdd(p, r, Broadcast(1.0f / 720));
  p = MultiplyAdd(p, r, Broadcast(1.0f / 120));
  p = MultiplyAdd(p, r, Broadcast(1.0f / 24));
  p = MultiplyAdd(p, r, Broadcast(1.0f / 6));
  p = MultiplyAdd(p, r, Broadcast(0.5f));
  p = MultiplyAdd(p, r, Broadcast(1.0f));
  p = MultiplyAdd(p, r, Broadcast(1.0f));
  const Ints exponent = (BitCast<Ints>(shifted) - BitCast<Ints>(magic)) << 23;
  const Floats scaled = BitCast<Floats>(BitCast<Ints>(p) + exponent);
  return x < smallest ? Floats{} : scaled;
}

inline float Exp(float x) { return Exp(Broadcast(x))[0]; }

// Sum of coefficient times x^i, the highest power's coefficient first.
template <int kCount>
inline Floats Polynomial(const float (&coefficients)[kCount], Floats x) {
  Floats sum = Broadcast(coefficients[0]);
#pragma GCC unroll 16
  for (int i = 1; i < kCount; ++i) sum = MultiplyAdd(sum, x, Broadcast(coefficients[i]));
  return sum;
}

// tanh(x). Near zero (1 - e) / (1 + e) would cancel; there x + x^3 p(x^2).
inline Floats Tanh(Floats x) {
  constexpr float kNearZero[] = {-5.71703656e-3f, 2.06505790e-2f, -5.37434953e-2f, 1.33314912e-1f, -3.33332839e-1f};
  const Floats zero = {}, one = Broadcast(1.0f);
  const Floats size = x < zero ? -x : x, square = x * x;
  const Floats small = Exp(size * Broadcast(-2.0f));
  const Floats far = (one - small) / (one + small);
  const Floats near = MultiplyAdd(x * square, Polynomial(kNearZero, square), x);
  return size < Broadcast(0.625f) ? near : (x < zero ? -far : far);
}

// NaN stays NaN.
inline Floats Clamp(Floats x, float least, float most) {
  const Floats low = Broadcast(least), high = Broadcast(most);
  return x < low ? low : (x > high ? high : x);
}

typedef double Doubles __attribute__((vector_size(8 * kLanes)));

// A number as its nearest float32 and what that lacks: an exponential's argument needs more digits than its result.
struct Argument {
  Floats nearest, rest;
};

// f(x) for an f of float64.
template <typename Function>
inline Argument InFloat64(Floats x, const Function& f) {
  const Doubles exact = f(__builtin_convertvector(x, Doubles));
  const Floats nearest = __builtin_convertvector(exact, Floats);
  return {nearest, __builtin_convertvector(exact - __builtin_convertvector(nearest, Doubles), Floats)};
}

// 1 / (1 + exp(-x)), of x and exp(-|x|).
inline Floats SigmoidOf(Floats x, Floats small) {
  const Floats one = Broadcast(1.0f);
  return (x < Floats{} ? small : one) / (one + small);
}

inline Floats Sigmoid(Floats x) { return SigmoidOf(x, Exp(x < Floats{} ? x : -x)); }

inline Floats Sigmoid(Argument x) {
  const Floats small = Exp(x.nearest < Floats{} ? x.nearest : -x.nearest);
  return SigmoidOf(x.nearest, MultiplyAdd(small, x.nearest < Floats{} ? x.rest : -x.rest, small));
}

// The share of the standard normal distribution below x. That below -t is exp(-t^2 / 2) r(t), where r falls slowly, and
// r(t) (t + k) is a polynomial of (t - k) / (t + k).
inline Floats NormalCdf(Floats x) {
  constexpr float kTail[] = {-1.58340165e-4f, -3.12716397e-4f, 6.84545750e-4f,  2.52487343e-3f, -1.60065397e-3f,
                             -1.63864339e-2f, 9.23582010e-3f,  1.31987000e-1f, -4.33692009e-1f, 7.06656660e-1f};
  const Floats zero = {}, one = Broadcast(1.0f), k = Broadcast(2.5f);
  const Floats size = Clamp(x < zero ? -x : x, 0.0f, 16.0f), inverse = one / (size + k);
  const Argument power = InFloat64(size, [](const Doubles& t) { return t * t * -0.5; });
  const Floats nearest = Exp(power.nearest), peak = MultiplyAdd(nearest, power.rest, nearest);
  const Floats tail = Polynomial(kTail, (size - k) * inverse) * inverse * peak;
  return x < zero ? tail : one - tail;
}

}  // namespace kernels

#endif  // PALLAS_KERNELS_CPU_FUNCTIONS_H_
