// Products of rows with their experts' weights, where the rows are sorted by expert.

#ifndef PALLAS_KERNELS_CPU_EXPERT_PRODUCT_H_
#define PALLAS_KERNELS_CPU_EXPERT_PRODUCT_H_

#include <algorithm>
#include <cstdint>
#include <vector>

#include "scratch.h"
#include "units.h"

namespace kernels {

// One product (of packed_product.h or quantized_product.h) for each expert that has rows, of which all items are shared
// out together: an item reads a panel of one expert, once for all its rows unless they are many.
template <typename Product>
class ExpertProduct {
 public:
  // `all` multiplies all rows with the weight of the first expert; expert e has the rows from starts[e] to starts[e + 1].
  ExpertProduct(const Product& all, const int32_t* starts, int64_t experts, int64_t threads) {
    for (int64_t expert = 0; expert < experts; ++expert) {
      const int64_t first = starts[expert], rows = starts[expert + 1] - first;
      if (rows > 0) products_.push_back(all.OfExpert(expert, first, rows));
    }
    // The largest items come first.
    std::stable_sort(products_.begin(), products_.end(),
                     [](const auto& a, const auto& b) { return a.result.tokens > b.result.tokens; });
    const int64_t panels = std::max<int64_t>(all.result.panels() * products_.size(), 1);
    int64_t end = 0;
    for (auto& product : products_) {
      product.result.Cut(Ceil(4 * threads, panels));  // so that each thread has items where few experts have rows
      ends_.push_back(end += product.result.items());
    }
  }

  int64_t items() const { return ends_.empty() ? 0 : ends_.back(); }

  auto PanelOf(int64_t item) const {
    const size_t owner = Owner(item);
    return products_[owner].PanelOf(item - First(owner));
  }

  template <typename Next>
  void Run(int64_t item, Scratch& scratch, const Next& next_panel) const {
    const size_t owner = Owner(item);
    products_[owner].Run(item - First(owner), scratch, next_panel);
  }

 private:
  size_t Owner(int64_t item) const { return std::upper_bound(ends_.begin(), ends_.end(), item) - ends_.begin(); }
  int64_t First(size_t owner) const { return owner == 0 ? 0 : ends_[owner - 1]; }

  std::vector<Product> products_;
  std::vector<int64_t> ends_;  // of each product's items
};

}  // namespace kernels

#endif  // PALLAS_KERNELS_CPU_EXPERT_PRODUCT_H_
