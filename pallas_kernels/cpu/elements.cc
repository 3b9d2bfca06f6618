// The functions that XLA calls of norms, activations, rotary embedding and zeros. Shapes are checked here, so that a
// kernel never reads past an array.

#include <algorithm>
#include <string_view>

#include "activations.h"
#include "arguments.h"
#include "elements.h"
#include "parallel.h"
#include "rotary.h"
#include "units.h"
#include "zeros.h"

namespace kernels {

using Angles = ffi::Buffer<ffi::F32, 2>;

namespace {

// work(row) for the first num_tokens rows of `out`; the others are left as they are.
template <typename Work>
void ForRows(ffi::ThreadPool& pool, ffi::AnyBuffer& out, const Scalar& num_tokens, const Work& work) {
  constexpr int64_t kItemElements = 32768;  // fewer are done before another thread has woken up
  const int64_t rows = out.dimensions()[0], elements = static_cast<int64_t>(out.element_count());
  const int64_t width = elements / std::max<int64_t>(rows, 1);
  const int64_t real = std::clamp<int64_t>(num_tokens.typed_data()[0], 0, rows);
  const int64_t each = std::max<int64_t>(1, kItemElements / std::max<int64_t>(width, 1));
  ForEach(pool, Ceil(real, each), [&](int64_t item) {
    for (int64_t row = item * each; row < std::min(real, (item + 1) * each); ++row) work(row);
  });
}

// work(Element()) with the type of a buffer's elements.
template <typename Work>
void WithElement(const ffi::AnyBuffer& buffer, const Work& work) {
  buffer.element_type() == ffi::F32 ? work(float()) : work(Bfloat16());
}

const char* CheckNorm(const ffi::AnyBuffer& x, const ffi::AnyBuffer& weight, const ffi::AnyBuffer& out) {
  if (ItemSize(x.element_type()) == 0) return "x is neither float32 nor bfloat16";
  if (weight.element_type() != x.element_type() && weight.element_type() != ffi::F32)
    return "the weight is neither float32 nor of the type of x";
  if (out.element_type() != x.element_type()) return "x and result are not of one type";
  const auto shape = x.dimensions();
  if (shape.size() != 2 || weight.dimensions().size() != 1 || weight.dimensions()[0] != shape[1] ||
      out.dimensions().size() != 2 || out.dimensions()[0] != shape[0] || out.dimensions()[1] != shape[1])
    return "the weight does not fit x";
  return nullptr;
}

template <typename Element>
Element* RowOf(const ffi::AnyBuffer& buffer, int64_t row) {
  return static_cast<Element*>(buffer.untyped_data()) + row * buffer.dimensions()[1];
}

ffi::Error RmsNorm(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer weight, Scalar num_tokens,
                   ffi::Result<ffi::AnyBuffer> out, float eps) {
  if (const char* reason = CheckNorm(x, weight, *out)) return Refuse(reason);
  WithElement(x, [&](auto element) {
    WithElement(weight, [&](auto of_weight) {
      using Element = decltype(element);
      using Weight = decltype(of_weight);
      ForRows(pool, *out, num_tokens, [&](int64_t row) {
        RmsNormRow(RowOf<Element>(x, row), static_cast<const Weight*>(weight.untyped_data()),
                   RowOf<Element>(*out, row), x.dimensions()[1], eps);
      });
    });
  });
  return ffi::Error::Success();
}

ffi::Error LayerNorm(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer weight, ffi::AnyBuffer bias,
                     Scalar num_tokens, ffi::Result<ffi::AnyBuffer> out, float eps) {
  for (const ffi::AnyBuffer* buffer : {&weight, &bias})
    if (const char* reason = CheckNorm(x, *buffer, *out)) return Refuse(reason);
  if (weight.element_type() != bias.element_type()) return Refuse("weight and bias are not of one type");
  WithElement(x, [&](auto element) {
    WithElement(weight, [&](auto of_weight) {
      using Element = decltype(element);
      using Weight = decltype(of_weight);
      ForRows(pool, *out, num_tokens, [&](int64_t row) {
        LayerNormRow(RowOf<Element>(x, row), static_cast<const Weight*>(weight.untyped_data()),
                     static_cast<const Weight*>(bias.untyped_data()), RowOf<Element>(*out, row), x.dimensions()[1],
                     eps);
      });
    });
  });
  return ffi::Error::Success();
}

template <typename Element>
ffi::Error ActivateRows(ffi::ThreadPool& pool, const ffi::Buffer<ffi::F32, 2>& x, const Scalar& num_tokens,
                        ffi::AnyBuffer& out, RowActivation<Element> activate) {
  if (activate == nullptr) return Refuse("there is no activation of that name");
  const int64_t inputs = x.dimensions()[1], width = out.dimensions()[1];
  ForRows(pool, out, num_tokens,
          [&](int64_t row) { activate(x.typed_data() + row * inputs, RowOf<Element>(out, row), width); });
  return ffi::Error::Success();
}

template <bool kGated>
ffi::Error Activate(ffi::ThreadPool pool, ffi::Buffer<ffi::F32, 2> x, Scalar num_tokens,
                    ffi::Result<ffi::AnyBuffer> out, std::string_view name) {
  const auto shape = x.dimensions(), made = out->dimensions();
  if (made.size() != 2 || made[0] != shape[0] || (kGated ? 2 : 1) * made[1] != shape[1])
    return Refuse("the result does not fit what is activated");
  const auto activate = [&](auto element) {
    using Element = decltype(element);
    return ActivateRows<Element>(pool, x, num_tokens, *out,
                                 kGated ? GatedActivation<Element>(name) : PlainActivation<Element>(name));
  };
  if (ItemSize(out->element_type()) == 0) return Refuse("the result is neither float32 nor bfloat16");
  return out->element_type() == ffi::F32 ? activate(float()) : activate(Bfloat16());
}

ffi::Error RotatedHeads(ffi::ThreadPool pool, ffi::AnyBuffer x, Angles cos, Angles sin, Scalar num_tokens,
                        ffi::Result<ffi::AnyBuffer> out, int64_t first) {
  const auto shape = x.dimensions(), made = out->dimensions();
  if (ItemSize(x.element_type()) == 0 || out->element_type() != x.element_type())
    return Refuse("x and result are not both float32 or both bfloat16");
  if (shape.size() != 2 || made.size() != 3 || made[0] != shape[0] || first < 0 ||
      (first + made[1]) * made[2] > shape[1])
    return Refuse("x has no such heads");
  const int64_t half = cos.dimensions()[1], heads = made[1], width = made[2];
  for (const Angles* angles : {&cos, &sin})
    if (angles->dimensions()[0] != shape[0] || angles->dimensions()[1] != half || 2 * half > width)
      return Refuse("the angles do not fit the heads");
  WithElement(x, [&](auto element) {
    using Element = decltype(element);
    ForRows(pool, *out, num_tokens, [&](int64_t row) {
      const Element* const from = RowOf<Element>(x, row) + first * width;
      Element* const to = static_cast<Element*>(out->untyped_data()) + row * heads * width;
      for (int64_t i = 0; i < heads * width; i += width)
        RotateHead(from + i, cos.typed_data() + row * half, sin.typed_data() + row * half, to + i, width, half);
    });
  });
  return ffi::Error::Success();
}

ffi::Error Zeros(ffi::Result<ffi::AnyBuffer> out) {
  MakeZeros(static_cast<char*>(out->untyped_data()), out->size_bytes());
  return ffi::Error::Success();
}

}  // namespace
}  // namespace kernels

KERNELS_HANDLER(RmsNorm, kernels::RmsNorm, "eps")
KERNELS_HANDLER(LayerNorm, kernels::LayerNorm, "eps")
KERNELS_HANDLER(Activate, kernels::Activate<false>, "activation")
KERNELS_HANDLER(Gated, kernels::Activate<true>, "activation")
KERNELS_HANDLER(RotatedHeads, kernels::RotatedHeads, "first")
KERNELS_HANDLER(Zeros, kernels::Zeros)
