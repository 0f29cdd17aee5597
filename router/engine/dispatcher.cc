#include "router/engine/dispatcher.h"

#include <algorithm>

#include "common/base/errors.h"
#include "fmt/format.h"
#include "router/policy/numerics.h"

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

bool Hosts(const LaneState& lane, const GroupKey& key) {
  return std::any_of(lane.networks.begin(), lane.networks.end(), [&](const LaneNetwork& network) {
    return network.model == key.model && network.network == key.network;
  });
}

bool Resident(const LaneState& lane, const GroupKey& key) {
  return std::any_of(lane.networks.begin(), lane.networks.end(), [&](const LaneNetwork& network) {
    return network.model == key.model && network.network == key.network && network.resident;
  });
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

Dispatcher::Dispatcher(DispatcherOptions options, Clock* clock, std::shared_ptr<Inbox> inbox,
                       std::function<void(const BatchStats&)> on_batch)
    : options_(std::move(options)), clock_(clock), inbox_(std::move(inbox)), on_batch_(std::move(on_batch)) {}

Dispatcher::~Dispatcher() {
  for (const auto& [id, call] : calls_) {
    for (const CallAttempt& attempt : call.attempts) {
      if (const auto lane = lanes_.find(attempt.lane); lane != lanes_.end()) lane->second.lane->Cancel(id);
    }
  }
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

Dispatcher::Numerics Dispatcher::NumericsFor(int64_t model_key) {
  RefreshLanes();
  std::vector<LaneState> lanes;
  for (const auto& [number, lane] : lanes_) lanes.push_back(lane.state);
  Numerics chosen{.number = ChooseNumerics(model_key, lanes)};
  for (const auto& [fingerprint, number] : numerics_) {
    if (number == chosen.number) chosen.fingerprint = fingerprint;
  }
  return chosen;
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
  std::vector<int64_t> calls;
  for (const auto& [id, call] : calls_) {
    const bool here = std::any_of(call.attempts.begin(), call.attempts.end(), [&](const CallAttempt& attempt) {
      return attempt.lane == number && !attempt.failed_at;
    });
    if (here) calls.push_back(id);
  }
  for (const int64_t id : calls) {
    lane->Cancel(id);
    const absl::Status removed = absl::UnavailableError(fmt::format("'{}' serves no longer", name));
    if (std::optional<FinishedCall> ended = OnAttemptFailed(id, number, removed)) lost_.push_back(*std::move(ended));
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
    for (const CallAttempt& attempt : call.attempts) {
      if (const auto lane = lanes_.find(attempt.lane); lane != lanes_.end()) lane->second.lane->Cancel(id);
    }
    return true;
  });
}

void Dispatcher::Want(int64_t request, const Asker& asker, const GroupKey& key, const ImageStep* step) {
  const int64_t id = next_id_++;
  ready_.push_back({.id = id, .request = request, .key = key, .ready_since = clock_->Monotonic()});
  waiting_[id] = {.asker = asker, .step = step};
}

bool Dispatcher::StartBatches() {
  look_again_at_ = absl::InfiniteDuration();
  if (ready_.empty()) return false;
  RefreshLanes();
  const absl::Duration now = clock_->Monotonic();
  std::vector<LaneState> lanes;
  for (const auto& [number, lane] : lanes_) lanes.push_back(lane.state);
  std::vector<RequestService> requests;
  for (const auto& [id, service] : requests_) requests.push_back(service);
  const SchedulerDecision decision = DecideDispatches(now, ready_, lanes, requests, costs_, options_.scheduler);
  look_again_at_ = decision.look_again_at;
  for (const Charge& charge : decision.charges) {
    RequestService& service = requests_.at(charge.request);
    service.used += charge.used;
    service.last_service = now;
  }
  for (const Dispatch& dispatch : decision.dispatches) Start(now, dispatch);
  GiveUpUnhosted(now);
  return !decision.dispatches.empty();
}

void Dispatcher::GiveUpUnhosted(absl::Duration now) {
  std::map<GroupKey, std::vector<Asker>> lost;
  std::erase_if(ready_, [&](const ReadyEvaluation& evaluation) {
    const bool hosted = std::any_of(lanes_.begin(), lanes_.end(),
                                    [&](const auto& entry) { return Hosts(entry.second.state, evaluation.key); });
    if (hosted) return false;
    const absl::Duration end = evaluation.ready_since + options_.failover.replica_wait;
    if (now < end) {
      look_again_at_ = std::min(look_again_at_, end);
      return false;
    }
    lost[evaluation.key].push_back(waiting_.extract(evaluation.id).mapped().asker);
    return true;
  });
  if (!lost.empty()) inbox_->Wake();
  for (auto& [key, askers] : lost) {
    const std::string why =
        fmt::format("none has hosted it for {}", absl::FormatDuration(options_.failover.replica_wait));
    lost_.push_back({.key = key, .askers = std::move(askers), .answer = ExpertLost(NetworkOf(key), {}, why)});
  }
}

Evaluation Dispatcher::Gather(const Dispatch& dispatch) const {
  Evaluation evaluation{.network = NetworkOf(dispatch.key),
                        .height = dispatch.key.height,
                        .width = dispatch.key.width,
                        .reproducible = dispatch.key.reproducible};
  const EvaluationPoint first = waiting_.at(dispatch.evaluations.front()).step->point();
  evaluation.channels =
      static_cast<int32_t>(first.x.size() / (static_cast<size_t>(evaluation.height) * evaluation.width));
  evaluation.rows.x.reserve(first.x.size() * dispatch.evaluations.size());
  evaluation.rows.estimate.reserve(first.estimate.size() * dispatch.evaluations.size());
  for (const int64_t id : dispatch.evaluations) AppendRow(waiting_.at(id).step->point(), &evaluation.rows);
  return evaluation;
}

void Dispatcher::Start(absl::Duration now, const Dispatch& dispatch) {
  Evaluation evaluation = Gather(dispatch);
  evaluation.id = next_id_++;
  evaluation.deadline = now + options_.failover.longest_call;
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
  calls_[id] = std::move(call);
  StartAttempt(now, id, dispatch.lane);
}

void Dispatcher::StartAttempt(absl::Duration now, int64_t id, int32_t number) {
  Lane& lane = lanes_.at(number);
  Call& call = calls_.at(id);
  ++lane.under_way;
  call.attempts.push_back(
      {.lane = number, .remote = lane.info.remote, .started = now, .loads_first = !Resident(lane.state, call.key)});
  lane.lane->Start(call.evaluation, [inbox = inbox_, id, number](absl::StatusOr<EvaluationAnswer> answer) {
    inbox->Add(LaneAnswer{.evaluation = id, .lane = number, .answer = std::move(answer)});
  });
}

std::optional<FinishedCall> Dispatcher::TakeAnswer(LaneAnswer answer) {
  if (const auto lane = lanes_.find(answer.lane); lane != lanes_.end()) --lane->second.under_way;
  const auto found = calls_.find(answer.evaluation);
  if (found == calls_.end()) return std::nullopt;  // too late, or nobody is left who wants it
  const Call& call = found->second;
  const auto attempt = std::find_if(call.attempts.begin(), call.attempts.end(), [&](const CallAttempt& entry) {
    return entry.lane == answer.lane && !entry.failed_at;
  });
  if (attempt == call.attempts.end()) return std::nullopt;
  if (answer.answer.ok()) {
    if (const absl::Status fits = CheckSize(*call.evaluation, *answer.answer); !fits.ok()) answer.answer = fits;
  }
  Report(call, *attempt, answer.answer);
  if (!answer.answer.ok()) return OnAttemptFailed(answer.evaluation, answer.lane, answer.answer.status());
  costs_.Record(call.key.model, call.key.network, call.evaluation->rows.count * call.key.rows_each(),
                answer.answer->compute_time);
  return End(answer.evaluation, std::move(answer.answer));
}

std::optional<FinishedCall> Dispatcher::OnAttemptFailed(int64_t id, int32_t /*lane*/, const absl::Status& why) {
  return End(id, why);
}

FinishedCall Dispatcher::End(int64_t id, absl::StatusOr<EvaluationAnswer> answer) {
  Call call = std::move(calls_.extract(id).mapped());
  return {.key = call.key, .askers = std::move(call.askers), .answer = std::move(answer)};
}

std::vector<FinishedCall> Dispatcher::TakeLost() {
  return std::exchange(lost_, {});
}

void Dispatcher::Report(const Call& call, const CallAttempt& attempt, const absl::StatusOr<EvaluationAnswer>& answer) {
  if (!on_batch_) return;
  BatchStats stats{.model = call.evaluation->network.model,
                   .network = call.key.network,
                   .rows = call.evaluation->rows.count * call.key.rows_each(),
                   .remote = attempt.remote,
                   .outcome = answer.status().code(),
                   .wait = call.wait,
                   .lane_time = clock_->Monotonic() - attempt.started};
  if (const auto lane = lanes_.find(attempt.lane); lane != lanes_.end()) stats.lane = lane->second.info.name;
  if (answer.ok()) stats.compute_time = answer->compute_time;
  on_batch_(stats);
}

}  // namespace atl::router
