#include "common/model/device.h"

#include <dlfcn.h>

#include <fstream>
#include <iterator>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"

namespace atl::model {
namespace {

std::string ProcessorName() {
  std::ifstream file("/proc/cpuinfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("model name") && line.find(": ") != std::string::npos) return line.substr(line.find(": ") + 2);
  }
  return "";
}

absl::Status Unavailable(const std::string& what) {
  return MakeError(absl::StatusCode::kFailedPrecondition, "DEVICE_UNAVAILABLE", what);
}

// The driver's interface, found at run time: a build without CUDA has none of its headers.
class CudaDriver {
 public:
  static absl::StatusOr<CudaDriver> Load() {
    CudaDriver driver;
    if (driver.library_ == nullptr) {
      return Unavailable(fmt::format("expected CUDA's driver library, found: {}", dlerror()));
    }
    ATOLL_RETURN_IF_ERROR(driver.Call<unsigned int>("cuInit", 0));
    return driver;
  }

  template <typename... Parameters, typename... Arguments>
  absl::Status Call(const char* function, Arguments... arguments) const {
    const auto call = reinterpret_cast<int (*)(Parameters...)>(dlsym(library_, function));
    if (call == nullptr) return Unavailable(fmt::format("expected {} in CUDA's driver library, found none", function));
    if (const int error = call(arguments...); error != 0) {
      return Unavailable(fmt::format("{}: expected success, found CUDA error {}", function, error));
    }
    return absl::OkStatus();
  }

 private:
  void* library_ = dlopen("libcuda.so.1", RTLD_NOW);  // stays for the process
};

absl::StatusOr<std::vector<DeviceInfo>> OpenCudaDevices() {
  ATOLL_ASSIGN_OR_RETURN(const CudaDriver driver, CudaDriver::Load());
  int count = 0;
  ATOLL_RETURN_IF_ERROR(driver.Call<int*>("cuDeviceGetCount", &count));
  if (count == 0) return Unavailable("expected at least one CUDA device, found none");
  std::vector<DeviceInfo> devices;
  for (int number = 0; number < count; ++number) {
    int device = 0;
    char name[256] = "";
    size_t bytes = 0;
    ATOLL_RETURN_IF_ERROR((driver.Call<int*, int>("cuDeviceGet", &device, number)));
    ATOLL_RETURN_IF_ERROR(
        (driver.Call<char*, int, int>("cuDeviceGetName", name, static_cast<int>(std::size(name)), device)));
    ATOLL_RETURN_IF_ERROR((driver.Call<size_t*, int>("cuDeviceTotalMem_v2", &bytes, device)));
    devices.push_back(
        {.torch_name = fmt::format("cuda:{}", number), .name = name, .memory_bytes = static_cast<int64_t>(bytes)});
  }
  // Found through the run path of the binary, as the other libraries of LibTorch are. Its registrations need no symbol.
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    return Unavailable(fmt::format("expected LibTorch's CUDA libraries, found: {}", dlerror()));
  }
  return devices;
}

}  // namespace

absl::StatusOr<std::vector<DeviceInfo>> OpenDevices(const std::string& kind) {
  if (kind == "cpu") return std::vector<DeviceInfo>{{.torch_name = "cpu", .name = ProcessorName()}};
  if (kind == "cuda") return OpenCudaDevices();
  return MakeError(absl::StatusCode::kInvalidArgument, "DEVICE_UNKNOWN",
                   fmt::format("expected cpu or cuda, found '{}'", kind));
}

}  // namespace atl::model
