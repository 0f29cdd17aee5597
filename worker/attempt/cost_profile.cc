#include "worker/attempt/cost_profile.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include "common/base/status_macros.h"
#include "common/formats/profile_file.h"
#include "common/planner/measured_profile.h"
#include "common/spec/spec_io.h"
#include "common/storage/sha256.h"
#include "worker/attempt/frozen_identity.h"

namespace atl::worker {
namespace {

constexpr int64_t kLargestProfile = 64 << 20;

absl::StatusOr<planner::Profile> ReadProfile(storage::BlobStore* store, const std::string& uri) {
  ATOLL_ASSIGN_OR_RETURN(const std::string text, store->Read(uri, kLargestProfile));
  return storage::ParseProfile(text, uri);
}

// A machine that is slower or faster than it was.
absl::StatusOr<planner::Profile> AsItIsNow(planner::Profile profile, const MeasureProfile& measure) {
  ATOLL_ASSIGN_OR_RETURN(const planner::Profile now,
                         measure({.micro_batch_sizes = {profile.layers.begin()->first}, .calibration = true}));
  const double drift = planner::AdjustSpeed(now, &profile);
  spdlog::info("profile {}: cached; {:.2f} times its seconds now", profile.key, drift);
  return profile;
}

}  // namespace

bool NeedsMeasuredProfile(const spec::PipelineSpec& pipeline, bool has_frozen, int32_t ranks) {
  if (pipeline.schedule == "auto" || pipeline.memory != "auto" || pipeline.micro_batches == 0 ||
      pipeline.replicas == 0) {
    return true;
  }
  if (!has_frozen || pipeline.frozen_cache == "always") return false;
  return pipeline.frozen_cache == "auto" || (pipeline.fill != "never" && ranks > 1);
}

std::string ProfileKey(const ProfiledThing& thing) {
  const trainer::TrainerOptions& options = thing.options;
  const spec::ModelSpec& model = options.model;
  const spec::PrecisionSpec& precision = options.training.precision;
  const std::string text =
      fmt::format("{} {} {} {} {} {}{} | {} {} {} {} {} | {} {} {} {} | {} {} {} | {} | {} | {}",
                  static_cast<int>(options.objective), model.patch, model.width, model.depth, model.heads,
                  model.mlp_ratio, model.self_conditioning ? " self-conditioned" : "", options.channels, options.height,
                  options.width, options.classes, options.clusters, precision.params, precision.compute,
                  precision.reduce, precision.ema, options.device, options.threads, thing.ranks,
                  fmt::join(thing.micro_batch_sizes, ","), thing.device_name, thing.build);
  // The shape of what is learnt and the sizes of partial batches depend on frozen components too.
  const std::string frozen =
      options.frozen.empty() ? "" : fmt::format(" | {} {}", options.training.batch_size, FrozenIdentity(options));
  return storage::Sha256(text + frozen).substr(0, 32);
}

absl::StatusOr<planner::Profile> ObtainProfile(storage::BlobStore* store, std::string_view key,
                                               const std::vector<int32_t>& sizes, const MeasureProfile& measure) {
  const std::string uri = store->UriOf(fmt::format("profiles/{}.json", key));
  absl::StatusOr<planner::Profile> cached = ReadProfile(store, uri);
  if (cached.ok()) return AsItIsNow(*std::move(cached), measure);
  if (!absl::IsNotFound(cached.status())) spdlog::warn("measuring anew: {}", cached.status().ToString());
  ATOLL_ASSIGN_OR_RETURN(planner::Profile profile, measure({.micro_batch_sizes = sizes}));
  profile.key = std::string(key);
  if (const absl::Status written = store->Write(uri, storage::ToJson(profile)).status(); !written.ok()) {
    spdlog::warn("profile {} not kept: {}", uri, written.ToString());
  }
  return profile;
}

}  // namespace atl::worker
