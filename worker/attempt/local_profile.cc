#include "worker/attempt/local_profile.h"

#include <cstdio>
#include <map>

#include <fmt/format.h>

#include "absl/synchronization/mutex.h"
#include "common/base/errors.h"
#include "common/base/files.h"
#include "common/base/status_macros.h"
#include "common/formats/profile_file.h"
#include "common/spec/frozen.h"
#include "common/spec/spec_io.h"

namespace atl::worker {
namespace {

// Processes of one command start within moments of each other; LibTorch takes a second.
constexpr absl::Duration kMeetTimeout = absl::Seconds(60);
constexpr absl::Duration kLookAgain = absl::Milliseconds(10);

absl::StatusOr<trainer::TrainerOptions> OptionsOf(const LocalProfileOptions& options, const AttemptParts& parts) {
  ATOLL_ASSIGN_OR_RETURN(const std::string yaml, ReadFile(options.folder + "/job.yaml"));
  ATOLL_ASSIGN_OR_RETURN(const spec::JobSpec spec, spec::ParseJobSpec(yaml));
  const bool router = options.network == "router";
  trainer::TrainerOptions trainer{.objective = router ? trainer::Objective::kCluster : trainer::Objective::kVelocity,
                                  .model = router ? spec.router_model : spec.model,
                                  .training = router ? spec.router_training : spec.training,
                                  .classes = options.classes,
                                  .clusters = router ? spec.experts : 0,
                                  .threads = parts.threads,
                                  .device = options.device};
  if (std::sscanf(options.image.c_str(), "%dx%dx%d", &trainer.channels, &trainer.height, &trainer.width) != 3) {
    return FieldError("--profile-image", "VALUE_UNKNOWN",
                      fmt::format("expected CHANNELSxHEIGHTxWIDTH, found '{}'", options.image));
  }
  trainer.frozen = router ? spec::LatentChain(spec.frozen) : spec.frozen;
  trainer.frozen_seed = spec.seed;
  std::map<std::string, std::string> files;
  const std::vector<std::string> uris = spec::FrozenFiles(spec.frozen);
  for (size_t i = 0; i < uris.size(); ++i) {
    ATOLL_ASSIGN_OR_RETURN(files[uris[i]], ReadFile(fmt::format("{}/frozen-{}", options.folder, i)));
  }
  trainer.frozen_files = std::make_shared<const std::map<std::string, std::string>>(std::move(files));
  return trainer;
}

// Every rank's address, once all have left theirs.
absl::StatusOr<std::vector<std::string>> Meet(const LocalProfileOptions& options, const std::string& address,
                                              Clock* clock) {
  const auto path = [&](int32_t rank) { return fmt::format("{}/address-{}", options.folder, rank); };
  ATOLL_RETURN_IF_ERROR(WriteFile(path(options.rank), address));
  const absl::Duration deadline = clock->Monotonic() + kMeetTimeout;
  std::vector<std::string> addresses;
  absl::Mutex mutex;
  absl::MutexLock lock(&mutex);
  while (static_cast<int32_t>(addresses.size()) < options.ranks) {
    absl::StatusOr<std::string> next = ReadFile(path(static_cast<int32_t>(addresses.size())));
    if (next.ok()) {
      addresses.push_back(*std::move(next));
    } else if (clock->Monotonic() >= deadline) {
      return MakeError(absl::StatusCode::kDeadlineExceeded, "LOST_RANK",
                       fmt::format("expected {} ranks within {} s, found {}", options.ranks,
                                   absl::ToDoubleSeconds(kMeetTimeout), addresses.size()));
    } else {
      const bool never = false;
      clock->AwaitUntil(&mutex, absl::Condition(&never), clock->Monotonic() + kLookAgain);
    }
  }
  return addresses;
}

}  // namespace

absl::Status RunLocalProfile(const LocalProfileOptions& options, const AttemptParts& parts) {
  ATOLL_ASSIGN_OR_RETURN(const trainer::TrainerOptions trainer, OptionsOf(options, parts));
  const transport::AttemptIdentity identity{.incarnation = 1, .attempt = 1, .secret = options.folder};
  ATOLL_ASSIGN_OR_RETURN(const std::unique_ptr<transport::Transport> transport,
                         parts.make_transport(options.device, options.rank, options.ranks, identity));
  ATOLL_ASSIGN_OR_RETURN(const std::vector<std::string> addresses, Meet(options, transport->Address(), parts.clock));
  ATOLL_RETURN_IF_ERROR(transport->Connect(addresses, trainer::ProfilerLanes(options.ranks), parts.connect_timeout));
  ATOLL_ASSIGN_OR_RETURN(const planner::Profile profile,
                         parts.profile_rank({.trainer = trainer,
                                             .precision = trainer.training.precision,
                                             .micro_batch_sizes = options.micro_batch_sizes,
                                             .key = "local"},
                                            transport.get()));
  return WriteFile(fmt::format("{}/profile-{}.json", options.folder, options.rank), storage::ToJson(profile));
}

}  // namespace atl::worker
