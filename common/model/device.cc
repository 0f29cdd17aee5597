#include "common/model/device.h"

#include <dlfcn.h>

#include <array>
#include <charconv>
#include <fstream>
#include <iterator>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_split.h"
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

// Returns the form that nvidia-smi and CUDA_VISIBLE_DEVICES use.
std::string UuidText(const std::array<uint8_t, 16>& bytes) {
  const std::string hex = absl::BytesToHexString({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
  return fmt::format("GPU-{}-{}-{}-{}-{}", hex.substr(0, 8), hex.substr(8, 4), hex.substr(12, 4), hex.substr(16, 4),
                     hex.substr(20));
}

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
    std::array<uint8_t, 16> uuid = {};  // of the part of the device that the process has, where it is split (MIG)
    ATOLL_RETURN_IF_ERROR((driver.Call<uint8_t*, int>("cuDeviceGetUuid_v2", uuid.data(), device)));
    const std::string torch_name = fmt::format("cuda:{}", number);
    devices.push_back({.label = torch_name,
                       .torch_name = torch_name,
                       .name = name,
                       .memory_bytes = static_cast<int64_t>(bytes),
                       .uuid = UuidText(uuid)});
  }
  // Found through the run path of the binary, as the other libraries of LibTorch are. Its registrations need no symbol.
  if (dlopen("libtorch_cuda.so", RTLD_NOW | RTLD_GLOBAL) == nullptr) {
    return Unavailable(fmt::format("expected LibTorch's CUDA libraries, found: {}", dlerror()));
  }
  return devices;
}

// One entry of a list of devices: "cuda", or "cuda:1".
struct Wanted {
  bool cuda = false;
  std::optional<int> number;
  std::string label() const {
    const char* const kind = cuda ? "cuda" : "cpu";
    return number ? fmt::format("{}:{}", kind, *number) : kind;
  }
};

absl::StatusOr<Wanted> ParseWanted(const std::string& text) {
  const std::pair<std::string, std::string> parts = absl::StrSplit(text, absl::MaxSplits(':', 1));
  const auto& [kind, number] = parts;
  Wanted wanted{.cuda = kind == "cuda"};
  bool known = kind == "cpu" || kind == "cuda";
  if (text.size() > kind.size()) {
    int value = 0;
    const char* const end = number.data() + number.size();
    const auto [parsed, error] = std::from_chars(number.data(), end, value);
    known = known && error == std::errc() && parsed == end && value >= 0;
    wanted.number = value;
  }
  if (known) return wanted;
  return MakeError(absl::StatusCode::kInvalidArgument, "DEVICE_UNKNOWN",
                   fmt::format("expected cpu, cpu:N, cuda or cuda:N, found '{}'", text));
}

absl::Status Conflict(const std::string& list, const std::string& why) {
  return MakeError(absl::StatusCode::kInvalidArgument, "DEVICES_CONFLICT",
                   fmt::format("expected {}, found '{}'", why, list));
}

absl::StatusOr<std::vector<Wanted>> ParseList(const std::string& list) {
  std::vector<Wanted> all;
  std::set<std::string> labels;
  for (const absl::string_view text : absl::StrSplit(list, ',')) {
    ATOLL_ASSIGN_OR_RETURN(const Wanted wanted, ParseWanted(std::string(text)));
    if (!labels.insert(wanted.label()).second) return Conflict(list, "every device once");
    all.push_back(wanted);
  }
  for (const Wanted& wanted : all) {
    if (wanted.cuda != all.front().cuda) return Conflict(list, "processors or CUDA devices, not both");
    if (!wanted.number && all.size() > 1) return Conflict(list, fmt::format("'{}' alone", wanted.label()));
  }
  return all;
}

}  // namespace

absl::StatusOr<std::vector<DeviceInfo>> OpenDevices(const std::string& list) {
  ATOLL_ASSIGN_OR_RETURN(const std::vector<Wanted> all, ParseList(list));
  std::vector<DeviceInfo> devices;
  if (!all.front().cuda) {
    for (const Wanted& wanted : all) {
      devices.push_back({.label = wanted.label(), .torch_name = "cpu", .name = ProcessorName()});
    }
    return devices;
  }
  ATOLL_ASSIGN_OR_RETURN(const std::vector<DeviceInfo> seen, OpenCudaDevices());
  if (!all.front().number) return seen;
  for (const Wanted& wanted : all) {
    const auto number = static_cast<size_t>(*wanted.number);
    if (number >= seen.size()) {
      return Unavailable(
          fmt::format("expected {} of {} CUDA devices that this process sees: it has none of this number",
                      wanted.label(), seen.size()));
    }
    devices.push_back(seen[number]);
  }
  return devices;
}

}  // namespace atl::model
