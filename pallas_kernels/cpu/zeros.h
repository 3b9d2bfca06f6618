// Memory of zeros that is not written, so that it takes no room until somebody writes to it.

#ifndef PALLAS_KERNELS_CPU_ZEROS_H_
#define PALLAS_KERNELS_CPU_ZEROS_H_

#include <cstdint>
#include <cstring>

#ifdef __linux__
#include <sys/mman.h>
#include <unistd.h>
#endif

namespace kernels {

// Gives the whole pages of [begin, begin + bytes) back to the system, which has zeros there when they are read next.
// Returns how many bytes of them it took from `first` on: none where the system has no such call, or refuses it.
inline size_t GiveBack(char* first, size_t bytes) {
#ifdef __linux__
  return madvise(first, bytes, MADV_DONTNEED) == 0 ? bytes : 0;
#else
  return 0;
#endif
}

inline size_t PageBytes() {
#ifdef __linux__
  return static_cast<size_t>(sysconf(_SC_PAGESIZE));
#else
  return 4096;
#endif
}

// XLA's arrays lie in private memory of the process, for which Linux promises zeros after MADV_DONTNEED.
inline void MakeZeros(char* begin, size_t bytes) {
  const size_t page = PageBytes(), before = (page - reinterpret_cast<uintptr_t>(begin) % page) % page;
  if (bytes < before + page) {
    std::memset(begin, 0, bytes);
    return;
  }
  const size_t whole = (bytes - before) / page * page, given = GiveBack(begin + before, whole);
  std::memset(begin, 0, before);
  std::memset(begin + before + given, 0, bytes - before - given);
}

}  // namespace kernels

#endif  // PALLAS_KERNELS_CPU_ZEROS_H_
