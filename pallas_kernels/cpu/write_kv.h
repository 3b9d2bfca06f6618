// New keys and values to their slots of the blocked KV cache.

#ifndef PALLAS_KERNELS_CPU_WRITE_KV_H_
#define PALLAS_KERNELS_CPU_WRITE_KV_H_

#include <cstring>

#include "cache.h"
#include "kv_codes.h"

namespace kernels {

// Write token t's keys and values, [heads][head_dim] each, to slots[t]; a slot past the cache is padding. A cache of one
// part has no values of its own.
template <typename Element>
inline void WriteToken(const Cache& cache, const Element* k, const Element* v, int64_t t, int32_t slot) {
  if (slot < 0 || slot >= cache.num_blocks * cache.block_size) return;
  const int64_t block = slot / cache.block_size, offset = slot % cache.block_size;
  const auto write = [&](const Element* row, char* target) {
    if (cache.format == Cache::kElements) {
      std::memcpy(target, row, cache.row_bytes);
    } else {
      WithCodes(cache.format, [&](auto code) { EncodeRow<decltype(code)>(row, cache.head_dim, target); });
    }
  };
  for (int64_t head = 0; head < cache.heads; ++head) {
    const int64_t from = (t * cache.heads + head) * cache.head_dim;
    write(k + from, cache.Token(block, Cache::kKeys, head, offset));
    if (cache.parts > 1) write(v + from, cache.Token(block, Cache::kValues, head, offset));
  }
}

}  // namespace kernels

#endif  // PALLAS_KERNELS_CPU_WRITE_KV_H_
