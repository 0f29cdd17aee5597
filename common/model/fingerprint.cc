#include "common/model/fingerprint.h"

#include <ATen/Version.h>
#include <torch/version.h>

#include <algorithm>

#include "common/base/version.h"
#include "fmt/format.h"

namespace atl::model {

std::string NumericsFingerprint(const DeviceInfo& device, int threads, int64_t reproducible_rows) {
  std::string hardware = device.name.empty() ? device.torch_name : device.name;
  std::replace(hardware.begin(), hardware.end(), '/', ' ');
  return fmt::format("atoll-{}+{}/torch-{}/{}/{}/t{}/r{}", kVersion, ATOLL_NUMERICS_BUILD, TORCH_VERSION,
                     at::get_cpu_capability(), hardware, threads, reproducible_rows);
}

}  // namespace atl::model
