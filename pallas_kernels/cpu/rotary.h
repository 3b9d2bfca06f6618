// Rotary embedding of heads. A row's bits depend on that row alone.

#ifndef PALLAS_KERNELS_CPU_ROTARY_H_
#define PALLAS_KERNELS_CPU_ROTARY_H_

#include <cstring>

#include "elements.h"

namespace kernels {

// One head of `width` numbers: the first 2 * half are turned, their halves as pairs, the others copied.
template <typename Element>
inline void RotateHead(
    const Element* head, const float* cos, const float* sin, Element* out, int64_t width, int64_t half) {
  ForVectors(half, [&](int64_t i, int count) {
    const Floats first = LoadSome(head + i, count), second = LoadSome(head + half + i, count);
    const Floats c = LoadSome(cos + i, count), s = LoadSome(sin + i, count);
    StoreSome(out + i, first * c - second * s, count);
    StoreSome(out + half + i, second * c + first * s, count);
  });
  std::memcpy(out + 2 * half, head + 2 * half, (width - 2 * half) * sizeof(Element));
}

}  // namespace kernels

#endif  // PALLAS_KERNELS_CPU_ROTARY_H_
