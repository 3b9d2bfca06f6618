// One layer of the blocked KV cache, [num_blocks][layers][parts: K, V][heads][block_size][row]. In a cache of one part
// the values of a token are the first numbers of its keys.

#ifndef PALLAS_KERNELS_CPU_CACHE_H_
#define PALLAS_KERNELS_CPU_CACHE_H_

#include <cstdint>

namespace kernels {

struct Cache {
  enum Part { kKeys = 0, kValues = 1 };
  // What a row has: head_dim elements as the queries', or codes of 8 bits and a scale (kv_codes.h).
  enum Format { kElements, kInt8, kFp8 };

  static constexpr int64_t kScaleBytes = sizeof(float);

  char* data;
  int64_t num_blocks, layers, parts, heads, block_size, head_dim, row_bytes;
  int64_t layer;
  Format format;

  Part values() const { return parts == 1 ? kKeys : kValues; }

  // The row of one token of one head.
  char* Token(int64_t block, Part part, int64_t head, int64_t offset) const {
    return data + ((((block * layers + layer) * parts + part) * heads + head) * block_size + offset) * row_bytes;
  }
};

}  // namespace kernels

#endif  // PALLAS_KERNELS_CPU_CACHE_H_
