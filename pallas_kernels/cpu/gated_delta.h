// Gated delta nets: a row's tokens of one span, for one key head and the value heads that share it.
//
// Each element of each product is one chain of additions, over the keys' numbers or over the span's tokens in order. So
// a token has the same bits in a prompt and alone.

#ifndef PALLAS_KERNELS_CPU_GATED_DELTA_H_
#define PALLAS_KERNELS_CPU_GATED_DELTA_H_

#include <algorithm>
#include <cmath>
#include <cstdint>

#include "elements.h"
#include "functions.h"
#include "scratch.h"
#include "tile.h"
#include "units.h"

namespace kernels {

// K key heads and H value heads of key_dim and value_dim numbers, in spans of `span` positions. value_dim and span are
// multiples of kLanes.
struct DeltaShape {
  int64_t rows, layers, key_heads, heads, key_dim, value_dim, span;

  int64_t group() const { return heads / key_heads; }
  int64_t width() const { return 2 * key_heads * key_dim + heads * value_dim; }
};

struct DeltaBatch {
  DeltaShape shape;
  int64_t layer;
  const float *a, *b, *a_log, *dt_bias;        // [tokens][heads], [heads]
  float *starts, *keys, *changes, *decays;     // the state
};

// Consecutive tokens of one row, within one span.
struct DeltaPiece {
  int64_t row, first_token, position;
  int count;
};

// What computes pieces for one key head, with memory of its own.
template <typename Element>
class DeltaHead {
 public:
  DeltaHead(const DeltaBatch& batch, const Element* x, Element* out, int64_t key_head, Scratch& scratch)
      : batch_(batch), shape_(batch.shape), x_(x), out_(out), key_head_(key_head) {
    const ptrdiff_t span = shape_.span, key_dim = shape_.key_dim, value_dim = shape_.value_dim;
    const ptrdiff_t columns = 2 * span + value_dim + key_dim, rows = 2 * span;
    float* free = scratch.Get<float>(rows * columns + key_dim * span + span);
    const auto take = [&](ptrdiff_t some_rows, ptrdiff_t some_columns) {
      const Matrix<float> matrix = {free, some_columns};
      free += some_rows * some_columns;
      return matrix;
    };
    products_ = take(rows, span);
    weights_ = take(rows, span);
    recalled_ = take(rows, value_dim);
    faded_keys_ = take(key_dim, span);
    betas_ = take(1, span).data;
    units_ = take(rows, key_dim);  // last: no other begins within a vector
  }

  void Compute(const DeltaPiece& piece) {
    const int64_t of_layer = piece.row * shape_.layers + batch_.layer;
    keys_ = {batch_.keys + (of_layer * shape_.key_heads + key_head_) * shape_.key_dim * shape_.span, shape_.span};
    used_ = static_cast<int>(piece.position % shape_.span);
    TakeKeys(piece);
    for (int64_t g = 0; g < shape_.group(); ++g) {
      head_ = key_head_ * shape_.group() + g;
      const int64_t at = of_layer * shape_.heads + head_;
      start_ = {batch_.starts + at * shape_.key_dim * shape_.value_dim, shape_.value_dim};
      changes_ = {batch_.changes + at * shape_.span * shape_.value_dim, shape_.value_dim};
      decays_ = batch_.decays + at * shape_.span;
      ComputeHead(piece);
    }
  }

 private:
  static constexpr float kEps = 1e-6f;

  int value_vectors() const { return static_cast<int>(shape_.value_dim / kLanes); }
  int end(const DeltaPiece& piece) const { return used_ + piece.count; }
  // The piece has the first tokens of a sequence's first span.
  bool IsFirstSpan(const DeltaPiece& piece) const { return piece.position < shape_.span; }

  // Unit keys and queries of the piece, its keys among the span's, and the products of both with these.
  void TakeKeys(const DeltaPiece& piece) {
    const float of_query = 1.0f / std::sqrt(static_cast<float>(shape_.key_dim));
    for (int r = 0; r < piece.count; ++r) {
      const Element* const token = x_ + (piece.first_token + r) * shape_.width();
      const Element* const query = token + key_head_ * shape_.key_dim;
      TakeUnit(query, of_query, units_.Row(piece.count + r));
      TakeUnit(query + shape_.key_heads * shape_.key_dim, 1.0f, units_.Row(r));
      for (int64_t d = 0; d < shape_.key_dim; ++d) keys_.Row(d)[used_ + r] = units_.Row(r)[d];
    }
    Product<float>({units_.data, units_.stride}, Packed<float>{keys_.data, keys_.stride}, products_, 2 * piece.count,
                   Ceil(end(piece), kLanes), static_cast<int>(shape_.key_dim), Start::kZero, FetchNothing());
  }

  void TakeUnit(const Element* source, float factor, float* target) const {
    const float square = MeanSquare(source, 0.0f, shape_.key_dim) * static_cast<float>(shape_.key_dim);
    const Floats scale = Broadcast(factor / std::sqrt(square + kEps));
    ForVectors(shape_.key_dim,
               [&](int64_t i, int count) { StoreSome(target + i, LoadSome(source + i, count) * scale, count); });
  }

  void ComputeHead(const DeltaPiece& piece) {
    Decay(piece);
    const bool first = IsFirstSpan(piece);
    if (first) {
      std::fill_n(recalled_.data, 2 * piece.count * shape_.value_dim, 0.0f);
    } else {
      Product<float>({units_.data, units_.stride}, Packed<float>{start_.data, start_.stride}, recalled_,
                     2 * piece.count, value_vectors(), static_cast<int>(shape_.key_dim), Start::kZero, FetchNothing());
    }
    for (int r = 0; r < piece.count; ++r) {
      const float total = decays_[used_ + r];
      for (const int row : {r, piece.count + r}) {
        if (!first) Scale(recalled_.Row(row), Exp(total));
        Fade(products_.Row(row), total, used_ + r + 1, weights_.Row(row));
      }
    }
    for (int r = 0; r < piece.count; r += kTileRows) Solve(piece, r, std::min(kTileRows, piece.count - r));
    if (end(piece) == shape_.span) EndSpan(first);
  }

  // The sums of g up to each token, and its beta.
  void Decay(const DeltaPiece& piece) {
    const double rate = -std::exp(static_cast<double>(batch_.a_log[head_]));
    for (int r = 0; r < piece.count; ++r) {
      const int64_t at = (piece.first_token + r) * shape_.heads + head_;
      const double step = static_cast<double>(batch_.a[at]) + batch_.dt_bias[head_];
      const auto decay = static_cast<float>(rate * (std::max(step, 0.0) + std::log1p(std::exp(-std::abs(step)))));
      decays_[used_ + r] = used_ + r == 0 ? decay : decays_[used_ + r - 1] + decay;
      betas_[r] = static_cast<float>(1.0 / (1.0 + std::exp(-static_cast<double>(batch_.b[at]))));
    }
  }

  void Scale(float* row, float factor) const {
    for (int64_t d = 0; d < shape_.value_dim; d += kLanes) Store(row + d, Load<Floats>(row + d) * Broadcast(factor));
  }

  // Products with the first `count` tokens of the span, times what is left of each token's change; those behind in the
  // last vector are not read.
  void Fade(const float* products, float total, int count, float* weights) const {
    for (int j = 0; j < count; j += kLanes)
      Store(weights + j, Load<Floats>(products + j) * Exp(Broadcast(total) - Load<Floats>(decays_ + j)));
  }

  // Changes and results of some tokens of the piece, from the r-th on. All of them add the changes before the first one;
  // then each adds those between.
  void Solve(const DeltaPiece& piece, int r, int count) {
    Recall(r, count, 0, used_ + r);
    for (int i = r; i < r + count; ++i) {
      Recall(i, 1, used_ + r, used_ + i);
      Change(piece, i);
    }
    const int queries = piece.count + r;
    Recall(queries, count, 0, used_ + r);
    for (int i = r; i < r + count; ++i) {
      Recall(piece.count + i, 1, used_ + r, used_ + i + 1);
      Element* const target = out_ + ((piece.first_token + i) * shape_.heads + head_) * shape_.value_dim;
      const float* const source = recalled_.Row(piece.count + i);
      for (int64_t d = 0; d < shape_.value_dim; d += kLanes) StoreElements(target + d, Load<Floats>(source + d));
    }
  }

  // Add the changes of the span's tokens [first, end) to what some rows recall.
  void Recall(int row, int rows, int first, int end) {
    if (first == end) return;
    Product<float>({weights_.Row(row) + first, weights_.stride}, Packed<float>{changes_.Row(first), changes_.stride},
                   {recalled_.Row(row), recalled_.stride}, rows, value_vectors(), end - first, Start::kAdd,
                   FetchNothing());
  }

  void Change(const DeltaPiece& piece, int r) {
    const Element* const token = x_ + (piece.first_token + r) * shape_.width();
    const Element* const values = token + 2 * shape_.key_heads * shape_.key_dim + head_ * shape_.value_dim;
    const Floats beta = Broadcast(betas_[r]);
    const float* const recalled = recalled_.Row(r);
    float* const change = changes_.Row(used_ + r);
    for (int64_t d = 0; d < shape_.value_dim; d += kLanes)
      Store(change + d, (LoadFloats(values + d) - Load<Floats>(recalled + d)) * beta);
  }

  // The next span's start, from the one of this span, or zero.
  void EndSpan(bool first) {
    const int span = static_cast<int>(shape_.span);
    const float total = decays_[span - 1];
    for (int64_t d = 0; d < shape_.key_dim; ++d) {
      Fade(keys_.Row(d), total, span, faded_keys_.Row(d));
      if (first) {
        std::fill_n(start_.Row(d), shape_.value_dim, 0.0f);
      } else {
        Scale(start_.Row(d), Exp(total));
      }
    }
    Product<float>({faded_keys_.data, faded_keys_.stride}, Packed<float>{changes_.data, changes_.stride}, start_,
                   static_cast<int>(shape_.key_dim), value_vectors(), span, Start::kAdd, FetchNothing());
  }

  const DeltaBatch& batch_;
  const DeltaShape& shape_;
  const Element* const x_;
  Element* const out_;
  const int64_t key_head_;
  Matrix<float> units_, products_;                 // keys, then queries: their numbers; products with the span's keys
  Matrix<float> weights_, recalled_, faded_keys_;  // of the value head that is computed
  float* betas_;
  int used_ = 0;  // tokens of the span before the piece
  int64_t head_ = 0;
  Matrix<float> keys_, start_, changes_;  // where the state is
  float* decays_ = nullptr;
};

}  // namespace kernels

#endif  // PALLAS_KERNELS_CPU_GATED_DELTA_H_
