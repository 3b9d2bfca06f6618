// How XLA calls a function: what these kernels use of its C++ interface, with its names, over its interface in C. XLA's
// own headers have far more, and each source file that includes them compiles for a second longer.

#ifndef PALLAS_KERNELS_CPU_FFI_H_
#define PALLAS_KERNELS_CPU_FFI_H_

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>
#include <tuple>
#include <utility>

#include "xla/ffi/api/c_api.h"

namespace kernels::ffi {

using DataType = XLA_FFI_DataType;
constexpr DataType S8 = XLA_FFI_DataType_S8, S32 = XLA_FFI_DataType_S32, U8 = XLA_FFI_DataType_U8;
constexpr DataType F16 = XLA_FFI_DataType_F16, BF16 = XLA_FFI_DataType_BF16, F32 = XLA_FFI_DataType_F32;

// Bytes of an element, 0 for types of less than a byte.
inline size_t ByteWidth(DataType type) {
  switch (type) {
    case XLA_FFI_DataType_PRED:
    case XLA_FFI_DataType_S8:
    case XLA_FFI_DataType_U8:
    case XLA_FFI_DataType_F8E5M2:
    case XLA_FFI_DataType_F8E4M3FN: return 1;
    case XLA_FFI_DataType_S16:
    case XLA_FFI_DataType_U16:
    case XLA_FFI_DataType_F16:
    case XLA_FFI_DataType_BF16: return 2;
    case XLA_FFI_DataType_S32:
    case XLA_FFI_DataType_U32:
    case XLA_FFI_DataType_F32: return 4;
    case XLA_FFI_DataType_S64:
    case XLA_FFI_DataType_U64:
    case XLA_FFI_DataType_F64: return 8;
    default: return 0;
  }
}

// The sizes of an array's axes.
struct Dimensions {
  const int64_t* sizes;
  size_t rank;

  size_t size() const { return rank; }
  const int64_t* begin() const { return sizes; }
  const int64_t* end() const { return sizes + rank; }
  int64_t operator[](size_t axis) const { return sizes[axis]; }
};

class AnyBuffer {
 public:
  explicit AnyBuffer(const XLA_FFI_Buffer* buffer) : buffer_(buffer) {}

  DataType element_type() const { return buffer_->dtype; }
  Dimensions dimensions() const { return {buffer_->dims, static_cast<size_t>(buffer_->rank)}; }
  void* untyped_data() const { return buffer_->data; }
  size_t element_count() const {
    size_t count = 1;
    for (const int64_t size : dimensions()) count *= size;
    return count;
  }
  size_t size_bytes() const { return element_count() * ByteWidth(element_type()); }

 protected:
  const XLA_FFI_Buffer* buffer_;
};

template <DataType kType>
struct NativeType;
template <>
struct NativeType<S32> {
  using Type = int32_t;
};
template <>
struct NativeType<F32> {
  using Type = float;
};

template <DataType kType, size_t kRank>
class Buffer : public AnyBuffer {
 public:
  explicit Buffer(AnyBuffer buffer) : AnyBuffer(buffer) {}
  typename NativeType<kType>::Type* typed_data() const {
    return static_cast<typename NativeType<kType>::Type*>(untyped_data());
  }
};

// An array that the function fills.
template <typename T>
class Result {
 public:
  explicit Result(T buffer) : buffer_(buffer) {}
  T& operator*() { return buffer_; }
  T* operator->() { return &buffer_; }

 private:
  T buffer_;
};

// What a function returns: nothing, or why it refuses what it was given.
struct Error {
  const char* reason;

  static Error Success() { return {nullptr}; }
};

// The threads of XLA that compute programs.
class ThreadPool {
 public:
  ThreadPool(const XLA_FFI_Api* api, XLA_FFI_InvokeContext* context) : api_(api), context_(context) {}

  int64_t num_threads() const {
    int64_t threads = 0;
    XLA_FFI_ThreadPool_NumThreads_Args args = {XLA_FFI_ThreadPool_NumThreads_Args_STRUCT_SIZE, nullptr, context_,
                                               &threads};
    return Failed(api_->XLA_FFI_ThreadPool_NumThreads(&args)) ? 0 : threads;
  }

  // Call the work once, on another thread, or here where XLA has none.
  template <typename Work>
  void Schedule(Work work) {
    Work* const kept = new Work(std::move(work));
    XLA_FFI_Task* const task = [](void* data) {
      Work* const one = static_cast<Work*>(data);
      (*one)();
      delete one;
    };
    XLA_FFI_ThreadPool_Schedule_Args args = {XLA_FFI_ThreadPool_Schedule_Args_STRUCT_SIZE, nullptr, context_, task,
                                             kept};
    if (Failed(api_->XLA_FFI_ThreadPool_Schedule(&args))) task(kept);
  }

 private:
  bool Failed(XLA_FFI_Error* error) const {
    if (error == nullptr) return false;
    XLA_FFI_Error_Destroy_Args args = {XLA_FFI_Error_Destroy_Args_STRUCT_SIZE, nullptr, error};
    api_->XLA_FFI_Error_Destroy(&args);
    return true;
  }

  const XLA_FFI_Api* api_;
  XLA_FFI_InvokeContext* context_;
};

// Takes a call apart, one parameter after the other. Operands and results come in their order, attributes by name.
class Reader {
 public:
  Reader(const XLA_FFI_CallFrame& frame, std::initializer_list<std::string_view> names)
      : frame_(frame), names_(names) {}

  ThreadPool Read(ThreadPool*) { return {frame_.api, frame_.ctx}; }

  AnyBuffer Read(AnyBuffer*) { return Next(frame_.args.args, frame_.args.size, arguments_); }

  template <DataType kType, size_t kRank>
  Buffer<kType, kRank> Read(Buffer<kType, kRank>*) {
    const AnyBuffer any = Read(static_cast<AnyBuffer*>(nullptr));
    const bool fits = any.element_type() == kType && any.dimensions().size() == kRank;
    if (!fits) Refuse("an operand is of another type or rank");
    return Buffer<kType, kRank>(any);
  }

  template <typename T>
  std::optional<T> Read(std::optional<T>*) {
    if (arguments_ == frame_.args.size) return std::nullopt;
    return Read(static_cast<T*>(nullptr));
  }

  Result<AnyBuffer> Read(Result<AnyBuffer>*) {
    return Result<AnyBuffer>(Next(frame_.rets.rets, frame_.rets.size, results_));
  }

  float Read(float*) { return Scalar<float>(XLA_FFI_DataType_F32); }
  int64_t Read(int64_t*) { return Scalar<int64_t>(XLA_FFI_DataType_S64); }

  std::string_view Read(std::string_view*) {
    const auto* const span = static_cast<const XLA_FFI_ByteSpan*>(Attribute(XLA_FFI_AttrType_STRING));
    return span == nullptr ? std::string_view() : std::string_view(span->ptr, span->len);
  }

  // Why the call does not fit the function, once all parameters are read, or null.
  const char* trouble() const {
    if (reason_ != nullptr) return reason_;
    const bool all = arguments_ == frame_.args.size && results_ == frame_.rets.size &&
                     static_cast<int64_t>(attributes_) == frame_.attrs.size;
    return all ? nullptr : "the call has more operands, results or attributes than the function";
  }

 private:
  void Refuse(const char* reason) { reason_ = reason_ == nullptr ? reason : reason_; }

  AnyBuffer Next(void** buffers, int64_t count, int64_t& read) {
    static const XLA_FFI_Buffer kNothing = {};
    if (read < count) return AnyBuffer(static_cast<const XLA_FFI_Buffer*>(buffers[read++]));
    Refuse("the call has fewer operands or results than the function");
    return AnyBuffer(&kNothing);
  }

  // What the call has under the next name, or null.
  const void* Attribute(XLA_FFI_AttrType type) {
    const std::string_view name = names_.begin()[attributes_++];
    for (int64_t i = 0; i < frame_.attrs.size; ++i) {
      const XLA_FFI_ByteSpan& found = *frame_.attrs.names[i];
      if (std::string_view(found.ptr, found.len) == name && frame_.attrs.types[i] == type) return frame_.attrs.attrs[i];
    }
    Refuse("the call lacks an attribute, or has one of another type");
    return nullptr;
  }

  template <typename T>
  T Scalar(XLA_FFI_DataType type) {
    const auto* const scalar = static_cast<const XLA_FFI_Scalar*>(Attribute(XLA_FFI_AttrType_SCALAR));
    if (scalar != nullptr && scalar->dtype == type) return *static_cast<const T*>(scalar->value);
    Refuse("an attribute is a number of another type");
    return T();
  }

  const XLA_FFI_CallFrame& frame_;
  std::initializer_list<std::string_view> names_;
  const char* reason_ = nullptr;
  int64_t arguments_ = 0, results_ = 0;
  size_t attributes_ = 0;
};

inline XLA_FFI_Error* ErrorOf(const XLA_FFI_CallFrame& frame, const char* reason) {
  if (reason == nullptr) return nullptr;
  XLA_FFI_Error_Create_Args args = {XLA_FFI_Error_Create_Args_STRUCT_SIZE, nullptr, reason,
                                    XLA_FFI_Error_Code_INVALID_ARGUMENT};
  return frame.api->XLA_FFI_Error_Create(&args);
}

// Call a function as XLA does: also before the first call, to learn for which version of the interface it was compiled.
// `names`: of the attributes, which are its last parameters.
template <typename... Parameters>
XLA_FFI_Error* Call(const XLA_FFI_CallFrame& frame, Error (*function)(Parameters...),
                    std::initializer_list<std::string_view> names) {
  if (frame.struct_size != XLA_FFI_CallFrame_STRUCT_SIZE) return ErrorOf(frame, "another version of XLA calls");
  if (frame.extension_start != nullptr && frame.extension_start->type == XLA_FFI_Extension_Metadata) {
    XLA_FFI_Metadata& metadata = *reinterpret_cast<XLA_FFI_Metadata_Extension*>(frame.extension_start)->metadata;
    metadata.api_version = {XLA_FFI_Api_Version_STRUCT_SIZE, nullptr, XLA_FFI_API_MAJOR, XLA_FFI_API_MINOR};
    metadata.traits = 0;
    metadata.state_type_id = XLA_FFI_UNKNOWN_TYPE_ID;
    return nullptr;
  }
  if (frame.stage != XLA_FFI_ExecutionStage_EXECUTE) return ErrorOf(frame, "the function is for execution alone");
  Reader reader(frame, names);
  std::tuple<Parameters...> given{reader.Read(static_cast<Parameters*>(nullptr))...};  // from first to last
  const char* const trouble = reader.trouble();
  return ErrorOf(frame, trouble != nullptr ? trouble : std::apply(function, std::move(given)).reason);
}

}  // namespace kernels::ffi

// Make a function visible, and nothing else: so two libraries in one process share nothing. The names of its attributes
// follow it.
#define KERNELS_HANDLER(name, function, ...)                                                \
  extern "C" [[gnu::visibility("default")]] XLA_FFI_Error* name(XLA_FFI_CallFrame* frame) { \
    return kernels::ffi::Call(*frame, function, {__VA_ARGS__});                             \
  }

#endif  // PALLAS_KERNELS_CPU_FFI_H_
