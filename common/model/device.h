// Devices that networks run on: the processor, or CUDA devices, whose half of LibTorch is loaded when it is asked for
// rather than linked. No LibTorch header is needed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace atl::model {

struct DeviceInfo {
  std::string torch_name;    // "cpu", "cuda:0"
  std::string name;          // of the hardware, as its maker calls it; empty where nobody says
  int64_t memory_bytes = 0;  // all of it; 0 for the processor
};

// The devices of `kind` ("cpu": one, whatever its cores; "cuda": all that this process sees), ready for tensors.
// Thread-safe, repeatable. INVALID_ARGUMENT DEVICE_UNKNOWN for another kind; FAILED_PRECONDITION DEVICE_UNAVAILABLE
// names the missing library, or what CUDA says of the machine.
absl::StatusOr<std::vector<DeviceInfo>> OpenDevices(const std::string& kind);

}  // namespace atl::model
