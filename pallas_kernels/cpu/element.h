// The numbers that a library computes with, and how its products read them: parts.py gives each library its own.

#ifndef PALLAS_KERNELS_CPU_ELEMENT_H_
#define PALLAS_KERNELS_CPU_ELEMENT_H_

#include <type_traits>

#include "ffi.h"
#include "tile.h"

namespace kernels {

using Element = KERNELS_ELEMENT;  // float or Bfloat16
using Unit = std::conditional_t<std::is_same_v<Element, float>, float, Pair>;

constexpr ffi::DataType kElementType = std::is_same_v<Element, float> ? ffi::F32 : ffi::BF16;

}  // namespace kernels

#endif  // PALLAS_KERNELS_CPU_ELEMENT_H_
