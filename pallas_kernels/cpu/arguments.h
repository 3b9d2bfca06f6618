// What the functions that XLA calls take, and how they refuse it.

#ifndef PALLAS_KERNELS_CPU_ARGUMENTS_H_
#define PALLAS_KERNELS_CPU_ARGUMENTS_H_

#include <cstdint>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace kernels {

using Scalar = ffi::Buffer<ffi::S32, 0>;
using Integers = ffi::Buffer<ffi::S32, 1>;
using Tables = ffi::Buffer<ffi::S32, 2>;

// Bytes of an element, 0 for types that the kernels do not take.
inline int64_t ItemSize(ffi::DataType dtype) {
  if (dtype == ffi::DataType::F32) return 4;
  return dtype == ffi::DataType::BF16 ? 2 : 0;
}

inline ffi::Error Refuse(const char* reason) { return ffi::Error(ffi::ErrorCode::kInvalidArgument, reason); }

}  // namespace kernels

#endif  // PALLAS_KERNELS_CPU_ARGUMENTS_H_
