#include "router/service/model_follower.h"

#include <algorithm>

#include "absl/random/random.h"
#include "common/base/errors.h"
#include "common/rpc/channel.h"
#include "common/rpc/status.h"
#include "fmt/format.h"
#include "spdlog/spdlog.h"

namespace atl::router {
namespace {

namespace pb = atlpb::model::v1;

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

}  // namespace

ModelFollower::ModelFollower(FollowerOptions options, std::shared_ptr<grpc::Channel> channel, Loader loader,
                             Engine* engine, Clock* clock, Callbacks callbacks)
    : options_(std::move(options)),
      stub_(pb::ModelService::NewStub(channel)),
      loader_(std::move(loader)),
      engine_(engine),
      clock_(clock),
      callbacks_(std::move(callbacks)) {
  watcher_ = std::thread([this] { WatchLoop(); });
  roller_ = std::thread([this] { RollLoop(); });
}

ModelFollower::~ModelFollower() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    if (watch_ != nullptr) watch_->TryCancel();
  }
  watcher_.join();
  roller_.join();
}

void ModelFollower::WatchLoop() {
  absl::BitGen random;
  absl::Duration backoff = options_.first_backoff;
  while (true) {
    if (WatchOnce()) backoff = options_.first_backoff;
    absl::MutexLock lock(&mutex_);
    const absl::Duration wait = backoff * absl::Uniform(random, 0.5, 1.0);
    if (clock_->AwaitUntil(&mutex_, absl::Condition(&stopping_), clock_->Monotonic() + wait)) return;
    backoff = std::min(backoff * 2, options_.last_backoff);
  }
}

bool ModelFollower::WatchOnce() {
  grpc::ClientContext context;
  rpc::SetTimeout(&context, options_.watch_deadline);
  {
    absl::MutexLock lock(&mutex_);
    if (stopping_) return false;
    watch_ = &context;
  }
  // Every model, from the start: a row that is known already changes nothing (IsNewer).
  const auto reader = stub_->WatchModel(&context, pb::WatchModelRequest());
  pb::WatchModelResponse response;
  bool heard = false;
  while (reader->Read(&response)) {
    if (!heard && callbacks_.on_connection) callbacks_.on_connection(true);
    heard = true;
    TakeNews(response.model());
  }
  const grpc::Status status = reader->Finish();
  absl::MutexLock lock(&mutex_);
  watch_ = nullptr;
  if (!stopping_ && status.error_code() != grpc::StatusCode::DEADLINE_EXCEEDED) {
    spdlog::warn("watching models: {}; serving goes on with what is known", status.error_message());
    if (callbacks_.on_connection) callbacks_.on_connection(false);
  }
  return heard;
}

void ModelFollower::TakeNews(const pb::Model& model) {
  if (model.serving_version().empty()) return;
  const bool asked = options_.models.empty() ||
                     std::find(options_.models.begin(), options_.models.end(), model.name()) != options_.models.end();
  if (!asked) return;
  const ServingChoice choice{.version = model.serving_version(), .generation = model.serving_generation()};
  absl::MutexLock lock(&mutex_);
  Followed& followed = models_[model.name()];
  // Versions may be published, and pinned, without another one serving.
  for (const pb::ModelVersion& version : model.versions()) {
    followed.published[version.version()] = {model.name(), version.version(), version.uri(), version.digest()};
  }
  news_ = true;
  if (!IsNewer(followed.wanted, choice)) return;
  if (!followed.published.contains(choice.version)) {
    spdlog::error("model '{}': generation {} serves version '{}', which is not among its {} versions", model.name(),
                  choice.generation, choice.version, model.versions_size());
    return;
  }
  followed.wanted = choice;
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

void ModelFollower::RefreshRequestCounts() {
  for (auto& [name, followed] : models_) {
    for (VersionStatus& status : followed.versions) status.requests = engine_->RequestsOn(name, status.version);
  }
}

bool ModelFollower::RollOnce() {
  std::optional<PublishedVersion> to_load;
  std::shared_ptr<const ServedVersion> dropped;  // freed after the lock
  {
    absl::MutexLock lock(&mutex_);
    if (stopping_) return false;
    RefreshRequestCounts();
    for (auto& [name, followed] : models_) {
      const RollDecision decision =
          DecideRoll(clock_->Monotonic(), followed.wanted, followed.versions, PinnedOf(name, followed));
      if (decision.action == RollAction::kNone) continue;
      if (decision.action == RollAction::kDrop) {
        spdlog::info("model '{}': dropping version '{}': {}", name, decision.version, decision.reason);
        dropped = std::move(followed.loaded[decision.version]);
        followed.loaded.erase(decision.version);
        std::erase_if(followed.versions, [&](const auto& status) { return status.version == decision.version; });
        return true;
      }
      if (decision.action == RollAction::kEndRequests) {
        spdlog::warn("model '{}': ending the requests of version '{}': {}", name, decision.version, decision.reason);
        engine_->EndRequestsOn(name, decision.version);
        Find(&followed.versions, decision.version)->drain_until = clock_->Monotonic() + kEndAgainAfter;
        return true;
      }
      if (decision.action == RollAction::kOffer) {
        engine_->Offer(followed.loaded[decision.version]);
        Find(&followed.versions, decision.version)->state = VersionState::kOffered;
        spdlog::info("model '{}': version '{}' serves those who name it: {}", name, decision.version, decision.reason);
        return true;
      }
      if (decision.action == RollAction::kSwitch) {
        Switch(name, &followed, decision.version);
        spdlog::info("model '{}': version '{}' serves: {}", name, decision.version, decision.reason);
        if (callbacks_.on_serving) callbacks_.on_serving(name, decision.version, followed.wanted->generation);
        return true;
      }
      spdlog::info("model '{}': loading version '{}': {}", name, decision.version, decision.reason);
      std::erase_if(followed.versions, [&](const auto& status) { return status.version == decision.version; });
      followed.versions.push_back({.version = decision.version, .state = VersionState::kLoading});
      to_load = followed.published[decision.version];
      break;
    }
  }
  if (!to_load) return false;
  LoadVersion(to_load->model, *to_load);
  return true;
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
    if (stays) engine_->Offer(followed->loaded[status.version]);
    status.state = stays ? VersionState::kOffered : VersionState::kDraining;
    status.drain_until = clock_->Monotonic() + options_.drain_deadline;
  }
  engine_->Serve(followed->loaded[version]);
  engine_->Withdraw(model, version);
  Find(&followed->versions, version)->state = VersionState::kServing;
}

void ModelFollower::LoadVersion(const std::string& model, const PublishedVersion& version) {
  absl::StatusOr<std::shared_ptr<const ServedVersion>> served = loader_(version);
  absl::Status status = served.status();
  if (status.ok()) status = CheckIdentity((*served)->info, version);
  if (!status.ok()) {
    spdlog::error("model '{}' version '{}' cannot be served: {}", model, version.version, status.ToString());
    if (callbacks_.on_load_failed) callbacks_.on_load_failed(version, status);
  }
  absl::MutexLock lock(&mutex_);
  Followed& followed = models_[model];
  VersionStatus* const entry = Find(&followed.versions, version.version);
  if (status.ok()) {
    entry->state = VersionState::kReady;
    followed.loaded[version.version] = *std::move(served);
    followed.next_retry.erase(version.version);
    return;
  }
  absl::Duration& wait = followed.next_retry.try_emplace(version.version, options_.first_retry).first->second;
  if (FilesAreToBlame(status)) wait = options_.last_retry;
  entry->state = VersionState::kFailed;
  entry->retry_at = clock_->Monotonic() + wait;
  wait = std::min(wait * 2, options_.last_retry);
}

}  // namespace atl::router
