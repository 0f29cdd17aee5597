#include "client/sampling/sampler.h"

#include <algorithm>

#include "absl/time/clock.h"
#include "common/base/status_macros.h"

namespace atl::client {

using namespace atlpb::sample::v1;  // NOLINT(google-build-using-namespace): every name below is a message of it

absl::StatusOr<GetSamplerInfoResponse> GetSamplerInfo(const Session& session, const Peer<SampleService>& peer,
                                                      const SampleFlags& flags) {
  GetSamplerInfoRequest request;
  request.set_model(flags.model);
  GetSamplerInfoResponse response;
  const absl::Time deadline = absl::Now() + absl::Seconds(flags.wait_seconds);
  absl::Duration pause = absl::Milliseconds(100);
  while (true) {
    absl::Status status = Call(session, peer, &SampleService::Stub::GetSamplerInfo, request, &response);
    const bool other_version = status.ok() && !flags.version.empty() && response.version() != flags.version;
    if (status.ok() && (!other_version || absl::Now() >= deadline)) return response;
    const bool later =
        other_version || absl::IsUnavailable(status) || absl::IsNotFound(status) || absl::IsFailedPrecondition(status);
    if (!later || absl::Now() >= deadline) return status;
    absl::SleepFor(pause);
    pause = std::min(pause * 2, absl::Seconds(1));
  }
}

}  // namespace atl::client
