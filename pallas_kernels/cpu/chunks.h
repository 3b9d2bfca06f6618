// The chunks of a step, as kernels with a state for each row take them.

#ifndef PALLAS_KERNELS_CPU_CHUNKS_H_
#define PALLAS_KERNELS_CPU_CHUNKS_H_

#include <cstdint>

#include "arguments.h"

namespace kernels {

// Chunk r has the tokens from starts[r] to starts[r + 1], the last of a context, and the state of rows[r].
class Chunks {
 public:
  Chunks(const Integers& starts, const Integers& context_lens, const Integers& rows, const Scalar& num_rows)
      : starts_(starts), context_lens_(context_lens), rows_(rows), count_(num_rows.typed_data()[0]) {}

  int64_t count() const { return count_; }
  int64_t first(int64_t r) const { return starts_.typed_data()[r]; }
  int64_t tokens(int64_t r) const { return starts_.typed_data()[r + 1] - first(r); }
  int64_t row(int64_t r) const { return rows_.typed_data()[r]; }
  // Of the first token, in its sequence.
  int64_t position(int64_t r) const { return context_lens_.typed_data()[r] - tokens(r); }

  // Why they cannot be computed without reading past an array, or null.
  const char* Check(int64_t num_tokens, int64_t num_states) const {
    const int64_t most = rows_.dimensions()[0];
    if (count_ < 0 || count_ > most || context_lens_.dimensions()[0] != most || starts_.dimensions()[0] != most + 1)
      return "more chunks than there are rows";
    if (first(0) != 0) return "the first chunk does not start at token 0";
    for (int64_t r = 0; r < count_; ++r) {
      if (tokens(r) < 0 || first(r + 1) > num_tokens) return "query_starts do not ascend within the tokens";
      if (position(r) < 0) return "a chunk is longer than its context";
      if (row(r) < 0 || row(r) >= num_states) return "a chunk's state does not exist";
    }
    return nullptr;
  }

 private:
  const Integers starts_, context_lens_, rows_;
  const int64_t count_;
};

}  // namespace kernels

#endif  // PALLAS_KERNELS_CPU_CHUNKS_H_
