#include "worker/leader/leader.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <spdlog/spdlog.h>

#include "absl/random/random.h"
#include "common/base/errors.h"
#include "common/base/failpoint.h"
#include "common/base/status_macros.h"
#include "common/formats/profile_file.h"
#include "common/planner/measured_profile.h"
#include "common/spec/spec_io.h"
#include "common/wire/plan_wire.h"
#include "common/wire/task_wire.h"
#include "worker/attempt/divergence_evidence.h"
#include "worker/attempt/granted_keys.h"
#include "worker/attempt/kept_plan.h"
#include "worker/attempt/same_store.h"
#include "worker/attempt/training_inputs.h"

namespace atl::worker {
namespace {

// Share of a rank's memory for plans; the rest is for libraries, samples and the allocator's gaps, which plans do not
// count.
constexpr double kPlannedMemory = 0.9;

// Share of the room for files of the store on this machine that frozen outputs may take.
constexpr double kRoomForFrozenOutputs = 0.5;

// Size of the trial write that checks whether a full store has room again. A store with less room would be full at
// once.
constexpr size_t kRoomBytes = 16 << 20;

// How long the coordinator may hold a claim while nothing fits.
constexpr absl::Duration kClaimWait = absl::Seconds(10);

// For checkpoints that are complete when an attempt ends early.
constexpr absl::Duration kCommitGrace = absl::Seconds(5);

// Returns bytes; 0 if the room is unknown.
double RoomForFrozenOutputs(const storage::BlobStore& store) {
  constexpr std::string_view kLocal = "file://";
  const bool local = std::string_view(store.root()).starts_with(kLocal);
  std::error_code error;
  const std::filesystem::path folder =
      local ? std::filesystem::path(store.root().substr(kLocal.size())) : std::filesystem::temp_directory_path(error);
  const std::filesystem::space_info space = std::filesystem::space(folder, error);
  if (error) return 0;
  auto room = static_cast<double>(space.available);
  // More than copies may take would be fetched again and again.
  if (!local) room = std::min(room, static_cast<double>(storage::RemoteOptions().local_copies_bytes));
  return kRoomForFrozenOutputs * room;
}

std::string RandomName() {
  absl::BitGen random;
  return fmt::format("{:016x}", absl::Uniform<uint64_t>(random));
}

// That a task's last step is done and its checkpoint, `refused`, is not committed. What the store or the coordinator
// lacked at that moment is not the task's fault; no other cause is one for good.
absl::Status LastNotCommitted(const spec::LeaseToken& token, int64_t step, const absl::Status& refused) {
  const std::string what =
      fmt::format("task {}: step {} is done, but its checkpoint is not committed", token.task_id, step);
  if (MayBeTakenLater(refused)) return WithContext(refused, what);
  return MakeError(absl::StatusCode::kInternal, "NO_FINAL_CHECKPOINT",
                   refused.ok() ? what : fmt::format("{}: {}", what, std::string(refused.message())));
}

// That the ranks stopped well after `step`, and the next attempt will not go on from it.
absl::Status StoppedWithoutCheckpoint(int64_t step, int64_t total_steps, const absl::Status& refused) {
  return MakeError(absl::StatusCode::kCancelled, "DRAINED",
                   fmt::format("stopped after step {} of {}, but its checkpoint is not committed: {}", step,
                               total_steps, std::string(refused.message())));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Leader>> Leader::Start(LeaderOptions options) {
  std::unique_ptr<Leader> leader(new Leader(std::move(options)));
  const std::string service = atlpb::island::v1::RendezvousService::service_full_name();
  const LeaderOptions& given = leader->options_;
  ATOLL_ASSIGN_OR_RETURN(const auto credentials, rpc::ServerCredentialsOf(given.security.get(), given.listen));
  ATOLL_ASSIGN_OR_RETURN(leader->server_,
                         rpc::Server::Start({.listen = given.listen,
                                             .services = {{service, leader->island_.get()}},
                                             .credentials = credentials,
                                             .open_streams = rpc::OpenStreamsOf(given.security.get())}));
  leader->server_->SetServing(true);
  return leader;
}

Leader::Leader(LeaderOptions options)
    : options_(std::move(options)),
      metrics_(options_.parts.metrics),
      clock_(options_.parts.clock),
      request_id_(RandomName()),
      coordinator_(std::make_unique<CoordinatorClient>(options_.coordinator, clock_, metrics_)),
      island_(std::make_unique<Island>(
          options_.island, clock_, metrics_,
          IslandEvents{.step_done = [this](const auto& done) { OnStepDone(done); },
                       .stage_files = [this](int32_t rank, const auto& files) { OnStageFiles(rank, files); },
                       .rank_profile = [this](int32_t rank, const auto& profile) { OnRankProfile(rank, profile); },
                       .commit_time = [this] { return CommitTime(); },
                       .diverged = [this](const auto& diverged) { OnDiverged(diverged); },
                       .hung = options_.hung})),
      runner_(std::make_unique<RankRunner>(
          options_.parts, [this](atlpb::island::v1::JoinRequest report) { island_->Report(std::move(report)); })),
      keeper_(std::make_unique<LeaseKeeper>(
          coordinator_.get(), clock_,
          LeaseKeeper::Events{
              .revoked = [this](const spec::LeaseToken& token, const std::string& reason) { OnRevoked(token, reason); },
              .drain = [this](const spec::LeaseToken& token, const std::string& reason) { OnDrain(token, reason); },
              .superseded = [this](const absl::Status& status,
                                   int64_t incarnation) { OnSuperseded(status, incarnation); }})),
      storage_keeper_(std::make_unique<StorageKeeper>(
          coordinator_.get(), clock_, [this](const spec::LeaseToken& token, const spec::StorageGrant& storage) {
            OnStorageRenewed(token, storage);
          })) {
  island_->SetLocalRunner(runner_.get());
}

Leader::~Leader() {
  // Destroys callers before the parts that they call: heartbeats first, then the ranks' reports, then the compute.
  coordinator_->Stop();
  keeper_.reset();
  storage_keeper_.reset();
  server_.reset();
  runner_.reset();
  island_.reset();
}

absl::Status Leader::Run() {
  absl::Status status;
  while (status.ok() && !Stopping()) {
    Gather();
    if (!Stopping()) status = RegisterIfChanged();
    if (status.ok() && !Stopping()) status = ClaimAndRun();
  }
  if (Stopping() && absl::IsCancelled(status)) status = absl::OkStatus();
  island_->ShutDownRanks(status);
  server_->Shutdown(options_.farewell_grace);
  return status;
}

void Leader::Gather() {
  const size_t present = island_->Present().size();
  const auto all = static_cast<size_t>(options_.island.state.ranks);
  if (present == all) settled_ranks_ = 0;
  if (present == all || present == settled_ranks_) return;
  spdlog::info("{} of {} ranks are there; waiting for the others for at most {} s", present,
               options_.island.state.ranks, absl::ToDoubleSeconds(options_.rejoin_timeout));
  settled_ranks_ = island_->AwaitRanks(options_.rejoin_timeout).size();
  if (settled_ranks_ < all) spdlog::warn("going on with {} of {} ranks", settled_ranks_, all);
}

absl::Status Leader::RegisterIfChanged() {
  {
    absl::MutexLock lock(&mutex_);
    if (!superseded_.ok()) {
      // A coordinator that does not know the island lost its store, or forgot the island: it learns of it again.
      // Another process that took the island's place keeps it.
      if (!absl::IsNotFound(superseded_)) return superseded_;
      superseded_ = absl::OkStatus();
      registered_ranks_ = 0;
    }
  }
  const size_t ranks = island_->Present().size();
  if (ranks == registered_ranks_) return absl::OkStatus();
  atlpb::island::v1::Capabilities capabilities = options_.capabilities;
  capabilities.set_ranks(static_cast<int32_t>(ranks));
  ATOLL_ASSIGN_OR_RETURN(const Registration registration, coordinator_->Register(capabilities, request_id_));
  registered_ranks_ = ranks;
  // A coordinator that has forgotten the island counts anew, but the present ranks reject a lower incarnation.
  incarnation_ = std::max(incarnation_, registration.incarnation);
  island_->SetIncarnation(incarnation_);
  keeper_->SetInterval(registration.heartbeat_interval);
  epoch_uri_ = registration.epoch_uri;
  {
    // A heartbeat that was under way may have been answered for the registration before.
    absl::MutexLock lock(&mutex_);
    superseded_ = absl::OkStatus();
  }
  spdlog::info("island {} is registered with {} ranks, incarnation {}", options_.coordinator.island_id, ranks,
               registration.incarnation);
  return absl::OkStatus();
}

absl::Status Leader::ClaimAndRun() {
  // Each time: a folder that was mounted may be gone, and without it every task that comes would fail.
  ATOLL_RETURN_IF_ERROR(CheckSameStore(*options_.parts.store, epoch_uri_));
  const absl::StatusOr<Claim> claim = coordinator_->ClaimTask(kClaimWait);
  if (!claim.ok()) {
    if (!absl::IsNotFound(claim.status())) return claim.status();
    registered_ranks_ = 0;
    return absl::OkStatus();
  }
  LogUnmet(claim->unmet);
  if (claim->grant.has_value()) RunGrant(*claim->grant);
  return unfit_;
}

void Leader::LogUnmet(const std::vector<std::string>& unmet) {
  std::set<std::string> now(unmet.begin(), unmet.end());
  if (now == unmet_) return;
  unmet_ = std::move(now);
  if (!unmet_.empty()) spdlog::info("tasks wait that this island cannot run: {}", fmt::join(unmet_, "; "));
}

void Leader::RunGrant(const atlpb::island::v1::TaskGrant& message) {
  const absl::StatusOr<spec::TaskGrant> parsed = wire::FromProto(message);
  if (!parsed.ok()) {
    const absl::Status failed = coordinator_->Fail(wire::FromProto(message.token()), parsed.status(), true);
    spdlog::error("a grant cannot be read: {}; reported: {}", parsed.status().ToString(), failed.ToString());
    return;
  }
  const spec::TaskGrant& grant = *parsed;
  spdlog::info("task {} ({} {}) attempt {}: claimed", grant.token.task_id, ToString(grant.kind), grant.index,
               grant.token.attempt);
  {
    absl::MutexLock lock(&mutex_);
    revoked_ = false;
    drain_reason_.reset();
    held_ = grant.token;
    divergence_.reset();
  }
  keeper_->Hold(grant.token);
  std::vector<spec::Artifact> outputs;
  storage_keeper_->Hold(grant.token, grant.storage);
  AttemptEnd end = RunTask(grant, &outputs);
  end = BlameTheStore(std::move(end), CheckSameStore(*options_.parts.store, epoch_uri_));
  if (IsTheIslandsFault(end)) {
    unfit_ = end.reason;
    end = DecideStoreEnd(std::move(end), /*too_long=*/false);
  } else if (IsTheStoresFault(end)) {
    end = AwaitStore(grant, std::move(end));
  } else {
    store_failing_since_.reset();
  }
  keeper_->Settling();
  storage_keeper_->LetGo();
  Settle(grant, end, outputs);
  keeper_->LetGo();
  absl::MutexLock lock(&mutex_);
  tracker_.reset();
}

AttemptEnd Leader::RunTask(const spec::TaskGrant& grant, std::vector<spec::Artifact>* outputs) {
  const absl::Status usable = options_.parts.store->UseKeys(KeysOf(grant.storage));
  if (!usable.ok()) return {.disposition = Disposition::kFail, .reason = usable};
  return IsTraining(grant.kind) ? RunTraining(grant, outputs) : RunLeaderTask(grant, outputs);
}

AttemptEnd Leader::RunLeaderTask(const spec::TaskGrant& grant, std::vector<spec::Artifact>* outputs) {
  const std::vector<RankDevice>& devices = options_.island.state.devices;
  const tasks::TaskContext context{.grant = grant,
                                   .store = options_.parts.store,
                                   .threads = options_.parts.threads,
                                   .device = devices.empty() ? "cpu" : devices[0].label,
                                   .report = [this](const spec::Progress& progress) { keeper_->Report(progress); },
                                   .cancelled = [this] { return Revoked() || AskedToStop().has_value(); }};
  absl::StatusOr<std::vector<spec::Artifact>> artifacts = options_.run_task(context);
  if (artifacts.ok()) {
    if (const absl::Status status = Failpoint("outputs.after_write"); !status.ok()) artifacts = status;
  }
  if (artifacts.ok()) *outputs = *std::move(artifacts);
  const std::optional<StopRequest> stop = AskedToStop();
  AttemptEnd end = DecideTaskEnd(artifacts.status(), Revoked(), stop.has_value());
  // The task knows no more than that it was cancelled.
  if (stop.has_value() && end.disposition == Disposition::kRelease) {
    end.reason = MakeError(absl::StatusCode::kCancelled, "DRAINED", fmt::format("cancelled: {}", stop->reason));
  }
  return end;
}

AttemptEnd Leader::RunTraining(const spec::TaskGrant& grant, std::vector<spec::Artifact>* outputs) {
  const absl::StatusOr<TrainingInputs> inputs = ReadTrainingInputs(options_.parts.store, grant);
  if (!inputs.ok()) return DecideTrainingEnd(inputs.status(), 0, 0, Revoked());
  const int64_t total = inputs->options.training.steps;
  if (grant.resume_from.has_value() && grant.resume_from->step >= total) {
    // The attempt before committed the last step and went before it could say so.
    const absl::Status taken = TakeFinalCheckpoint(*grant.resume_from, outputs);
    return DecideRollback(grant, *inputs, {}, DecideTrainingEnd(taken, total, total, Revoked()));
  }
  std::vector<int32_t> ranks = island_->Present();
  const absl::StatusOr<atlpb::island::v1::StartAttempt> start = PlanAttempt(grant, *inputs, &ranks);
  if (!start.ok()) return DecideTrainingEnd(start.status(), 0, total, Revoked());
  const AttemptOutcome outcome = RunAttempt(grant, *inputs, *start, ranks, outputs);
  return DecideRollback(grant, *inputs, *start, DecideTrainingEnd(outcome.status, outcome.step, total, Revoked()));
}

AttemptEnd Leader::DecideRollback(const spec::TaskGrant& grant, const TrainingInputs& inputs,
                                  const atlpb::island::v1::StartAttempt& start, AttemptEnd end) {
  if (end.disposition != Disposition::kRollBack) return end;
  end.rollback.reason = ErrorReason(end.reason);
  end.rollback.message = std::string(end.reason.message());
  std::optional<Divergence> divergence;
  {
    absl::MutexLock lock(&mutex_);
    divergence = divergence_;
  }
  if (divergence.has_value()) {
    end.rollback.reason = divergence->cause;
    end.rollback.message = divergence->message;
    end.rollback.before_step = divergence->first_bad_step;
    end.rollback.through_step = divergence->step;
    const absl::StatusOr<planner::Plan> plan = wire::FromProto(start.plan());
    const absl::StatusOr<storage::WrittenFile> evidence = options_.parts.store->Write(
        EvidenceUri(grant.write_prefix, divergence->step),
        EvidenceJson(grant, inputs, plan.ok() ? *plan : planner::Plan{}, options_.island.state.build, *divergence));
    if (evidence.ok()) {
      end.rollback.evidence_uri = evidence->uri;
    } else {
      spdlog::warn("task {} attempt {}: no evidence is kept: {}", grant.token.task_id, grant.token.attempt,
                   evidence.status().ToString());
    }
    return end;
  }
  if (!grant.resume_from.has_value()) {
    return {.disposition = Disposition::kFail, .reason = end.reason};
  }
  end.rollback.before_step = grant.resume_from->step;
  if (end.rollback.reason != "CHECKPOINT_UNREADABLE") return end;
  // A rank may fail to read a checkpoint that others can read: it is given up only if the leader finds it damaged too.
  const absl::Status again = ReadCheckpoint(options_.parts.store, *grant.resume_from).status();
  if (ErrorReason(again) == "CHECKPOINT_UNREADABLE") return end;
  return {.disposition = Disposition::kRelease,
          .reason = MakeError(absl::StatusCode::kUnavailable, "CHECKPOINT_READ_TWICE",
                              fmt::format("{}; read again by the leader: {}", std::string(end.reason.message()),
                                          again.ok() ? "it is whole" : again.ToString()))};
}

AttemptEnd Leader::AwaitStore(const spec::TaskGrant& grant, AttemptEnd end) {
  if (!store_failing_since_.has_value()) store_failing_since_ = clock_->Monotonic();
  spdlog::error("task {} attempt {}: keeping it until the blob store works: {}", grant.token.task_id,
                grant.token.attempt, end.reason.ToString());
  storage::BlobStore& store = *options_.parts.store;
  const std::string uri = grant.write_prefix + "/room";
  const std::string bytes(kRoomBytes, '\0');
  const auto works = [&] { return CheckSameStore(store, epoch_uri_).ok() && store.Write(uri, bytes).ok(); };
  const auto failing = [&] { return clock_->Monotonic() - *store_failing_since_; };
  bool ends = false;
  // Once at least: a store that takes this file may still be too full for the task's.
  do {
    absl::MutexLock lock(&mutex_);
    const auto over = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
      return revoked_ || stopping_ || drain_reason_.has_value();
    };
    ends = clock_->AwaitUntil(&mutex_, absl::Condition(&over), clock_->Monotonic() + options_.store_interval);
  } while (!ends && failing() < options_.store_patience && !works());
  if (const absl::Status status = store.Delete(uri); !status.ok()) spdlog::warn("{} stays behind", uri);
  if (Revoked()) return {.disposition = Disposition::kNothing, .reason = std::move(end.reason)};
  end = DecideStoreEnd(std::move(end), !ends && failing() >= options_.store_patience);
  // The next one is kept as long: else an outage a little above the patience would use up every task's budget at once.
  if (end.disposition == Disposition::kFail) store_failing_since_.reset();
  return end;
}

absl::Status Leader::TakeFinalCheckpoint(const spec::CommittedCheckpoint& checkpoint,
                                         std::vector<spec::Artifact>* outputs) {
  ATOLL_RETURN_IF_ERROR(ReadCheckpoint(options_.parts.store, checkpoint).status());
  ATOLL_ASSIGN_OR_RETURN(const std::string manifest,
                         options_.parts.store->ReadVerified(checkpoint.manifest_uri, checkpoint.manifest_sha256));
  outputs->push_back({.name = "checkpoint",
                      .uri = checkpoint.manifest_uri,
                      .bytes = static_cast<int64_t>(manifest.size()),
                      .sha256 = checkpoint.manifest_sha256});
  return absl::OkStatus();
}

atlpb::island::v1::StartAttempt Leader::StartOf(const spec::TaskGrant& grant, const planner::Plan& plan) const {
  atlpb::island::v1::StartAttempt start;
  start.set_incarnation(incarnation_);
  start.set_epoch_uri(epoch_uri_);
  *start.mutable_grant() = wire::ToProto(grant);
  *start.mutable_plan() = wire::ToProto(plan);
  return start;
}

AttemptOutcome Leader::RunOnIsland(const atlpb::island::v1::StartAttempt& start, const std::vector<int32_t>& ranks) {
  island_->BeginAttempt(start, ranks);
  // A revocation or a request to stop that came before found nothing to end.
  if (Revoked()) island_->Abort(MakeError(absl::StatusCode::kAborted, "STALE_ATTEMPT", "the lease was revoked"));
  if (const std::optional<StopRequest> stop = AskedToStop()) island_->StopSoon(*stop);
  return island_->AwaitOutcome();
}

absl::StatusOr<planner::Profile> Leader::CostsFor(const spec::TaskGrant& grant, const TrainingInputs& inputs,
                                                  const std::vector<int32_t>& ranks) {
  if (!NeedsMeasuredProfile(grant.spec.pipeline, !inputs.options.frozen.empty(), static_cast<int32_t>(ranks.size()))) {
    return CountedProfileOf(inputs);
  }
  ProfiledThing thing{.options = inputs.options,
                      .ranks = static_cast<int32_t>(ranks.size()),
                      .device_name = options_.capabilities.device_name(),
                      .build = options_.island.state.build};
  thing.options.threads = options_.parts.threads;
  thing.options.device = options_.capabilities.device_kind();
  thing.micro_batch_sizes =
      planner::SizesToProfile(inputs.options.training.batch_size, grant.spec.pipeline.micro_batches, thing.ranks);
  const std::string key = ProfileKey(thing);
  const absl::StatusOr<planner::Profile> profile = ObtainProfile(
      options_.parts.store, key, thing.micro_batch_sizes,
      [&](const Measurement& measurement) { return MeasureOnRanks(grant, inputs, ranks, key, measurement); });
  if (profile.ok()) return *profile;
  spdlog::warn("task {} attempt {}: planned with counted costs, for measuring them failed: {}", grant.token.task_id,
               grant.token.attempt, profile.status().ToString());
  return CountedProfileOf(inputs);
}

absl::StatusOr<planner::Profile> Leader::MeasureOnRanks(const spec::TaskGrant& grant, const TrainingInputs& inputs,
                                                        const std::vector<int32_t>& ranks, const std::string& key,
                                                        const Measurement& measurement) {
  // Any plan on these ranks works, because it only names the participants.
  const spec::PipelineSpec pipeline{.schedule = "1f1b", .micro_batches = 1};
  ATOLL_ASSIGN_OR_RETURN(planner::Profile counted, CountedProfileOf(inputs));
  counted.frozen.clear();
  ATOLL_ASSIGN_OR_RETURN(const planner::Plan plan,
                         MakeTrainingPlan(inputs, pipeline, {.ranks = static_cast<int32_t>(ranks.size())}, counted));
  atlpb::island::v1::StartAttempt start = StartOf(grant, plan);
  start.mutable_profile()->set_key(key);
  const std::vector<int32_t>& sizes = measurement.micro_batch_sizes;
  start.mutable_profile()->mutable_micro_batch_sizes()->Add(sizes.begin(), sizes.end());
  start.mutable_profile()->set_calibration(measurement.calibration);
  {
    absl::MutexLock lock(&mutex_);
    rank_profiles_.clear();
  }
  spdlog::info("task {} attempt {}: measuring micro-batches of {} on {} ranks", grant.token.task_id,
               grant.token.attempt, fmt::join(sizes, ","), plan.rank_count());
  ATOLL_RETURN_IF_ERROR(RunOnIsland(start, {ranks.begin(), ranks.begin() + plan.rank_count()}).status);
  std::vector<planner::Profile> profiles;
  absl::MutexLock lock(&mutex_);
  for (const auto& [rank, json] : rank_profiles_) {
    ATOLL_ASSIGN_OR_RETURN(profiles.emplace_back(),
                           storage::ParseProfile(json, fmt::format("profile of rank {}", rank)));
  }
  return planner::MergeProfiles(profiles);
}

absl::StatusOr<planner::Plan> Leader::PlanFor(const spec::TaskGrant& grant, const TrainingInputs& inputs,
                                              const std::vector<int32_t>& ranks) {
  const auto present = static_cast<int32_t>(ranks.size());
  storage::BlobStore* const store = options_.parts.store;
  const bool has_frozen = !inputs.options.frozen.empty();
  if (has_frozen && grant.resume_from.has_value()) {
    absl::StatusOr<planner::Plan> kept = ReadKeptPlan(store, grant, present);
    if (kept.ok()) return kept;
    spdlog::warn("task {} attempt {}: frozen work may be cut otherwise than before, and so round otherwise: {}",
                 grant.token.task_id, grant.token.attempt, kept.status().ToString());
  }
  ATOLL_ASSIGN_OR_RETURN(const planner::Profile costs, CostsFor(grant, inputs, ranks));
  const double memory = kPlannedMemory * static_cast<double>(options_.capabilities.memory_bytes_per_rank());
  ATOLL_ASSIGN_OR_RETURN(
      planner::Plan plan,
      MakeTrainingPlan(
          inputs, grant.spec.pipeline,
          {.ranks = present, .memory_bytes_per_rank = memory, .storage_bytes = RoomForFrozenOutputs(*store)}, costs));
  if (!has_frozen) return plan;
  if (const absl::Status kept = KeepPlan(store, grant, present, plan); !kept.ok()) {
    spdlog::warn("task {} attempt {}: plan not kept: {}", grant.token.task_id, grant.token.attempt, kept.ToString());
  }
  return plan;
}

absl::StatusOr<atlpb::island::v1::StartAttempt> Leader::PlanAttempt(const spec::TaskGrant& grant,
                                                                    const TrainingInputs& inputs,
                                                                    std::vector<int32_t>* ranks) {
  const auto present = static_cast<int32_t>(ranks->size());
  if (const int32_t least = spec::LeastRanks(grant.spec); present < least) {
    return MakeError(absl::StatusCode::kUnavailable, "LOST_RANK",
                     fmt::format("task {}: expected {} ranks, found {}", grant.token.task_id, least, present));
  }
  ATOLL_ASSIGN_OR_RETURN(const planner::Plan plan, PlanFor(grant, inputs, *ranks));
  ranks->resize(plan.rank_count());
  spdlog::info("task {} attempt {}: {} stages on ranks {}; {}", grant.token.task_id, grant.token.attempt,
               plan.stages.size(), fmt::join(*ranks, ","), plan.reason);
  atlpb::island::v1::StartAttempt start = StartOf(grant, plan);
  start.set_checkpoint_nonce(RandomName());
  return start;
}

AttemptOutcome Leader::RunAttempt(const spec::TaskGrant& grant, const TrainingInputs& inputs,
                                  const atlpb::island::v1::StartAttempt& start, const std::vector<int32_t>& ranks,
                                  std::vector<spec::Artifact>* outputs) {
  const spec::TrainingSpec& training = inputs.options.training;
  CheckpointCommits commits(
      {.token = grant.token,
       .write_prefix = grant.write_prefix,
       .nonce = start.checkpoint_nonce(),
       .ranks = static_cast<int32_t>(ranks.size()),
       .milestone_every = training.milestone_every,
       .build = options_.island.state.build},
      options_.parts.store, coordinator_.get(), clock_, metrics_,
      [this, &grant](const absl::Status& status) { OnRevoked(grant.token, ErrorReason(status)); });
  {
    absl::MutexLock lock(&mutex_);
    commits_ = &commits;
    tracker_ = std::make_unique<ProgressTracker>(training.steps, training.batch_size);
  }
  AttemptOutcome outcome = RunOnIsland(start, ranks);
  commits.AwaitCommitted(outcome.status.ok() ? absl::InfiniteDuration() : kCommitGrace);
  {
    absl::MutexLock lock(&mutex_);
    commits_ = nullptr;
  }
  const std::optional<CommittedManifest> last = commits.last();
  if (last.has_value()) store_failing_since_.reset();
  if (last.has_value() && last->step >= training.steps) {
    outputs->push_back(last->artifact);
  } else if (outcome.status.ok() && outcome.step >= training.steps) {
    outcome.status = LastNotCommitted(grant.token, outcome.step, commits.refused());
  } else if (outcome.status.ok() && (!last.has_value() || last->step < outcome.step) && !commits.refused().ok()) {
    outcome.status = StoppedWithoutCheckpoint(outcome.step, training.steps, commits.refused());
  }
  return outcome;
}

void Leader::Settle(const spec::TaskGrant& grant, const AttemptEnd& end, const std::vector<spec::Artifact>& outputs) {
  spec::Progress progress;
  {
    absl::MutexLock lock(&mutex_);
    if (tracker_ != nullptr) progress = tracker_->last();
  }
  const std::string name = fmt::format("task {} attempt {}", grant.token.task_id, grant.token.attempt);
  absl::Status told;
  switch (end.disposition) {
    case Disposition::kComplete:
      spdlog::info("{}: done", name);
      told = coordinator_->Complete(grant.token, outputs, progress);
      break;
    case Disposition::kRelease:
      spdlog::warn("{}: giving it back: {}", name, end.reason.ToString());
      told = coordinator_->Release(grant.token, std::string(end.reason.message()), end.store_failed);
      break;
    case Disposition::kRollBack: {
      spdlog::error("{}: rolling back: {}", name, end.rollback.message);
      const auto rollback = coordinator_->RollBack(grant.token, end.rollback);
      told = rollback.status();
      if (rollback.ok() && rollback->has_value()) {
        spdlog::warn("task {}: rolled back to step {}, skipped {} steps, evidence at {}", grant.token.task_id,
                     (*rollback)->to_step(), (*rollback)->skipped_steps(),
                     end.rollback.evidence_uri.empty() ? "no place" : end.rollback.evidence_uri);
      } else if (rollback.ok()) {
        spdlog::error("task {}: failed: it diverged once more after its rollbacks", grant.token.task_id);
      }
      break;
    }
    case Disposition::kFail:
      spdlog::error("{}: failed{}: {}", name, end.permanent ? " for good" : "", end.reason.ToString());
      told = coordinator_->Fail(grant.token, end.reason, end.permanent);
      break;
    case Disposition::kNothing:
      spdlog::warn("{}: given up: {}", name, end.reason.ToString());
      break;
  }
  // A lease that is not ours any more needs no settling: another attempt has it.
  if (!told.ok()) spdlog::warn("{}: the coordinator did not take it: {}", name, told.ToString());
}

void Leader::OnStepDone(const atlpb::island::v1::StepDone& done) {
  std::map<std::string, double> metrics(done.metrics().begin(), done.metrics().end());
  metrics["gradient_norm"] = done.gradient_norm();
  absl::MutexLock lock(&mutex_);
  if (tracker_ == nullptr) return;
  keeper_->Report(tracker_->OnStep(done.step(), done.loss(), std::move(metrics), clock_->Monotonic()));
  keeper_->ReportStepTime(tracker_->step_time());
}

void Leader::OnDiverged(const atlpb::island::v1::Diverged& diverged) {
  absl::MutexLock lock(&mutex_);
  // Every rank reports the same, so the first report is enough.
  if (divergence_.has_value()) return;
  divergence_ = Divergence{.step = diverged.step(),
                           .first_bad_step = diverged.first_bad_step(),
                           .cause = diverged.cause(),
                           .message = diverged.message()};
  for (const auto& step : diverged.steps()) {
    divergence_->steps.push_back({step.step(), step.loss(), step.gradient_norm(), step.first_sample()});
  }
}

void Leader::OnStageFiles(int32_t rank, const atlpb::island::v1::StageFiles& files) {
  absl::MutexLock lock(&mutex_);
  if (commits_ != nullptr) commits_->OnStageFiles(rank, files);
}

void Leader::OnRankProfile(int32_t rank, const atlpb::island::v1::RankProfile& profile) {
  absl::MutexLock lock(&mutex_);
  rank_profiles_[rank] = profile.profile();
}

void Leader::OnRevoked(const spec::LeaseToken& token, const std::string& reason) {
  absl::MutexLock lock(&mutex_);
  // The word may come when its task is settled and the next one has begun.
  if (token == held_) GiveUpTask(reason);
}

void Leader::OnDrain(const spec::LeaseToken& token, const std::string& reason) {
  absl::MutexLock lock(&mutex_);
  if (!(token == held_)) return;
  drain_reason_ = reason;
  // With the lock held, as below.
  island_->StopSoon({.reason = reason});
}

// With the lock held to the end: what it posts to the island must not meet the next task.
void Leader::GiveUpTask(const std::string& reason) {
  revoked_ = true;
  if (commits_ != nullptr) commits_->GiveUp();
  island_->Abort(MakeError(absl::StatusCode::kAborted, reason, fmt::format("the lease was revoked: {}", reason)));
}

void Leader::OnSuperseded(const absl::Status& status, int64_t incarnation) {
  absl::MutexLock lock(&mutex_);
  // The status belongs to an earlier registration.
  if (incarnation != coordinator_->incarnation()) return;
  if (superseded_.ok()) spdlog::error("this process is not the island's any more: {}", status.ToString());
  superseded_ = status;
  GiveUpTask(ErrorReason(status));
}

void Leader::OnStorageRenewed(const spec::LeaseToken& token, const spec::StorageGrant& storage) {
  absl::MutexLock lock(&mutex_);
  // With the lock held: the next task must not get them.
  if (!(token == held_)) return;
  const absl::Status usable = options_.parts.store->UseKeys(KeysOf(storage));
  if (!usable.ok()) spdlog::error("task {}: {}", token.task_id, usable.ToString());
  island_->RenewStorage(token, storage);
}

bool Leader::Revoked() const {
  absl::MutexLock lock(&mutex_);
  return revoked_;
}

bool Leader::Stopping() const {
  absl::MutexLock lock(&mutex_);
  return stopping_;
}

std::optional<StopRequest> Leader::AskedToStop() const {
  absl::MutexLock lock(&mutex_);
  if (stopping_) return stop_;
  if (drain_reason_) return StopRequest{.reason = *drain_reason_};
  return std::nullopt;
}

absl::Duration Leader::CommitTime() const {
  absl::MutexLock lock(&mutex_);
  return commits_ == nullptr ? absl::ZeroDuration() : commits_->commit_time();
}

void Leader::Stop(StopRequest request) {
  spdlog::info("stopping: {}", request.reason);
  server_->AnnounceEnd();
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    stop_ = request;
  }
  island_->Interrupt();
  island_->StopSoon(std::move(request));
  coordinator_->Drain();
}

void Leader::StopNow() {
  spdlog::warn("stopping at once");
  coordinator_->Hurry();
  island_->Abort(absl::CancelledError("the process ends"));
}

}  // namespace atl::worker
