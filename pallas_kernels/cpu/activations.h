// Activations of an MLP: element by element, from float32 sums. A row's bits depend on that row alone.

#ifndef PALLAS_KERNELS_CPU_ACTIVATIONS_H_
#define PALLAS_KERNELS_CPU_ACTIVATIONS_H_

#include <string_view>

#include "elements.h"
#include "functions.h"

namespace kernels {

struct Relu {
  Floats operator()(Floats x) const { return Maximum(Floats{}, x); }  // NaN stays NaN
};

struct SquaredRelu {
  Floats operator()(Floats x) const { return Relu()(x) * Relu()(x); }
};

struct Silu {
  Floats operator()(Floats x) const { return x * Sigmoid(x); }
};

struct Gelu {
  Floats operator()(Floats x) const { return x * NormalCdf(x); }
};

// (1 + tanh(u)) / 2 is the sigmoid of 2 u, which does not cancel; u = sqrt(2 / pi) (x + 0.044715 x^3).
struct GeluTanh {
  Floats operator()(Floats x) const {
    constexpr double kTwice = 1.5957691216057308;
    const auto twice_u = [](const Doubles& y) { return kTwice * y * (1.0 + 0.044715 * y * y); };
    return x * Sigmoid(InFloat64(Clamp(x, -16.0f, 16.0f), twice_u));
  }
};

// An activation of the gate, times what is gated.
template <typename Activation>
struct Gated {
  Floats operator()(Floats gate, Floats up) const { return Activation()(gate) * up; }
};

// gpt-oss: gate * sigmoid(1.702 gate) * (up + 1) of a gate of at most 7 and an up of -7 to 7.
struct ClippedSwiglu {
  Floats operator()(Floats gate, Floats up) const {
    const Floats most = Broadcast(7.0f), clipped = gate > most ? most : gate;
    const Argument power = InFloat64(Clamp(gate, -64.0f, 7.0f), [](const Doubles& x) { return x * 1.702; });
    return clipped * Sigmoid(power) * (Clamp(up, -7.0f, 7.0f) + Broadcast(1.0f));
  }
};

// What computes a row of `width` elements of a result from its inputs, one row of all: x, or [gate, up].
template <typename Element>
using RowActivation = void (*)(const float* row, Element* out, int64_t width);

template <typename Activation, typename Element>
void ActivateRow(const float* row, Element* out, int64_t width) {
  ForVectors(width, [&](int64_t i, int count) { StoreSome(out + i, Activation()(LoadSome(row + i, count)), count); });
}

template <typename Activation, typename Element>
void ActivateGatedRow(const float* row, Element* out, int64_t width) {
  ForVectors(width, [&](int64_t i, int count) {
    StoreSome(out + i, Activation()(LoadSome(row + i, count), LoadSome(row + width + i, count)), count);
  });
}

// The one of that name, or null.
template <typename Element>
inline RowActivation<Element> PlainActivation(std::string_view name) {
  if (name == "relu") return ActivateRow<Relu, Element>;
  if (name == "relu2") return ActivateRow<SquaredRelu, Element>;
  if (name == "silu") return ActivateRow<Silu, Element>;
  if (name == "gelu") return ActivateRow<Gelu, Element>;
  return name == "gelu_tanh" ? ActivateRow<GeluTanh, Element> : nullptr;
}

template <typename Element>
inline RowActivation<Element> GatedActivation(std::string_view name) {
  if (name == "silu") return ActivateGatedRow<Gated<Silu>, Element>;
  if (name == "gelu") return ActivateGatedRow<Gated<Gelu>, Element>;
  if (name == "gelu_tanh") return ActivateGatedRow<Gated<GeluTanh>, Element>;
  return name == "swiglu_clipped" ? ActivateGatedRow<ClippedSwiglu, Element> : nullptr;
}

}  // namespace kernels

#endif  // PALLAS_KERNELS_CPU_ACTIVATIONS_H_
