// The contexts that attention walks, piece after piece, item after item.

#ifndef PALLAS_KERNELS_CPU_PIECES_H_
#define PALLAS_KERNELS_CPU_PIECES_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cache.h"
#include "claim.h"
#include "pack.h"
#include "units.h"

namespace kernels {

constexpr int kPiece = 64;
constexpr int kTileQueries = 64;  // query heads that share one packed piece

struct AttentionBatch {
  const char* q;  // [tokens][heads][head_dim]
  char* out;      // [tokens][heads][value_dim]
  int64_t tokens, heads, value_dim;
  const int32_t *tables, *starts, *context_lens;
  int64_t rows, table_width;
  int64_t window;      // tokens that a query sees, its own the last of them
  const float* sinks;  // [heads], or null: none
  float scale, soft_cap;  // a cap of 0: none
};

// Consecutive query tokens of one row, and of their heads that share one KV head all or some that follow one another.
struct AttentionItem {
  int32_t row, kv_head, first_head, heads;
  int64_t first_token, tokens;  // within q
  int64_t first_position;       // of first_token, within the context

  int64_t end_position() const { return first_position + tokens; }
};

// Consecutive tokens of an item's context: their rows, where they lie in the cache. Rows of codes are not elements yet.
template <typename Element>
struct Piece {
  const AttentionItem* item = nullptr;  // null: there is none
  int64_t first = 0;
  int count = 0;
  const Element *keys[kPiece], *values[kPiece];
};

// A thread's way through the pieces of the items that it does: of an item all that any of its queries sees, from the
// oldest on.
template <typename Element>
class Pieces {
 public:
  // `zeros`: what stands behind the tokens of a piece, head_dim elements.
  Pieces(const Cache& cache, const AttentionBatch& batch, const std::vector<AttentionItem>& items, Claim& claim,
         const Element* zeros)
      : cache_(cache), batch_(batch), items_(items), claim_(claim), zeros_(zeros) {}

  // Where the way has come to; no item until Begin, or where Next found none.
  const Piece<Element>& here() const { return pieces_[at_]; }

  // To an item's first piece; none for kNone.
  void Begin(int64_t item) { Begin(item, pieces_[at_]); }

  // The piece after this one; behind an item's last the first of the next item, or none where that is not known yet.
  const Piece<Element>& Next() {
    Piece<Element>& next = pieces_[1 - at_];
    if (here().first + kPiece >= here().item->end_position()) {
      Begin(claim_.Ahead(), next);
    } else {
      next.item = here().item;
      Locate(here().first + kPiece, next);
    }
    return next;
  }

  // To what Next gave.
  void Advance() { at_ = 1 - at_; }

 private:
  void Begin(int64_t item, Piece<Element>& piece) const {
    piece.item = item == kNone ? nullptr : &items_[item];
    piece.count = 0;
    if (piece.item == nullptr) return;
    const int64_t position = piece.item->first_position;
    const int64_t oldest = std::max<int64_t>(0, position - batch_.window + 1);
    Locate(oldest / kPiece * kPiece, piece);
  }

  // Find the tokens of the piece that begins at `first`; behind them stand zeros, as far as a vector reaches.
  void Locate(int64_t first, Piece<Element>& piece) const {
    piece.first = first;
    piece.count = static_cast<int>(std::min<int64_t>(piece.item->end_position() - first, kPiece));
    for (int j = 0; j < piece.count;) {
      const int64_t entry = piece.item->row * batch_.table_width + (first + j) / cache_.block_size;
      const int64_t block = batch_.tables[entry], offset = (first + j) % cache_.block_size;
      const char* key = cache_.Token(block, Cache::kKeys, piece.item->kv_head, offset);
      const char* value = cache_.Token(block, cache_.values(), piece.item->kv_head, offset);
      const int end = j + static_cast<int>(std::min<int64_t>(piece.count - j, cache_.block_size - offset));
      for (; j < end; ++j, key += cache_.row_bytes, value += cache_.row_bytes) {
        piece.keys[j] = reinterpret_cast<const Element*>(key);
        piece.values[j] = reinterpret_cast<const Element*>(value);
      }
    }
    const int padding = Ceil(piece.count, kLanes) * kLanes - piece.count;
    std::fill_n(piece.keys + piece.count, padding, zeros_);
    std::fill_n(piece.values + piece.count, padding, zeros_);
  }

  const Cache& cache_;
  const AttentionBatch& batch_;
  const std::vector<AttentionItem>& items_;
  Claim& claim_;
  const Element* const zeros_;
  Piece<Element> pieces_[2];
  int at_ = 0;
};

}  // namespace kernels

#endif  // PALLAS_KERNELS_CPU_PIECES_H_
