// Causal attention of a ragged batch of query tokens over the blocked KV cache.
//
// A context is walked in pieces of kPiece tokens from its first one (pieces.h), folded from the left with the online
// softmax (Milakov and Gimelshein, arXiv 1805.02867). Whatever the batch, a query meets the same pieces in the same
// order with the same arithmetic; a piece in which it sees nothing changes no bit of it.

#ifndef PALLAS_KERNELS_CPU_ATTENTION_H_
#define PALLAS_KERNELS_CPU_ATTENTION_H_

#include <algorithm>
#include <limits>

#include "elements.h"
#include "functions.h"
#include "kv_codes.h"
#include "pack.h"
#include "pieces.h"
#include "scratch.h"
#include "tile.h"

namespace kernels {

constexpr int kPieceVectors = kPiece / kLanes;

struct AttentionScratch {
  Scratch q, keys, values, weights, scores, out, maxima, totals, zeros, decoded;
};

// One item's walk over the pieces of its context.
template <typename Element>
class AttentionWalk {
 public:
  using Unit = typename UnitOf<Element>::type;
  static constexpr int kElements = UnitOf<Element>::kElements;

  AttentionWalk(const Cache& cache, const AttentionBatch& batch, const AttentionItem& item, AttentionScratch& scratch)
      : cache_(cache),
        batch_(batch),
        item_(item),
        group_(item.heads),
        queries_(static_cast<int>(item.tokens) * group_),
        depth_(Ceil(cache.head_dim, kElements)),
        width_(Ceil(batch.value_dim, kLanes) * kLanes),
        decoded_width_(Ceil(cache.head_dim, kLanes) * kLanes),
        unit_(batch.soft_cap > 0 ? batch.soft_cap : batch.scale),
        values_as_they_are_(queries_ <= kTileRows && width_ == batch.value_dim),
        q_{scratch.q.Get<Unit>(size_t(queries_) * depth_), depth_},
        keys_{scratch.keys.Get<Unit>(size_t(depth_) * kPiece), kPiece},
        values_{scratch.values.Get<Unit>(size_t(kPiece) * width_), width_},
        weights_{scratch.weights.Get<Unit>(size_t(kTileRows) * kPiece), kPiece / kElements},
        scores_{scratch.scores.Get<float>(size_t(kTileRows) * kPiece), kPiece},
        out_{scratch.out.Get<float>(size_t(queries_) * width_), width_},
        maxima_(scratch.maxima.Get<float>(queries_)),
        totals_(scratch.totals.Get<float>(queries_)),
        rows_(cache.format == Cache::kElements
                  ? nullptr
                  : scratch.decoded.Get<Element>(size_t(cache.parts * kPiece) * decoded_width_)) {}

  // From the item's first piece, where `pieces` is, to what follows its last.
  void Run(Pieces<Element>& pieces) {
    Begin();
    for (; pieces.here().item == &item_; pieces.Advance()) Fold(Decoded(pieces.here()), pieces.Next());
    End();
  }

 private:
  // Ask for the tokens of the next piece, some at each step of a product: a walk leaps from block to block, which the
  // processor does not foresee, and all at once would be more than it can wait for.
  struct FetchTokens {
    const Element* const* tokens;
    int count, per_step;
    int64_t row_bytes;

    FetchTokens Share(int, int, int) const { return *this; }  // its products are of one tile

    KERNELS_FETCH void operator()(int step) const {
      for (int j = step * per_step; j < std::min(count, (step + 1) * per_step); ++j)
        for (int64_t b = 0; b < row_bytes; b += 64)
          __builtin_prefetch(reinterpret_cast<const char*>(tokens[j]) + b, 0, 2);
    }
  };

  void Begin() {
    for (int i = 0; i < queries_; ++i) {
      const Element* source = reinterpret_cast<const Element*>(batch_.q) + QueryAt(i) * cache_.head_dim;
      PackRow(source, cache_.head_dim, q_.Row(i));
    }
    for (int i = 0; i < queries_; ++i) {  // a sink is a score whose value is zero
      maxima_[i] = batch_.sinks == nullptr ? -std::numeric_limits<float>::infinity() : batch_.sinks[HeadOf(i)];
      totals_[i] = batch_.sinks == nullptr ? 0.0f : 1.0f;
    }
    std::fill_n(out_.data, size_t(queries_) * width_, 0.0f);
    if (width_ != batch_.value_dim) std::fill_n(values_.data, size_t(kPiece) * width_, Unit{});
  }

  // The piece with rows of elements: where they lie, or what their codes stand for.
  const Piece<Element>& Decoded(const Piece<Element>& piece) {
    if (rows_ == nullptr) return piece;
    decoded_ = piece;
    WithCodes(cache_.format, [&](auto code) {
      Element* row = rows_;
      const auto decode = [&](const Element** tokens) {
        for (int j = 0; j < piece.count; ++j, row += decoded_width_) {
          DecodeRow<decltype(code)>(reinterpret_cast<const char*>(tokens[j]), cache_.head_dim, row);
          tokens[j] = row;
        }
      };
      decode(decoded_.keys);
      if (cache_.parts == 1) {
        std::copy_n(decoded_.keys, piece.count, decoded_.values);
      } else {
        decode(decoded_.values);
      }
    });
    return decoded_;
  }

  // Fold a piece into every query's running softmax.
  void Fold(const Piece<Element>& piece, const Piece<Element>& next) {
    const int vectors = Ceil(piece.count, kLanes), units = Ceil(piece.count, kElements);
    PackColumns(piece.keys, vectors * kLanes, cache_.head_dim, keys_.data, keys_.stride);
    if (!values_as_they_are_)
      PackRows(piece.values, (piece.count + 1) / 2 * 2, batch_.value_dim, values_.data, values_.stride);
    FoldTile(0, piece, FetchTokens{next.keys, next.count, Ceil(kPiece, depth_), cache_.row_bytes},
             FetchTokens{next.values, cache_.parts == 1 ? 0 : next.count, Ceil(kPiece, units), cache_.row_bytes});
    for (int i = kTileRows; i < queries_; i += kTileRows) FoldTile(i, piece, FetchNothing(), FetchNothing());
  }

  // The same for the queries from the i-th on that make a tile of a product.
  template <typename Fetch>
  void FoldTile(int i, const Piece<Element>& piece, Fetch fetch_keys, Fetch fetch_values) {
    const int rows = std::min(kTileRows, queries_ - i);
    Product<Unit>({q_.Row(i), depth_}, Packed<Unit>{keys_.data, kPiece}, scores_, rows, Ceil(piece.count, kLanes),
                  depth_, Start::kZero, fetch_keys);
    if (batch_.soft_cap > 0) Cap(rows, Ceil(piece.count, kLanes));
    for (int r = 0; r < rows; ++r) Weigh(i + r, piece.first, scores_.Row(r), weights_.Row(r));
    const auto add = [&](auto values) {
      Product<Unit>({weights_.data, weights_.stride}, values, {out_.Row(i), width_}, rows, width_ / kLanes,
                    Ceil(piece.count, kElements), Start::kAdd, fetch_values);
    };
    if (values_as_they_are_) {
      add(Unpacked<Element>{piece.values});
    } else {
      add(Packed<Unit>{values_.data, values_.stride});
    }
  }

  // Products to tanh(score / soft_cap), which the cap, then the unit of a score, multiplies.
  void Cap(int rows, int vectors) {
    const Floats inverse = Broadcast(batch_.scale / batch_.soft_cap);
    for (int r = 0; r < rows; ++r)
      for (float *at = scores_.Row(r), *end = at + vectors * kLanes; at < end; at += kLanes)
        Store(at, Tanh(Load<Floats>(at) * inverse));
  }

  // Scores to weights exp(score - maximum) for one query; its sum and output are brought to the new maximum.
  void Weigh(int query, int64_t first, float* scores, Unit* weights) {
    const int64_t position = item_.first_position + query / group_;
    const int64_t oldest = std::max<int64_t>(0, position - batch_.window + 1);
    const Ints begin = Ints{} + static_cast<int32_t>(std::max<int64_t>(oldest - first, 0));
    const Ints end = Ints{} + static_cast<int32_t>(std::clamp<int64_t>(position + 1 - first, 0, kPiece));
    Floats seen[kPieceVectors];
    const Floats masked = Broadcast(-std::numeric_limits<float>::infinity());
    Floats best = Broadcast(maxima_[query]);
    Ints lane = LaneNumbers();
#pragma GCC unroll 16
    for (int v = 0; v < kPieceVectors; ++v, lane += kLanes) {
      const Floats scaled = Load<Floats>(scores + v * kLanes) * Broadcast(unit_);
      seen[v] = ((lane >= begin) & (lane < end)) ? scaled : masked;
      best = Maximum(seen[v], best);
    }
    auto* target = reinterpret_cast<Element*>(weights);
    const float maximum = Largest(best);
    if (begin[0] >= end[0]) {
      for (int v = 0; v < kPieceVectors; ++v) StoreElements(target + v * kLanes, Floats{});
      return;
    }
    Floats sum = {};
#pragma GCC unroll 16
    for (int v = 0; v < kPieceVectors; ++v) {
      const Floats weight = Exp(seen[v] - Broadcast(maximum));
      sum += weight;
      StoreElements(target + v * kLanes, weight);
    }
    const float shrink = Exp(maxima_[query] - maximum);
    maxima_[query] = maximum;
    totals_[query] = totals_[query] * shrink + Sum(sum);
    float* out = out_.Row(query);
    for (int d = 0; d < width_; d += kLanes) Store(out + d, Load<Floats>(out + d) * Broadcast(shrink));
  }

  void End() {
    for (int i = 0; i < queries_; ++i) {
      Element* target = reinterpret_cast<Element*>(batch_.out) + QueryAt(i) * batch_.value_dim;
      const Floats inverse = Broadcast(1.0f) / Broadcast(totals_[i]);
      ForVectors(batch_.value_dim, [&](int64_t d, int count) {
        StoreSome(target + d, Load<Floats>(out_.Row(i) + d) * inverse, count);
      });
    }
  }

  // The row of q and of the result.
  int64_t QueryAt(int query) const {
    return (item_.first_token + query / group_) * batch_.heads + HeadOf(query);
  }

  int64_t HeadOf(int query) const { return item_.first_head + query % group_; }

  const Cache& cache_;
  const AttentionBatch& batch_;
  const AttentionItem& item_;
  const int group_, queries_, depth_, width_, decoded_width_;
  const float unit_;  // of the scores that a product or Cap leaves
  const bool values_as_they_are_;  // packing them pays where more than one tile reads them
  const Matrix<Unit> q_, keys_, values_, weights_;
  const Matrix<float> scores_, out_;
  float *const maxima_, *const totals_;
  Element* const rows_;  // of a piece whose rows are codes; null where they are elements
  Piece<Element> decoded_;
};

}  // namespace kernels

#endif  // PALLAS_KERNELS_CPU_ATTENTION_H_
