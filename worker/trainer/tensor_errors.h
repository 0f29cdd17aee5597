// Converts LibTorch's exceptions into statuses.
#pragma once

#include <new>
#include <string>

#include <ATen/ATen.h>

#include "absl/status/status.h"
#include "common/base/errors.h"

namespace atl::trainer {

// Runs `f`, which returns an absl::Status or a StatusOr. RESOURCE_EXHAUSTED if memory is exhausted, INTERNAL for other
// exceptions.
template <typename F>
auto CatchTensorErrors(const char* where, F f) -> decltype(f()) {
  try {
    return f();
  } catch (const c10::OutOfMemoryError& e) {
    return MakeError(absl::StatusCode::kResourceExhausted, "DEVICE_MEMORY_EXHAUSTED",
                     std::string(where) + ": " + e.what_without_backtrace());
  } catch (const std::bad_alloc&) {
    return MakeError(absl::StatusCode::kResourceExhausted, "MEMORY_EXHAUSTED", std::string(where) + ": out of memory");
  } catch (const c10::Error& e) {
    return MakeError(absl::StatusCode::kInternal, "TENSOR_ERROR",
                     std::string(where) + ": " + e.what_without_backtrace());
  } catch (const std::exception& e) {
    return MakeError(absl::StatusCode::kInternal, "TENSOR_ERROR", std::string(where) + ": " + e.what());
  }
}

}  // namespace atl::trainer
