// The function that XLA calls of gated delta nets. Shapes are checked here, so that a kernel never reads past an array.

#include <algorithm>

#include "arguments.h"
#include "chunks.h"
#include "gated_delta.h"
#include "parallel.h"

namespace kernels {
namespace {

using Vector = ffi::Buffer<ffi::F32, 1>;
using Table = ffi::Buffer<ffi::F32, 2>;
using Decays = ffi::Buffer<ffi::F32, 4>;
using State = ffi::Buffer<ffi::F32, 5>;

bool IsShape(const ffi::AnyBuffer& buffer, std::initializer_list<int64_t> sizes) {
  const auto shape = buffer.dimensions();
  return std::equal(shape.begin(), shape.end(), sizes.begin(), sizes.end());
}

template <typename Element>
void ComputeChunk(const DeltaBatch& batch, const ffi::AnyBuffer& x, const ffi::AnyBuffer& out, const Chunks& chunks,
                  int64_t chunk, int64_t key_head) {
  thread_local Scratch scratch;
  const int64_t tokens = chunks.tokens(chunk), span = batch.shape.span;
  DeltaHead<Element> head(batch, static_cast<const Element*>(x.untyped_data()),
                          static_cast<Element*>(out.untyped_data()), key_head, scratch);
  for (int64_t done = 0; done < tokens;) {
    const int64_t position = chunks.position(chunk) + done;
    const int64_t count = std::min(tokens - done, span - position % span);
    head.Compute({chunks.row(chunk), chunks.first(chunk) + done, position, static_cast<int>(count)});
    done += count;
  }
}

// State comes in as operands too, which are the results' memory where XLA need not keep them.
ffi::Error GatedDelta(ffi::ThreadPool pool, ffi::AnyBuffer x, Table a, Table b, Vector a_log, Vector dt_bias,
                      State, State, State, Decays, Scalar layer, Integers query_starts,
                      Integers context_lens, Integers rows, Scalar num_rows, ffi::Result<ffi::AnyBuffer> out,
                      ffi::Result<ffi::AnyBuffer> starts, ffi::Result<ffi::AnyBuffer> keys,
                      ffi::Result<ffi::AnyBuffer> changes, ffi::Result<ffi::AnyBuffer> decays) {
  const auto of_starts = starts->dimensions(), of_keys = keys->dimensions();
  if (of_starts.size() != 5 || of_keys.size() != 5) return Refuse("the state has other axes");
  const DeltaShape shape = {of_starts[0], of_starts[1], of_keys[2], of_starts[2], of_starts[3], of_starts[4],
                            of_keys[4]};
  if (!IsShape(*keys, {shape.rows, shape.layers, shape.key_heads, shape.key_dim, shape.span}) ||
      !IsShape(*changes, {shape.rows, shape.layers, shape.heads, shape.span, shape.value_dim}) ||
      !IsShape(*decays, {shape.rows, shape.layers, shape.heads, shape.span}) || shape.key_heads < 1 ||
      shape.heads % shape.key_heads != 0)
    return Refuse("the arrays of the state do not fit each other");
  if (shape.span % kLanes != 0 || shape.value_dim % kLanes != 0 || shape.span < 1)
    return Refuse("spans and values do not fill vectors");
  const int64_t tokens = out->dimensions()[0];
  if (ItemSize(x.element_type()) == 0 || out->element_type() != x.element_type())
    return Refuse("x and the result are not both float32 or both bfloat16");
  if (!IsShape(x, {tokens, shape.width()}) || !IsShape(*out, {tokens, shape.heads, shape.value_dim}) ||
      !IsShape(a, {tokens, shape.heads}) || !IsShape(b, {tokens, shape.heads}) || !IsShape(a_log, {shape.heads}) ||
      !IsShape(dt_bias, {shape.heads}))
    return Refuse("the inputs do not fit the state");
  const Chunks chunks(query_starts, context_lens, rows, num_rows);
  if (const char* reason = chunks.Check(tokens, shape.rows)) return Refuse(reason);
  const int64_t index = layer.typed_data()[0];
  if (index < 0 || index >= shape.layers) return Refuse("the layer does not exist");
  const auto data = [](ffi::Result<ffi::AnyBuffer>& part) { return static_cast<float*>(part->untyped_data()); };
  const DeltaBatch batch = {shape, index, a.typed_data(), b.typed_data(), a_log.typed_data(), dt_bias.typed_data(),
                            data(starts), data(keys), data(changes), data(decays)};
  ForEach(pool, chunks.count() * shape.key_heads, [&](int64_t item) {
    const int64_t chunk = chunks.count() - 1 - item / shape.key_heads;  // those of prompts, which take longest, come last
    const int64_t key_head = item % shape.key_heads;
    x.element_type() == ffi::F32 ? ComputeChunk<float>(batch, x, *out, chunks, chunk, key_head)
                                 : ComputeChunk<Bfloat16>(batch, x, *out, chunks, chunk, key_head);
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace kernels

KERNELS_HANDLER(GatedDelta, kernels::GatedDelta)
