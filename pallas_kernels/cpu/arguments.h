// What the functions that XLA calls take, and how they refuse it.

#ifndef PALLAS_KERNELS_CPU_ARGUMENTS_H_
#define PALLAS_KERNELS_CPU_ARGUMENTS_H_

#include <cstdint>

#include "ffi.h"

namespace kernels {

using Scalar = ffi::Buffer<ffi::S32, 0>;
using Integers = ffi::Buffer<ffi::S32, 1>;
using Tables = ffi::Buffer<ffi::S32, 2>;

// Bytes of an element, 0 for types that the kernels do not take.
inline int64_t ItemSize(ffi::DataType dtype) {
  if (dtype == ffi::F32) return 4;
  return dtype == ffi::BF16 ? 2 : 0;
}

inline ffi::Error Refuse(const char* reason) { return {reason}; }

// Why rows that are sorted by expert cannot be computed without reading past an array, or null.
inline const char* CheckStarts(const Integers& starts, int64_t experts, int64_t rows) {
  if (starts.dimensions()[0] != experts + 1) return "there is not one start for each expert and an end";
  const int32_t* const first = starts.typed_data();
  if (first[0] != 0) return "the first expert's rows do not start at 0";
  for (int64_t expert = 0; expert < experts; ++expert)
    if (first[expert] > first[expert + 1]) return "the experts' starts do not ascend";
  return first[experts] > rows ? "the experts have more rows than there are" : nullptr;
}

}  // namespace kernels

#endif  // PALLAS_KERNELS_CPU_ARGUMENTS_H_
