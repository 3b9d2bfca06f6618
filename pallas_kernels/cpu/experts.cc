// The function that XLA calls for products of experts. Shapes and starts are checked here, as in handlers.cc.

#include "arguments.h"
#include "element.h"
#include "expert_product.h"
#include "packed_product.h"
#include "parallel.h"
#include "shares_impl.h"

namespace kernels {
namespace {

const char* CheckExperts(const ffi::AnyBuffer& x, const ffi::AnyBuffer& packed, const Scalar& layer,
                         const Integers& starts, const ffi::AnyBuffer& y) {
  const auto shape = packed.dimensions(), rows = x.dimensions(), made = y.dimensions();
  if (x.element_type() != packed.element_type() || x.element_type() != kElementType)
    return "x and the packed weights are not both of the library's type";
  if (y.element_type() != ffi::F32 && y.element_type() != x.element_type())
    return "the result is neither float32 nor of the type of x";
  const int64_t elements = 4 / ItemSize(x.element_type());
  if (shape.size() != 6 || shape[4] != kPanel || shape[5] != elements || rows.size() != 2 ||
      rows[1] != shape[3] * elements || made.size() != 2 || made[0] != rows[0] || Ceil(made[1], kPanel) != shape[2])
    return "x does not fit the packed weights";
  const int32_t index = layer.typed_data()[0];
  if (index < 0 || index >= shape[0]) return "the layer does not exist";
  return CheckStarts(starts, shape[1], rows[0]);
}

template <typename Out>
void Multiply(ffi::ThreadPool& pool, const ffi::AnyBuffer& x, const ffi::AnyBuffer& packed, int64_t layer,
              const Integers& starts, ffi::AnyBuffer& y) {
  const auto shape = packed.dimensions();
  const int64_t experts = shape[1], panels = shape[2], depth = shape[3];
  const PackedProduct<Unit, Out> all = {
      static_cast<const Unit*>(x.untyped_data()),
      static_cast<const Unit*>(packed.untyped_data()) + layer * experts * panels * depth * kPanel, depth,
      {static_cast<Out*>(y.untyped_data()), nullptr, y.dimensions()[0], y.dimensions()[1]}};
  const ExpertProduct product(all, starts.typed_data(), experts, pool.num_threads());
  ShareOut(pool, product.items(), Order::kNeighbours,
           [&](int64_t item, Claim& claim) { MultiplyShare(product, item, claim); });
}

ffi::Error MultiplyExperts(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer packed, Scalar layer,
                           Integers starts, ffi::Result<ffi::AnyBuffer> y) {
  if (const char* reason = CheckExperts(x, packed, layer, starts, *y)) return Refuse(reason);
  const int64_t index = layer.typed_data()[0];
  if (y->element_type() == ffi::F32) {
    Multiply<float>(pool, x, packed, index, starts, *y);
  } else {
    Multiply<Element>(pool, x, packed, index, starts, *y);
  }
  return ffi::Error::Success();
}

}  // namespace
}  // namespace kernels

KERNELS_HANDLER(ExpertProduct, kernels::MultiplyExperts)
