// New keys and values to their slots of the blocked KV cache.

#ifndef PALLAS_KERNELS_CPU_WRITE_KV_H_
#define PALLAS_KERNELS_CPU_WRITE_KV_H_

#include <cstring>

#include "cache.h"

namespace kernels {

// Copy token t's keys and values, [heads][head_dim] each, to slots[t]; a slot past the cache is padding.
inline void WriteToken(const Cache& cache, const char* k, const char* v, int64_t t, int32_t slot) {
  if (slot < 0 || slot >= cache.num_blocks * cache.block_size) return;
  const int64_t block = slot / cache.block_size, offset = slot % cache.block_size;
  const int64_t bytes = cache.token_bytes();
  for (int64_t head = 0; head < cache.heads; ++head) {
    const int64_t from = (t * cache.heads + head) * bytes;
    std::memcpy(cache.Token(block, Cache::kKeys, head, offset), k + from, bytes);
    std::memcpy(cache.Token(block, Cache::kValues, head, offset), v + from, bytes);
  }
}

}  // namespace kernels

#endif  // PALLAS_KERNELS_CPU_WRITE_KV_H_
