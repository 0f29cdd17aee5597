// LibTorch's CUDA half, loaded when a device is asked for rather than linked: a build with CUDA then starts, and trains
// on its processor, where CUDA's libraries are not installed.
#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace atl::transport {

// Loads it for the rest of the process and makes sure that there is a device. Call before the first tensor on a device;
// thread-safe, repeatable. FAILED_PRECONDITION DEVICE_UNAVAILABLE names the missing library, or what CUDA says of the
// machine.
absl::Status LoadTorchCuda();

// Bytes of the calling thread's device, all of them.
absl::StatusOr<int64_t> TorchCudaMemory();

}  // namespace atl::transport
