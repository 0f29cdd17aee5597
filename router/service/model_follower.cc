#include "router/service/model_follower.h"

#include <algorithm>

#include "common/base/errors.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "grpcpp/channel.h"
#include "spdlog/spdlog.h"

namespace atl::router {
namespace {

namespace model_pb = atlpb::model::v1;

// How often the roller looks again without news: retries and draining versions come due without any.
constexpr absl::Duration kRollPeriod = absl::Milliseconds(500);

// Requests leave when the engine looks; it is asked again in case one came in between.
constexpr absl::Duration kEndAgainAfter = absl::Seconds(5);

bool FilesAreToBlame(const absl::Status& status) {
  return absl::IsDataLoss(status) || absl::IsInvalidArgument(status) || absl::IsFailedPrecondition(status);
}

VersionStatus* Find(std::vector<VersionStatus>* versions, const std::string& version) {
  const auto found = std::find_if(versions->begin(), versions->end(),
                                  [&](const VersionStatus& status) { return status.version == version; });
  return found == versions->end() ? nullptr : &*found;
}

absl::Status CheckIdentity(const SamplerInfo& info, const PublishedVersion& version) {
  if (info.model == version.model && info.version == version.version) return absl::OkStatus();
  return MakeError(absl::StatusCode::kDataLoss, "MODEL_MISMATCH",
                   fmt::format("{}: expected model '{}' version '{}', found '{}' '{}'", version.uri, version.model,
                               version.version, info.model, info.version));
}

// Pinned versions that are not published (yet): likely mistyped.
void WarnOfUnknown(const std::string& model, const std::vector<std::string>& pinned,
                   const std::map<std::string, PublishedVersion>& published) {
  std::vector<std::string> known;
  for (const auto& [version, ignored] : published) known.push_back(version);
  for (const std::string& version : pinned) {
    if (published.contains(version)) continue;
    spdlog::warn("--pin {}@{}: expected a version of the model, {}; it is loaded once it is published", model, version,
                 fmt::join(known, ", "));
  }
}

}  // namespace

ModelFollower::ModelFollower(FollowerOptions options, std::shared_ptr<grpc::Channel> channel, Loader loader,
                             Engine* engine, Clock* clock, Callbacks callbacks)
    : options_(std::move(options)),
      stub_(model_pb::ModelService::NewStub(channel)),
      loader_(std::move(loader)),
      engine_(engine),
      clock_(clock),
      callbacks_(std::move(callbacks)),
      watch_(
          {.what = "models",
           .meanwhile = "serving goes on with what is known",
           .backoff = options_.backoff,
           .on_connection = callbacks_.on_connection},
          [this](grpc::ClientContext* context, const std::function<void()>& received) {
            return ReadStream(context, received);
          },
          clock) {
  roller_ = std::thread([this] { RollLoop(); });
  loader_thread_ = std::thread([this] { LoadLoop(); });
}

ModelFollower::~ModelFollower() {
  Stop();
  roller_.join();
  loader_thread_.join();
}

void ModelFollower::Stop() {
  watch_.Stop();
  absl::MutexLock lock(&mutex_);
  stopping_ = true;
}

void ModelFollower::LookAgain() {
  absl::MutexLock lock(&mutex_);
  news_ = true;
}

std::vector<FollowedVersion> ModelFollower::Versions() {
  std::vector<FollowedVersion> versions;
  absl::MutexLock lock(&mutex_);
  Refresh();
  for (const auto& [model, followed] : models_) {
    const std::vector<std::string> pinned = PinnedOf(model, followed);
    for (const VersionStatus& status : followed.versions) {
      FollowedVersion& entry = versions.emplace_back(
          FollowedVersion{.model = model,
                          .version = status.version,
                          .state = status.state,
                          .wanted = followed.wanted && followed.wanted->version == status.version,
                          .pinned = std::find(pinned.begin(), pinned.end(), status.version) != pinned.end(),
                          .requests = status.requests});
      if (const auto loaded = followed.loaded.find(status.version); loaded != followed.loaded.end()) {
        entry.weight_bytes = loaded->second.weight_bytes;
        entry.own_weight_bytes = loaded->second.own_weight_bytes;
      }
      if (status.state == VersionState::kReady) entry.waits_for = DescribeMissing(status.servers);
      const auto error = followed.load_errors.find(status.version);
      if (status.state == VersionState::kFailed && error != followed.load_errors.end()) {
        entry.waits_for = error->second;
      }
    }
  }
  return versions;
}

grpc::Status ModelFollower::ReadStream(grpc::ClientContext* context, const std::function<void()>& received) {
  // Every model, from the start: a row that is known already changes nothing.
  const auto reader = stub_->WatchModel(context, model_pb::WatchModelRequest());
  model_pb::WatchModelResponse response;
  std::set<std::string> told;
  while (reader->Read(&response)) {
    received();
    TakeNews(response.model(), told.insert(response.model().name()).second);
  }
  return reader->Finish();
}

void ModelFollower::TakeNews(const model_pb::Model& model, bool first) {
  if (model.serving_version().empty()) return;
  const bool asked = options_.models.empty() ||
                     std::find(options_.models.begin(), options_.models.end(), model.name()) != options_.models.end();
  if (!asked) {
    absl::MutexLock lock(&mutex_);
    if (left_out_.insert(model.name()).second) {
      spdlog::info("model '{}' is published and not served here: --model asks for {}", model.name(),
                   fmt::join(options_.models, ", "));
    }
    return;
  }
  const ServingChoice choice{.version = model.serving_version(), .generation = model.serving_generation()};
  absl::MutexLock lock(&mutex_);
  Followed& followed = models_[model.name()];
  const bool is_new = followed.published.empty();
  // Versions may be published, and pinned, without another one serving.
  for (const model_pb::ModelVersion& version : model.versions()) {
    followed.published[version.version()] = {model.name(), version.version(), version.uri(), version.digest()};
  }
  const auto pinned = options_.pinned.find(model.name());
  if (is_new && pinned != options_.pinned.end()) WarnOfUnknown(model.name(), pinned->second, followed.published);
  news_ = true;
  if (!Replaces(choice, followed.wanted, first)) return;
  if (!followed.published.contains(choice.version)) {
    spdlog::error("model '{}': generation {} serves version '{}', which is not among its {} versions", model.name(),
                  choice.generation, choice.version, model.versions_size());
    return;
  }
  if (followed.wanted && choice.generation <= followed.wanted->generation) {
    spdlog::warn(
        "model '{}': the coordinator is at generation {} of the serving version, '{}', and was at {}, '{}': its "
        "store was restored",
        model.name(), choice.generation, choice.version, followed.wanted->generation, followed.wanted->version);
  }
  followed.wanted = choice;
  engine_->Expect(model.name());
}

void ModelFollower::RollLoop() {
  while (true) {
    while (RollOnce()) {
    }
    absl::MutexLock lock(&mutex_);
    const auto awake = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || news_; };
    clock_->AwaitUntil(&mutex_, absl::Condition(&awake), clock_->Monotonic() + kRollPeriod);
    if (stopping_) return;
    news_ = false;
  }
}

void ModelFollower::Refresh() {
  for (auto& [name, followed] : models_) {
    for (VersionStatus& status : followed.versions) {
      status.requests = engine_->RequestsOn(name, status.version);
      status.servers = {};
      const auto loaded = followed.loaded.find(status.version);
      if (!callbacks_.server_needs || loaded == followed.loaded.end() || loaded->second.remote.empty()) continue;
      status.servers = callbacks_.server_needs(loaded->second.remote);
    }
  }
}

bool ModelFollower::RollOnce() {
  LoadedVersion dropped;  // freed after the lock
  absl::MutexLock lock(&mutex_);
  if (stopping_) return false;
  Refresh();
  for (auto& [name, followed] : models_) {
    const RollDecision decision =
        DecideRoll(clock_->Monotonic(), followed.wanted, followed.versions, PinnedOf(name, followed));
    NoteWaiting(name, &followed, decision);
    if (decision.action == RollAction::kNone || decision.action == RollAction::kWait) continue;
    dropped = CarryOut(name, &followed, decision);
    return true;
  }
  return false;
}

void ModelFollower::NoteWaiting(const std::string& model, Followed* followed, const RollDecision& decision) {
  if (decision.action != RollAction::kWait && decision.action != RollAction::kNone) return;
  const std::string waits_for = decision.action == RollAction::kWait ? decision.reason : "";
  if (waits_for == followed->waits_for) return;
  followed->waits_for = waits_for;
  if (!waits_for.empty()) {
    spdlog::info("model '{}': version '{}' waits for expert servers: {}", model, decision.version, waits_for);
  }
  if (!callbacks_.on_waiting) return;
  const VersionStatus* const status = Find(&followed->versions, decision.version);
  if (waits_for.empty() || status == nullptr) return callbacks_.on_waiting(model, 0);
  callbacks_.on_waiting(model, static_cast<int64_t>(status->servers.missing.size()));
}

LoadedVersion ModelFollower::CarryOut(const std::string& model, Followed* followed, const RollDecision& decision) {
  LoadedVersion dropped;
  VersionStatus* const status = Find(&followed->versions, decision.version);
  switch (decision.action) {
    case RollAction::kNone:
    case RollAction::kWait:
      break;
    case RollAction::kDrop:
      spdlog::info("model '{}': dropping version '{}': {}", model, decision.version, decision.reason);
      dropped = std::move(followed->loaded[decision.version]);
      if (dropped.served != nullptr) engine_->Forget(*dropped.served);
      followed->loaded.erase(decision.version);
      followed->load_errors.erase(decision.version);
      std::erase_if(followed->versions, [&](const auto& entry) { return entry.version == decision.version; });
      break;
    case RollAction::kEndRequests:
      spdlog::warn("model '{}': ending the requests of version '{}': {}", model, decision.version, decision.reason);
      engine_->EndRequestsOn(model, decision.version);
      status->drain_until = clock_->Monotonic() + kEndAgainAfter;
      break;
    case RollAction::kOffer:
      engine_->Offer(followed->loaded[decision.version].served);
      status->state = VersionState::kOffered;
      spdlog::info("model '{}': version '{}' serves those who name it: {}", model, decision.version, decision.reason);
      break;
    case RollAction::kSwitch:
      Switch(model, followed, decision.version);
      spdlog::info("model '{}': version '{}' serves: {}", model, decision.version, decision.reason);
      if (callbacks_.on_serving) callbacks_.on_serving(model, decision.version, followed->wanted->generation);
      break;
    case RollAction::kLoad:
      spdlog::info("model '{}': loading version '{}': {}", model, decision.version, decision.reason);
      dropped = std::move(followed->loaded[decision.version]);
      followed->loaded.erase(decision.version);
      std::erase_if(followed->versions, [&](const auto& entry) { return entry.version == decision.version; });
      followed->versions.push_back({.version = decision.version, .state = VersionState::kLoading});
      loads_.push_back(followed->published[decision.version]);
      break;
  }
  return dropped;
}

std::vector<std::string> ModelFollower::PinnedOf(const std::string& model, const Followed& followed) const {
  std::vector<std::string> known;
  const auto pinned = options_.pinned.find(model);
  if (pinned == options_.pinned.end()) return known;
  for (const std::string& version : pinned->second) {
    if (followed.published.contains(version)) known.push_back(version);
  }
  return known;
}

void ModelFollower::Switch(const std::string& model, Followed* followed, const std::string& version) {
  const std::vector<std::string> pinned = PinnedOf(model, *followed);
  for (VersionStatus& status : followed->versions) {
    if (status.state != VersionState::kServing) continue;
    const bool stays = std::find(pinned.begin(), pinned.end(), status.version) != pinned.end();
    if (stays) engine_->Offer(followed->loaded[status.version].served);
    status.state = stays ? VersionState::kOffered : VersionState::kDraining;
    status.drain_until = clock_->Monotonic() + options_.drain_deadline;
  }
  engine_->Serve(followed->loaded[version].served);
  engine_->Withdraw(model, version);
  Find(&followed->versions, version)->state = VersionState::kServing;
}

void ModelFollower::LoadLoop() {
  while (true) {
    PublishedVersion version;
    {
      absl::MutexLock lock(&mutex_);
      const auto awake = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !loads_.empty(); };
      mutex_.Await(absl::Condition(&awake));
      if (stopping_) return;
      version = std::move(loads_.front());
      loads_.pop_front();
    }
    LoadVersion(version);
  }
}

void ModelFollower::LoadVersion(const PublishedVersion& version) {
  absl::StatusOr<LoadedVersion> loaded = loader_(version);
  absl::Status status = loaded.status();
  if (status.ok()) status = CheckIdentity(loaded->served->info, version);
  if (!status.ok()) {
    spdlog::error("model '{}' version '{}' cannot be served: {}", version.model, version.version, status.ToString());
    if (callbacks_.on_load_failed) callbacks_.on_load_failed(version, status);
  }
  absl::MutexLock lock(&mutex_);
  news_ = true;
  Followed& followed = models_[version.model];
  VersionStatus* const entry = Find(&followed.versions, version.version);
  if (status.ok()) {
    entry->state = VersionState::kReady;
    followed.loaded[version.version] = *std::move(loaded);
    followed.load_failures.erase(version.version);
    followed.load_errors.erase(version.version);
    return;
  }
  const absl::Duration wait = BackoffDelay(options_.load_backoff, ++followed.load_failures[version.version], 0);
  entry->state = VersionState::kFailed;
  entry->retry_at = clock_->Monotonic() + (FilesAreToBlame(status) ? options_.load_backoff.longest : wait);
  followed.load_errors[version.version] = std::string(status.message());
}

}  // namespace atl::router
