#include "coordinator/service/open_watches.h"

#include "common/base/errors.h"
#include "fmt/format.h"

namespace atl::coordinator {

absl::Status OpenWatches::Open(const std::string& caller) {
  absl::MutexLock lock(&mutex_);
  int& open = open_[caller];
  if (open < kMostWatchesOfCaller) {
    ++open;
    return absl::OkStatus();
  }
  return MakeError(absl::StatusCode::kResourceExhausted, "TOO_MANY_WATCHES",
                   fmt::format("expected at most {} open watches of '{}', found one more; end others first",
                               kMostWatchesOfCaller, caller));
}

void OpenWatches::Close(const std::string& caller) {
  absl::MutexLock lock(&mutex_);
  const auto open = open_.find(caller);
  if (--open->second == 0) open_.erase(open);
}

}  // namespace atl::coordinator
