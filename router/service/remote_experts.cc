#include "router/service/remote_experts.h"

#include <algorithm>

#include "absl/strings/str_join.h"
#include "common/base/errors.h"
#include "fmt/format.h"
#include "router/engine/hosted_networks.h"
#include "router/service/expert_client.h"

namespace atl::router {
namespace {

// A lane has one watcher, and that is the engine: here its news are looked for.
constexpr absl::Duration kLookAgain = absl::Milliseconds(50);

}  // namespace

RemoteExperts::RemoteExperts(const std::vector<std::string>& addresses, Clock* clock)
    : clock_(clock), addresses_(addresses) {
  for (const std::string& address : addresses_) {
    lanes_.push_back(std::make_shared<RemoteLane>(RemoteLaneOptions{.address = address}, clock));
  }
}

std::vector<NetworkId> RemoteExperts::Missing(const ServedVersion& version, bool with_router) const {
  std::vector<NetworkId> missing;
  for (int32_t expert = with_router ? kRouterNetwork : 0; expert < version.info.experts; ++expert) {
    const NetworkId id = version.network(expert);
    const bool hosted = std::any_of(lanes_.begin(), lanes_.end(),
                                    [&](const auto& lane) { return FindHosted(*lane->hosted(), id) != nullptr; });
    if (!hosted) missing.push_back(id);
  }
  return missing;
}

absl::Status RemoteExperts::AwaitHosted(const ServedVersion& version, bool with_router, absl::Duration timeout) {
  const absl::Duration deadline = clock_->Monotonic() + timeout;
  std::vector<NetworkId> missing = Missing(version, with_router);
  for (bool again = true; again && !missing.empty();) {
    {
      absl::MutexLock lock(&mutex_);
      const absl::Duration now = clock_->Monotonic();
      again = now < deadline && !stopping_;
      if (again) clock_->AwaitUntil(&mutex_, absl::Condition(&stopping_), std::min(deadline, now + kLookAgain));
    }
    missing = Missing(version, with_router);
  }
  if (missing.empty()) return absl::OkStatus();
  const std::string which = Describe(missing.front());
  return MakeError(absl::StatusCode::kUnavailable, "EXPERTS_MISSING",
                   fmt::format("expected every network on one of the expert servers {}, found {} of {} on none: {}, "
                               "digest '{}', for one",
                               absl::StrJoin(addresses_, ", "), missing.size(),
                               version.info.experts + (with_router ? 1 : 0), which, missing.front().digest));
}

void RemoteExperts::Stop() {
  absl::MutexLock lock(&mutex_);
  stopping_ = true;
}

}  // namespace atl::router
