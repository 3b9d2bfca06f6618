// One layer of the blocked KV cache, [num_blocks][layers][2: K, V][heads][block_size][head_dim].

#ifndef PALLAS_KERNELS_CPU_CACHE_H_
#define PALLAS_KERNELS_CPU_CACHE_H_

#include <cstdint>

namespace kernels {

struct Cache {
  enum Part { kKeys = 0, kValues = 1 };

  char* data;
  int64_t num_blocks, layers, heads, block_size, head_dim, itemsize;
  int64_t layer;

  int64_t token_bytes() const { return head_dim * itemsize; }

  // The head_dim elements of one token of one head.
  char* Token(int64_t block, Part part, int64_t head, int64_t offset) const {
    return data + ((((block * layers + layer) * 2 + part) * heads + head) * block_size + offset) * token_bytes();
  }
};

}  // namespace kernels

#endif  // PALLAS_KERNELS_CPU_CACHE_H_
