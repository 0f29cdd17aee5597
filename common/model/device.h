// Devices that networks run on: the processor, or CUDA devices. The CUDA half of LibTorch is loaded on demand rather
// than linked. No LibTorch header is needed.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"

namespace atl::model {

struct DeviceInfo {
  std::string label;         // "cpu", "cpu:1", "cuda:0"; unique among those opened together
  std::string torch_name;    // "cpu", "cuda:0"
  std::string name;          // the hardware maker's name; empty if unknown
  int64_t memory_bytes = 0;  // all of it; 0 for the processor
  std::string uuid;          // "GPU-…", the same in every process; empty for the processor
};

// Opens the devices of a comma-separated list, in its order and ready for tensors: "cpu" is the processor, "cuda" all
// CUDA devices that this process sees, "cuda:1" one of them, "cpu:0,cpu:1" parts of the processor under numbers of the
// caller's choice, each a device of its own. A list names either processors or CUDA devices. Thread-safe, repeatable.
// INVALID_ARGUMENT with reason DEVICE_UNKNOWN or DEVICES_CONFLICT; FAILED_PRECONDITION DEVICE_UNAVAILABLE names the
// missing library or device, or CUDA's error.
absl::StatusOr<std::vector<DeviceInfo>> OpenDevices(const std::string& list);

}  // namespace atl::model
