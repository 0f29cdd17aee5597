#include "router/engine/dispatcher.h"

#include <algorithm>

#include "common/base/errors.h"
#include "fmt/format.h"

namespace atl::router {
namespace {

void AppendRow(const EvaluationPoint& point, Rows* rows) {
  rows->x.insert(rows->x.end(), point.x.begin(), point.x.end());
  rows->t.push_back(point.t);
  rows->classes.push_back(point.class_row);
  if (point.guided) rows->null_classes.push_back(point.null_row);
  rows->estimate.insert(rows->estimate.end(), point.estimate.begin(), point.estimate.end());
  ++rows->count;
}

// Answers come from other machines too.
absl::Status CheckSize(const Evaluation& evaluation, const EvaluationAnswer& answer) {
  const size_t rows = static_cast<size_t>(evaluation.rows.count);
  const bool fits = evaluation.network.expert == kRouterNetwork
                        ? !answer.values.empty() && answer.values.size() % rows == 0
                        : answer.values.size() == evaluation.rows.x.size() * (evaluation.guided() ? 2 : 1);
  if (fits) return absl::OkStatus();
  return MakeError(
      absl::StatusCode::kInternal, "NETWORK_FAILED",
      fmt::format("{}: expected an answer for {} rows of {} numbers, found {} numbers", Describe(evaluation.network),
                  rows, evaluation.rows.x.size() / rows, answer.values.size()));
}

}  // namespace

Dispatcher::Dispatcher(Clock* clock, std::shared_ptr<Inbox> inbox, std::function<void(const BatchStats&)> on_batch,
                       std::function<void(const FailoverStats&)> on_failover)
    : clock_(clock), inbox_(std::move(inbox)), on_batch_(std::move(on_batch)), on_failover_(std::move(on_failover)) {}

Dispatcher::~Dispatcher() {
  for (const auto& [id, call] : calls_) Cancel(id);
  for (const auto& [id, lane] : lanes_) lane.lane->Watch(nullptr);
}

int64_t Dispatcher::KeyOf(const ServedVersion& version) {
  const VersionId id{version.info.model, version.info.version, version.digest};
  const auto [entry, added] = version_keys_.try_emplace(id, static_cast<int64_t>(version_keys_.size()) + 1);
  if (added) versions_[entry->second] = id;
  return entry->second;
}

int32_t Dispatcher::NumericsOf(const std::string& fingerprint) {
  return numerics_.try_emplace(fingerprint, static_cast<int32_t>(numerics_.size()) + 1).first->second;
}

RequestNumerics Dispatcher::NumericsFor(int64_t model_key, int32_t experts) {
  RefreshLanes();
  std::vector<LaneState> lanes;
  for (const auto& [number, lane] : lanes_) lanes.push_back(lane.state);
  RequestNumerics chosen{.numbers = ChooseNumerics(model_key, experts, lanes)};
  for (const int32_t number : chosen.numbers) {
    for (const auto& [fingerprint, known] : numerics_) {
      if (known == number) chosen.fingerprints.push_back(fingerprint);
    }
  }
  return chosen;
}

absl::Status Dispatcher::LossOf(const GroupKey& key, const std::vector<std::string>& tried,
                                const std::string& why) const {
  if (!key.reproducible || !table_.HostedAnyhow(key.model, key.network)) return ExpertLost(NetworkOf(key), tried, why);
  return MakeError(
      absl::StatusCode::kUnavailable, "NUMERICS_CHANGED",
      fmt::format("{}: no replica of the arithmetic on which the reproducible request began answers; those "
                  "that are left would give other bits; send the request again",
                  Describe(NetworkOf(key))));
}

void Dispatcher::Forget(const ServedVersion& version) {
  // The key itself stays: lanes may still host the version, or host it again.
  const int64_t key = KeyOf(version);
  costs_.Forget(key);
  table_.Forget(key);
}

NetworkId Dispatcher::NetworkOf(const GroupKey& key) const {
  const VersionId& version = versions_.at(key.model);
  return {.model = version.model, .version = version.version, .digest = version.digest, .expert = key.network};
}

void Dispatcher::AddLane(std::shared_ptr<ExpertLane> lane) {
  lane->Watch([inbox = inbox_] { inbox->Wake(); });
  lanes_[next_lane_++] = {.lane = std::move(lane)};
}

void Dispatcher::RemoveLane(const std::string& name) {
  const auto found = std::find_if(lanes_.begin(), lanes_.end(),
                                  [&](const auto& entry) { return entry.second.lane->info().name == name; });
  if (found == lanes_.end()) return;
  const int32_t number = found->first;
  const std::shared_ptr<ExpertLane> lane = std::move(found->second.lane);
  lanes_.erase(found);
  lane->Watch(nullptr);
  const absl::Duration now = clock_->Monotonic();
  for (auto& [id, call] : calls_) {
    const bool here = std::any_of(call.attempts.begin(), call.attempts.end(),
                                  [&](const Attempt& attempt) { return attempt.lane == number; });
    if (!here) continue;
    lane->Cancel(id);
    call.last_error = fmt::format("'{}' serves no longer", name);
    table_.Failed(id, number, now);
  }
}

void Dispatcher::RefreshLane(Lane* lane) {
  std::shared_ptr<const std::vector<HostedNetwork>> hosted = lane->lane->hosted();
  LaneInfo info = lane->lane->info();
  lane->state.free_slots = info.slots - lane->under_way;
  if (hosted == lane->hosted && info == lane->info) return;
  lane->hosted = std::move(hosted);
  lane->info = std::move(info);
  lane->state.numerics = NumericsOf(lane->info.fingerprint);
  lane->state.networks.clear();
  for (const HostedNetwork& network : *lane->hosted) {
    const ServedVersion version{.info = {.model = network.id.model, .version = network.id.version},
                                .digest = network.id.digest};
    lane->state.networks.push_back(
        {.model = KeyOf(version), .network = network.id.expert, .resident = network.resident});
  }
  std::sort(lane->state.networks.begin(), lane->state.networks.end());
}

void Dispatcher::RefreshLanes() {
  for (auto& [number, lane] : lanes_) {
    RefreshLane(&lane);
    lane.state.lane = number;
  }
}

void Dispatcher::Join(int64_t request, int32_t priority, int64_t images) {
  std::vector<RequestService> in_flight;
  for (const auto& [id, service] : requests_) in_flight.push_back(service);
  requests_[request] = {.request = request,
                        .priority = priority,
                        .weight = ShareOf(images),
                        .used = ServiceOfJoining(in_flight),
                        .last_service = clock_->Monotonic()};
}

void Dispatcher::Leave(int64_t request) {
  requests_.erase(request);
  std::erase_if(ready_, [&](const ReadyEvaluation& evaluation) {
    if (evaluation.request != request) return false;
    waiting_.erase(evaluation.id);
    return true;
  });
  std::erase_if(calls_, [&](const auto& entry) {
    const auto& [id, call] = entry;
    const bool wanted = std::any_of(call.requests.begin(), call.requests.end(),
                                    [&](int64_t of_row) { return requests_.contains(of_row); });
    if (wanted) return false;
    Cancel(id);
    table_.Drop(id);
    return true;
  });
}

void Dispatcher::Want(int64_t request, const Asker& asker, const GroupKey& key, const ImageStep* step) {
  const int64_t id = next_id_++;
  ready_.push_back({.id = id, .request = request, .key = key, .ready_since = clock_->Monotonic()});
  waiting_[id] = {.asker = asker, .step = step};
}

void Dispatcher::Retract(int64_t image, int64_t point) {
  std::erase_if(ready_, [&](const ReadyEvaluation& evaluation) {
    const Asker& asker = waiting_.at(evaluation.id).asker;
    if (asker.image != image || asker.point == point) return false;
    waiting_.erase(evaluation.id);
    return true;
  });
}

void Dispatcher::Cancel(int64_t id) {
  for (const int32_t number : table_.Owing(id)) {
    if (const auto lane = lanes_.find(number); lane != lanes_.end()) lane->second.lane->Cancel(id);
  }
}

absl::Duration Dispatcher::DeadlineOn(int32_t lane, absl::Duration now) const {
  // A thread of this process is neither late nor lost: behind a long load it may take as long as it does.
  if (!lanes_.at(lane).info.remote) return absl::InfiniteDuration();
  return now + kLongestCall;
}

SchedulerOptions Dispatcher::SchedulerOptionsNow() const {
  // Of all lanes: any of them may have to take a batch over from another.
  SchedulerOptions options;
  for (const auto& [number, lane] : lanes_) {
    const int64_t most = lane.info.max_batch_values;
    if (most > 0) options.max_values_per_batch = std::min(options.max_values_per_batch, most);
  }
  return options;
}

bool Dispatcher::StartBatches() {
  look_again_at_ = absl::InfiniteDuration();
  if (ready_.empty() && calls_.empty()) return false;
  RefreshLanes();
  const absl::Duration now = clock_->Monotonic();
  std::vector<CallLane> lanes;
  for (const auto& [number, lane] : lanes_) lanes.push_back({.state = lane.state, .remote = lane.info.remote});
  table_.SetLanes(lanes);
  bool started = FailOver(now);
  GiveUpUnhosted(now);
  if (!ready_.empty()) {
    std::vector<RequestService> requests;
    for (const auto& [id, service] : requests_) requests.push_back(service);
    const SchedulerDecision decision =
        DecideDispatches(now, ready_, table_.Usable(now), requests, costs_, SchedulerOptionsNow());
    for (const Charge& charge : decision.charges) {
      RequestService& service = requests_.at(charge.request);
      service.used += charge.used;
      service.last_service = now;
    }
    for (const Dispatch& dispatch : decision.dispatches) Start(now, dispatch);
    started = started || !decision.dispatches.empty();
  }
  look_again_at_ = std::min(look_again_at_, table_.look_again_at());
  if (!lost_.empty()) inbox_->Wake();
  return started;
}

bool Dispatcher::FailOver(absl::Duration now) {
  bool started = false;
  for (const CallMove& move : table_.Decide(now)) {
    Call& call = calls_.at(move.call);
    if (on_failover_) {
      on_failover_({.model = call.evaluation->network.model, .network = call.key.network, .action = move.action});
    }
    if (move.action == FailoverAction::kGiveUp) {
      Cancel(move.call);
      const std::string why = call.last_error.empty() ? move.reason : move.reason + "; " + call.last_error;
      const absl::Status lost = LossOf(call.key, call.tried, why);
      lost_.push_back(End(move.call, lost));
      continue;
    }
    Evaluation again = *call.evaluation;
    again.deadline = DeadlineOn(move.lane, now);
    StartOn(&call, move.call, move.lane, std::make_shared<const Evaluation>(std::move(again)));
    started = true;
  }
  return started;
}

void Dispatcher::GiveUpUnhosted(absl::Duration now) {
  std::map<GroupKey, std::vector<Asker>> lost;
  std::erase_if(ready_, [&](const ReadyEvaluation& evaluation) {
    if (!table_.Lost(evaluation.key.model, evaluation.key.network, evaluation.key.numerics, now)) return false;
    lost[evaluation.key].push_back(waiting_.extract(evaluation.id).mapped().asker);
    return true;
  });
  for (auto& [key, askers] : lost) {
    if (on_failover_) {
      on_failover_({.model = versions_.at(key.model).model, .network = key.network, .action = FailoverAction::kGiveUp});
    }
    lost_.push_back({.key = key, .askers = std::move(askers), .answer = LossOf(key, {}, "no replica is left")});
  }
}

Evaluation Dispatcher::Gather(const Dispatch& dispatch) const {
  Evaluation evaluation{.network = NetworkOf(dispatch.key),
                        .channels = dispatch.key.channels,
                        .height = dispatch.key.height,
                        .width = dispatch.key.width,
                        .reproducible = dispatch.key.reproducible};
  const EvaluationPoint first = waiting_.at(dispatch.evaluations.front()).step->point();
  evaluation.rows.x.reserve(first.x.size() * dispatch.evaluations.size());
  evaluation.rows.estimate.reserve(first.estimate.size() * dispatch.evaluations.size());
  for (const int64_t id : dispatch.evaluations) AppendRow(waiting_.at(id).step->point(), &evaluation.rows);
  return evaluation;
}

void Dispatcher::Start(absl::Duration now, const Dispatch& dispatch) {
  Evaluation evaluation = Gather(dispatch);
  evaluation.id = next_id_++;
  evaluation.deadline = DeadlineOn(dispatch.lane, now);
  Call call{.key = dispatch.key};
  for (const int64_t id : dispatch.evaluations) {
    const auto waiting = waiting_.find(id);
    call.askers.push_back(waiting->second.asker);
    waiting_.erase(waiting);
  }
  std::erase_if(ready_, [&](const ReadyEvaluation& ready) {
    if (!std::binary_search(dispatch.evaluations.begin(), dispatch.evaluations.end(), ready.id)) return false;
    call.requests.push_back(ready.request);
    call.wait = std::max(call.wait, now - ready.ready_since);
    return true;
  });
  const int64_t id = evaluation.id;
  call.evaluation = std::make_shared<const Evaluation>(std::move(evaluation));
  const int32_t number = dispatch.lane;
  const int32_t numerics = dispatch.key.reproducible ? lanes_.at(number).state.numerics : 0;
  table_.Start(id, call.key.model, call.key.network, call.evaluation->rows.count * call.key.rows_each(), numerics,
               number, now);
  Call& started = calls_[id] = std::move(call);
  StartOn(&started, id, number, started.evaluation);
  if (const int32_t probed = table_.TakeProbe(id, now); probed >= 0) {
    Evaluation probe = *started.evaluation;
    probe.deadline = DeadlineOn(probed, now);
    StartOn(nullptr, id, probed, std::make_shared<const Evaluation>(std::move(probe)));
  }
}

void Dispatcher::StartOn(Call* call, int64_t id, int32_t number, std::shared_ptr<const Evaluation> evaluation) {
  Lane& lane = lanes_.at(number);
  ++lane.under_way;
  if (call != nullptr) {
    call->attempts.push_back({.lane = number, .remote = lane.info.remote, .started = clock_->Monotonic()});
    if (std::find(call->tried.begin(), call->tried.end(), lane.info.name) == call->tried.end()) {
      call->tried.push_back(lane.info.name);
    }
  }
  lane.lane->Start(std::move(evaluation), [inbox = inbox_, id, number](absl::StatusOr<EvaluationAnswer> answer) {
    inbox->Add(LaneAnswer{.evaluation = id, .lane = number, .answer = std::move(answer)});
  });
}

std::optional<FinishedCall> Dispatcher::TakeAnswer(LaneAnswer answer) {
  if (const auto lane = lanes_.find(answer.lane); lane != lanes_.end()) --lane->second.under_way;
  const absl::Duration now = clock_->Monotonic();
  const auto found = calls_.find(answer.evaluation);
  if (!answer.answer.ok() && IsFailoverError(answer.answer.status())) {
    const bool lives = ErrorReason(answer.answer.status()) == "NETWORK_NOT_HOSTED";
    table_.Failed(answer.evaluation, answer.lane, now, lives);
    if (found == calls_.end()) return std::nullopt;
    found->second.last_error = std::string(answer.answer.status().message());
    Report(found->second, answer.lane, answer.answer);
    return std::nullopt;
  }
  // Too late, or nobody is left who wants it.
  if (!table_.Answered(answer.evaluation, answer.lane, now) || found == calls_.end()) return std::nullopt;
  const Call& call = found->second;
  if (answer.answer.ok()) {
    if (const absl::Status fits = CheckSize(*call.evaluation, *answer.answer); !fits.ok()) answer.answer = fits;
  }
  Report(call, answer.lane, answer.answer);
  Cancel(answer.evaluation);
  if (answer.answer.ok()) {
    costs_.Record(call.key.model, call.key.network, call.evaluation->rows.count * call.key.rows_each(),
                  answer.answer->compute_time);
  }
  const bool taken_over = answer.lane != call.attempts.front().lane;
  FinishedCall finished = End(answer.evaluation, std::move(answer.answer));
  finished.taken_over = taken_over;
  return finished;
}

FinishedCall Dispatcher::End(int64_t id, absl::StatusOr<EvaluationAnswer> answer) {
  Call call = std::move(calls_.extract(id).mapped());
  return {.key = call.key, .askers = std::move(call.askers), .answer = std::move(answer)};
}

std::vector<FinishedCall> Dispatcher::TakeLost() {
  return std::exchange(lost_, {});
}

void Dispatcher::Report(const Call& call, int32_t number, const absl::StatusOr<EvaluationAnswer>& answer) {
  if (!on_batch_) return;
  BatchStats stats{.model = call.evaluation->network.model,
                   .network = call.key.network,
                   .rows = call.evaluation->rows.count * call.key.rows_each(),
                   .outcome = answer.status().code(),
                   .wait = call.wait};
  // The latest on this lane; a probe has none.
  for (const Attempt& attempt : call.attempts) {
    if (attempt.lane != number) continue;
    stats.remote = attempt.remote;
    stats.lane_time = clock_->Monotonic() - attempt.started;
  }
  if (const auto lane = lanes_.find(number); lane != lanes_.end()) stats.lane = lane->second.info.name;
  if (answer.ok()) stats.compute_time = answer->compute_time;
  on_batch_(stats);
}

}  // namespace atl::router
