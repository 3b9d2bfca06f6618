// Short convolution over the tokens of each chunk. A token's bits depend on its own inputs and those before it,
// not on where its chunk begins.

#ifndef PALLAS_KERNELS_CPU_SHORT_CONVOLUTION_H_
#define PALLAS_KERNELS_CPU_SHORT_CONVOLUTION_H_

#include <algorithm>
#include <cstring>

#include "activations.h"
#include "elements.h"
#include "scratch.h"

namespace kernels {

// Channels of an item of work. Fewer would share cache lines; more would leave threads without work.
constexpr int64_t kChannels = 128;

// A chunk of `tokens` tokens, its first at `position` of its sequence, of rows [before, after, x] or x alone.
template <typename Element>
struct ConvolvedChunk {
  const Element* projected;  // [tokens][3 * width], or [tokens][width]
  const Element* taps;       // [taps][width]
  const Element* bias;       // [width], or null
  Element* state;            // [taps - 1][width], the oldest input first
  Element* out;              // [tokens][width]
  int64_t tokens, position, num_taps, width;
};

// Outputs of `count` channels from `first` on, and their inputs at the chunk's end as the state. Input n of the chunk is
// row (n + num_taps - 1) % num_taps of the window, n = -(num_taps - 1) being the state's first.
template <bool kGated, typename Element>
inline void ConvolveChannels(const ConvolvedChunk<Element>& chunk, int64_t first, int64_t count) {
  thread_local Scratch scratch;
  const int64_t taps = chunk.num_taps, width = chunk.width;
  float* const window = scratch.Get<float>(taps * kChannels);
  for (int64_t old = 0; old < taps - 1; ++old) {
    const bool is_known = chunk.position + old >= taps - 1;  // nothing was before position 0
    ForVectors(count, [&](int64_t i, int lanes) {
      const Floats input = is_known ? LoadSome(chunk.state + old * width + first + i, lanes) : Floats{};
      StoreSome(window + old * kChannels + i, input, lanes);
    });
  }
  for (int64_t n = 0; n < chunk.tokens; ++n) {
    const Element* const before = chunk.projected + n * (kGated ? 3 : 1) * width + first;
    const Element* const after = before + width;
    const Element* const x = kGated ? after + width : before;
    float* const newest = window + (n + taps - 1) % taps * kChannels;
    ForVectors(count, [&](int64_t i, int lanes) {
      Floats input = LoadSome(x + i, lanes);
      if constexpr (kGated) input = Rounded(x, LoadSome(before + i, lanes) * input);
      StoreSome(newest + i, input, lanes);
      Floats sum = chunk.bias == nullptr ? Floats{} : LoadSome(chunk.bias + first + i, lanes);
      for (int64_t tap = 0; tap < taps; ++tap) {
        const float* const inputs = window + (n + tap) % taps * kChannels;
        sum = MultiplyAdd(LoadSome(chunk.taps + tap * width + first + i, lanes), LoadSome(inputs + i, lanes), sum);
      }
      if constexpr (kGated) {
        sum = LoadSome(after + i, lanes) * Rounded(x, sum);
      } else {
        sum = Silu()(sum);
      }
      StoreSome(chunk.out + n * width + first + i, sum, lanes);
    });
  }
  for (int64_t kept = 0; kept < taps - 1; ++kept) {
    const float* const inputs = window + (chunk.tokens + kept) % taps * kChannels;
    ForVectors(count, [&](int64_t i, int lanes) {
      StoreSome(chunk.state + kept * width + first + i, LoadSome(inputs + i, lanes), lanes);
    });
  }
}

}  // namespace kernels

#endif  // PALLAS_KERNELS_CPU_SHORT_CONVOLUTION_H_
