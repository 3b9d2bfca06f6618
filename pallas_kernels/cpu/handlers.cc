// The functions that XLA calls of attention, cache writes and products. Shapes are checked here, so that a kernel never
// reads past an array.

#include <algorithm>
#include <optional>
#include <vector>

#include "arguments.h"
#include "element.h"
#include "packed_product.h"
#include "parallel.h"
#include "plan.h"
#include "shares.h"
#include "write_kv.h"

namespace kernels {
namespace {

using Sinks = std::optional<ffi::Buffer<ffi::F32, 1>>;

Cache::Format FormatOf(const ffi::AnyBuffer& cache) {
  if (cache.element_type() == ffi::S8) return Cache::kInt8;
  return cache.element_type() == ffi::U8 ? Cache::kFp8 : Cache::kElements;
}

Cache CacheOf(const ffi::AnyBuffer& buffer, const Scalar& layer) {
  const auto shape = buffer.dimensions();
  const Cache::Format format = FormatOf(buffer);
  const int64_t head_dim = shape[5] - (format == Cache::kElements ? 0 : Cache::kScaleBytes);
  const int64_t row_bytes = shape[5] * (format == Cache::kElements ? ItemSize(buffer.element_type()) : 1);
  return {static_cast<char*>(buffer.untyped_data()), shape[0], shape[1], shape[2], shape[3], shape[4], head_dim,
          row_bytes, layer.typed_data()[0], format};
}

const char* CheckCache(const ffi::AnyBuffer& cache, const Scalar& layer) {
  const auto shape = cache.dimensions();
  if (shape.size() != 6 || shape[2] < 1 || shape[2] > 2) return "the cache is neither [N, L, 2, K, B, W] nor [N, L, 1, K, B, W]";
  if (FormatOf(cache) != Cache::kElements) {
    if (shape[5] <= Cache::kScaleBytes) return "the cache's rows have no room for codes and a scale";
  } else if (ItemSize(cache.element_type()) == 0) {
    return "the cache is none of float32, bfloat16, int8 and uint8";
  }
  const int32_t index = layer.typed_data()[0];
  return index < 0 || index >= shape[1] ? "the layer does not exist" : nullptr;
}

// Whether numbers of this type can be written to the cache, or attend to it.
bool Fits(ffi::DataType type, const ffi::AnyBuffer& cache) {
  return type == kElementType && (FormatOf(cache) != Cache::kElements || type == cache.element_type());
}

void Attend(ffi::ThreadPool& pool, const Cache& cache, const AttentionBatch& batch,
            const std::vector<AttentionItem>& items) {
  ShareOut(pool, static_cast<int64_t>(items.size()), Order::kOne,
           [&](int64_t item, Claim& claim) { AttendShare<Element>(cache, batch, items, item, claim); });
}

ffi::Error Attention(ffi::ThreadPool pool, ffi::AnyBuffer q, ffi::AnyBuffer cache, Scalar layer, Tables tables,
                     Integers starts, Integers context_lens, Scalar num_rows, Scalar window, Sinks sinks,
                     ffi::Result<ffi::AnyBuffer> out, float scale, float soft_cap) {
  if (const char* reason = CheckCache(cache, layer)) return Refuse(reason);
  const auto shape = q.dimensions();
  const Cache view = CacheOf(cache, layer);
  if (!Fits(q.element_type(), cache) || shape.size() != 3 || shape[2] != view.head_dim ||
      shape[1] % view.heads != 0)
    return Refuse("q does not fit the cache");
  const auto made = out->dimensions();
  if (made.size() != 3 || made[0] != shape[0] || made[1] != shape[1] || made[2] > view.head_dim ||
      (view.parts == 2 && made[2] != view.head_dim))
    return Refuse("the result does not fit q and the values");
  if (window.typed_data()[0] < 1) return Refuse("the window is not positive");
  if (sinks && sinks->dimensions()[0] != shape[1]) return Refuse("there is not one sink for each query head");
  const AttentionBatch batch = {static_cast<const char*>(q.untyped_data()), static_cast<char*>(out->untyped_data()),
                                shape[0], shape[1], made[2], tables.typed_data(), starts.typed_data(),
                                context_lens.typed_data(), num_rows.typed_data()[0], tables.dimensions()[1],
                                window.typed_data()[0], sinks ? sinks->typed_data() : nullptr, scale, soft_cap};
  if (batch.rows < 0 || batch.rows > tables.dimensions()[0] || starts.dimensions()[0] != tables.dimensions()[0] + 1)
    return Refuse("more rows than there are tables");
  if (const char* reason = CheckRows(view, batch)) return Refuse(reason);
  const std::vector<AttentionItem> items = PlanItems(view, batch, pool.num_threads());
  Attend(pool, view, batch, items);
  return ffi::Error::Success();
}

void Write(ffi::ThreadPool& pool, const Cache& cache, const ffi::AnyBuffer& k, const ffi::AnyBuffer& v,
           const Integers& slots) {
  constexpr int64_t kTokensPerItem = 64;
  const int64_t tokens = slots.dimensions()[0];
  ForEach(pool, Ceil(tokens, kTokensPerItem), [&](int64_t item) {
    for (int64_t t = item * kTokensPerItem; t < std::min(tokens, (item + 1) * kTokensPerItem); ++t)
      WriteToken(cache, static_cast<const Element*>(k.untyped_data()), static_cast<const Element*>(v.untyped_data()), t,
                 slots.typed_data()[t]);
  });
}

// A cache of one part is given its rows twice, and writes them once.
ffi::Error WriteKV(ffi::ThreadPool pool, ffi::AnyBuffer, Scalar layer, ffi::AnyBuffer k, ffi::AnyBuffer v,
                   Integers slots, ffi::Result<ffi::AnyBuffer> cache) {
  if (const char* reason = CheckCache(*cache, layer)) return Refuse(reason);
  const Cache view = CacheOf(*cache, layer);
  const int64_t tokens = slots.dimensions()[0];
  for (const ffi::AnyBuffer* buffer : {&k, &v}) {
    const auto shape = buffer->dimensions();
    if (!Fits(buffer->element_type(), *cache) || buffer->element_type() != k.element_type() || shape.size() != 3 ||
        shape[0] != tokens || shape[1] != view.heads || shape[2] != view.head_dim)
      return Refuse("k or v does not fit the cache");
  }
  Write(pool, view, k, v, slots);
  return ffi::Error::Success();
}

template <typename Out>
void Multiply(ffi::ThreadPool& pool, const ffi::AnyBuffer& x, const ffi::AnyBuffer& packed, int64_t layer,
              int64_t tokens, const ffi::AnyBuffer* residual, ffi::AnyBuffer& y) {
  const auto shape = packed.dimensions();
  PackedProduct<Unit, Out> product = {
      static_cast<const Unit*>(x.untyped_data()),
      static_cast<const Unit*>(packed.untyped_data()) + layer * shape[1] * shape[2] * kPanel, shape[2],
      {static_cast<Out*>(y.untyped_data()),
       residual == nullptr ? nullptr : static_cast<const Out*>(residual->untyped_data()), tokens, y.dimensions()[1]}};
  product.result.Cut(Ceil(4 * pool.num_threads(), product.result.panels()));  // so that each thread has items
  ShareOut(pool, product.result.items(), Order::kNeighbours,
           [&](int64_t item, Claim& claim) { MultiplyShare(product, item, claim); });
}

ffi::Error Multiplied(ffi::ThreadPool& pool, const ffi::AnyBuffer& x, const ffi::AnyBuffer& packed,
                      const Scalar& layer, const Scalar& num_tokens, const ffi::AnyBuffer* residual,
                      ffi::AnyBuffer& y) {
  const auto shape = packed.dimensions(), rows = x.dimensions(), made = y.dimensions();
  if (x.element_type() != packed.element_type() || x.element_type() != kElementType)
    return Refuse("x and the packed weight are not both of the library's type");
  if (y.element_type() != ffi::F32 && y.element_type() != x.element_type())
    return Refuse("the result is neither float32 nor of the type of x");
  if (made.size() != 2) return Refuse("the result is not a matrix");
  const int64_t elements = 4 / ItemSize(x.element_type()), outputs = made[1];
  if (shape.size() != 5 || shape[3] != kPanel || shape[4] != elements || rows.size() != 2 ||
      rows[1] != shape[2] * elements || outputs > shape[1] * kPanel || made[0] != rows[0])
    return Refuse("x does not fit the packed weight");
  if (residual != nullptr) {
    const auto added = residual->dimensions();
    const bool same = std::equal(added.begin(), added.end(), made.begin(), made.end());
    if (!same || residual->element_type() != y.element_type())
      return Refuse("the residual is not of the result's shape and type");
  }
  const int64_t index = layer.typed_data()[0];
  if (index < 0 || index >= shape[0]) return Refuse("the layer does not exist");
  const int64_t tokens = std::clamp<int64_t>(num_tokens.typed_data()[0], 0, rows[0]);
  if (y.element_type() == ffi::F32) {
    Multiply<float>(pool, x, packed, index, tokens, residual, y);
  } else {
    Multiply<Element>(pool, x, packed, index, tokens, residual, y);
  }
  return ffi::Error::Success();
}

ffi::Error MultiplyPacked(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer packed, Scalar layer,
                          Scalar num_tokens, ffi::Result<ffi::AnyBuffer> y) {
  return Multiplied(pool, x, packed, layer, num_tokens, nullptr, *y);
}

ffi::Error AddMultiplied(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::AnyBuffer packed, Scalar layer,
                         Scalar num_tokens, ffi::AnyBuffer residual, ffi::Result<ffi::AnyBuffer> y) {
  return Multiplied(pool, x, packed, layer, num_tokens, &residual, *y);
}

}  // namespace
}  // namespace kernels

KERNELS_HANDLER(RaggedPagedAttention, kernels::Attention, "scale", "soft_cap")
KERNELS_HANDLER(WriteKV, kernels::WriteKV)
KERNELS_HANDLER(PackedProduct, kernels::MultiplyPacked)
KERNELS_HANDLER(PackedProductAdded, kernels::AddMultiplied)
