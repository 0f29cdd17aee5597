#include "common/rpc/open_files.h"

#include <sys/resource.h>

#include <algorithm>
#include <mutex>

#include "spdlog/spdlog.h"

namespace atl::rpc {

int64_t RaiseOpenFiles() {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return 0;
  const rlimit raised{.rlim_cur = limit.rlim_max, .rlim_max = limit.rlim_max};
  if (limit.rlim_cur < limit.rlim_max && setrlimit(RLIMIT_NOFILE, &raised) == 0) limit = raised;
  const int64_t files = static_cast<int64_t>(std::min<rlim_t>(limit.rlim_cur, INT64_MAX));
  static std::once_flag told;
  if (files < kWantedOpenFiles) {
    std::call_once(told, [files] {
      spdlog::warn(
          "at most {} files and connections can be open at a time: raise the hard limit (ulimit -Hn, systemd's "
          "LimitNOFILE) to {} for many islands or callers",
          files, kWantedOpenFiles);
    });
  }
  return files;
}

}  // namespace atl::rpc
