// What an attention call has to compute, cut into items of work.

#ifndef PALLAS_KERNELS_CPU_PLAN_H_
#define PALLAS_KERNELS_CPU_PLAN_H_

#include <algorithm>
#include <vector>

#include "pieces.h"

namespace kernels {

// Why the rows cannot be computed without reading past an array, or null.
inline const char* CheckRows(const Cache& cache, const AttentionBatch& batch) {
  if (batch.starts[0] != 0) return "the first row does not start at token 0";
  for (int64_t row = 0; row < batch.rows; ++row) {
    const int64_t length = int64_t{batch.starts[row + 1]} - batch.starts[row], context = batch.context_lens[row];
    if (length < 0 || batch.starts[row + 1] > batch.tokens) return "query_starts do not ascend within the tokens";
    if (length > context || context > batch.table_width * cache.block_size) return "a context does not fit its table";
    for (int64_t i = 0; i < Ceil(context, cache.block_size); ++i) {
      const int32_t block = batch.tables[row * batch.table_width + i];
      if (block < 0 || block >= cache.num_blocks) return "a table names a block that does not exist";
    }
  }
  return nullptr;
}

constexpr int64_t kLeastHeads = 4;  // of an item that has some of the heads of a KV head: each such item packs the keys

// Query tokens in tiles of about kTileQueries query heads; the longest walks come first. There is one item for each KV
// head, or several where threads would have none otherwise.
inline std::vector<AttentionItem> PlanItems(const Cache& cache, const AttentionBatch& batch, int64_t threads) {
  const int64_t group = batch.heads / cache.heads, tile = std::max<int64_t>(1, kTileQueries / group);
  int64_t tiles = 0;
  for (int64_t row = 0; row < batch.rows; ++row) tiles += Ceil(batch.starts[row + 1] - batch.starts[row], tile);
  const int64_t idle = threads / std::max<int64_t>(1, tiles * cache.heads);
  const int64_t parts = std::clamp<int64_t>(idle, 1, std::max<int64_t>(1, group / kLeastHeads));
  std::vector<AttentionItem> items;
  for (int32_t row = 0; row < batch.rows; ++row) {
    const int64_t start = batch.starts[row], end = batch.starts[row + 1];
    for (int64_t token = start; token < end; token += tile)
      for (int64_t i = 0; i < cache.heads * parts; ++i) {
        const int64_t head = i / parts, first = i % parts * group / parts, past = (i % parts + 1) * group / parts;
        items.push_back({row, static_cast<int32_t>(head), static_cast<int32_t>(head * group + first),
                         static_cast<int32_t>(past - first), token, std::min(tile, end - token),
                         batch.context_lens[row] - end + token});
      }
  }
  const auto work = [&](const AttentionItem& item) {
    const int64_t walked = std::min(item.end_position(), item.tokens + batch.window);
    return walked * (item.tokens + 4);  // packing a piece costs about as much as a few queries
  };
  std::stable_sort(items.begin(), items.end(), [&](const auto& a, const auto& b) { return work(a) > work(b); });
  return items;
}

}  // namespace kernels

#endif  // PALLAS_KERNELS_CPU_PLAN_H_
