#include "worker/transport/nccl/torch_cuda.h"

#include <dlfcn.h>

#include "common/base/errors.h"
#include "fmt/format.h"
#include "worker/transport/nccl/nccl_api.h"

namespace atl::transport {

absl::Status LoadTorchCuda() {
  if (const auto devices = RealNcclApi()->DeviceCount(); !devices.ok()) return devices.status();
  // Found through the run path of the binary, as the other libraries of LibTorch are. Its registrations need no symbol.
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) != nullptr) return absl::OkStatus();
  return MakeError(absl::StatusCode::kFailedPrecondition, "DEVICE_UNAVAILABLE",
                   fmt::format("expected LibTorch's CUDA libraries, found: {}", dlerror()));
}

absl::StatusOr<int64_t> TorchCudaMemory() {
  return RealNcclApi()->DeviceMemory();
}

}  // namespace atl::transport
