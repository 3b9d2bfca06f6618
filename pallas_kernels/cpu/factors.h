// Scales and minimums of a weight by group of inputs and output.

#ifndef PALLAS_KERNELS_CPU_FACTORS_H_
#define PALLAS_KERNELS_CPU_FACTORS_H_

#include <cstdint>

#include "elements.h"
#include "integers.h"
#include "panels.h"

namespace kernels {

constexpr int64_t kBlock = 256;  // inputs whose groups share a float, where scales are integers

// Scales or minimums by group and output, [panels][groups][kPanel]: floats, or int8 that floats of blocks multiply.
struct Factors {
  enum class Kind { kFloat32, kBfloat16, kFloat16, kInt8 };

  const char* values;          // null: there are none
  const Float16* of_blocks;    // [panels][blocks][kPanel], of integers
  int64_t groups, blocks, block_groups;
  Kind kind;

  bool exist() const { return values != nullptr; }
  int64_t Bytes() const { return kind == Kind::kInt8 ? 1 : kind == Kind::kFloat32 ? 4 : 2; }
  // Whether a value times kMagic is exact in float32.
  bool HasFewBits() const { return kind != Kind::kFloat32; }

  Factors From(int64_t panel) const {
    Factors moved = *this;
    if (exist()) moved.values += panel * groups * kPanel * Bytes();
    if (of_blocks != nullptr) moved.of_blocks += panel * blocks * kPanel;
    return moved;
  }

  // Where the float is that multiplies those of a group, where they are integers.
  const Float16* OfBlock(int64_t group) const {
    return kind == Kind::kInt8 ? of_blocks + group / block_groups * kPanel : nullptr;
  }

  // Of kLanes outputs of this first panel and one group. `of_block`: OfBlock(group).
  Floats At(int64_t group, const Float16* of_block, int output) const {
    const char* const at = values + (group * kPanel + output) * Bytes();
    switch (kind) {
      case Kind::kFloat32: return LoadFloats(reinterpret_cast<const float*>(at));
      case Kind::kBfloat16: return LoadFloats(reinterpret_cast<const Bfloat16*>(at));
      case Kind::kFloat16: return LoadFloats(reinterpret_cast<const Float16*>(at));
      default: break;
    }
    return ToFloats(LoadSignedBytes(reinterpret_cast<const int8_t*>(at))) * LoadFloats(of_block + output);
  }
};

}  // namespace kernels

#endif  // PALLAS_KERNELS_CPU_FACTORS_H_
