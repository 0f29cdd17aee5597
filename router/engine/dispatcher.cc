#include "router/engine/dispatcher.h"

#include <algorithm>

#include "common/base/errors.h"
#include "fmt/format.h"

namespace atl::router {
namespace {

bool Hosts(const LaneState& lane, int64_t model, int32_t network) {
  return std::any_of(lane.networks.begin(), lane.networks.end(),
                     [&](const LaneNetwork& entry) { return entry.model == model && entry.network == network; });
}

void AppendRow(const EvaluationPoint& point, Rows* rows) {
  rows->x.insert(rows->x.end(), point.x.begin(), point.x.end());
  rows->t.push_back(point.t);
  rows->classes.push_back(point.class_row);
  if (point.guided) rows->null_classes.push_back(point.null_row);
  rows->estimate.insert(rows->estimate.end(), point.estimate.begin(), point.estimate.end());
  ++rows->count;
}

}  // namespace

absl::Status CheckAnswer(const Evaluation& evaluation, const EvaluationAnswer& answer) {
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

Dispatcher::Dispatcher(Clock* clock, std::shared_ptr<Inbox> inbox, EngineObserver* observer)
    : clock_(clock), inbox_(std::move(inbox)), observer_(observer) {}

Dispatcher::~Dispatcher() {
  for (const auto& [id, call] : calls_) Cancel(call);
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

Numerics Dispatcher::NumericsFor(int64_t model_key, int32_t network) {
  RefreshLanes();
  std::vector<LaneState> lanes;
  for (const auto& [number, lane] : lanes_) lanes.push_back(lane.state);
  const int32_t number = ChooseNumerics(model_key, network, lanes);
  const auto found =
      std::find_if(numerics_.begin(), numerics_.end(), [number](const auto& entry) { return entry.second == number; });
  return {.number = number, .fingerprint = found == numerics_.end() ? "" : found->first};
}

void Dispatcher::Forget(const ServedVersion& version) {
  // The key itself stays: lanes may still host the version, or host it again.
  const int64_t key = KeyOf(version);
  costs_.Forget(key);
  times_.Forget(key);
  std::erase_if(unhosted_since_, [key](const auto& entry) { return std::get<0>(entry.first) == key; });
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
  std::vector<int64_t> under_way;
  for (const auto& [id, call] : calls_) {
    if (call.lane == number) under_way.push_back(id);
  }
  for (const int64_t id : under_way) {
    lane->Cancel(id);
    Fail(id, fmt::format("'{}' serves no longer", name));
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
  // It is judged anew when it comes back.
  if (lane->state.networks.empty()) lane->breaker.Close();
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
    const Call& call = entry.second;
    const bool wanted = std::any_of(call.rows.begin(), call.rows.end(),
                                    [&](const Wanted& row) { return requests_.contains(row.request); });
    if (!wanted) Cancel(call);
    return !wanted;
  });
}

void Dispatcher::Want(int64_t request, const Asker& asker, const GroupKey& key, const ImageStep* step) {
  const int64_t id = next_id_++;
  ready_.push_back({.id = id, .request = request, .key = key, .ready_since = clock_->Monotonic()});
  waiting_[id] = {.asker = asker, .request = request, .step = step};
}

void Dispatcher::Retract(int64_t image, int64_t point) {
  const auto elsewhere = [&](const Asker& asker) { return asker.image == image && asker.point != point; };
  std::erase_if(ready_, [&](const ReadyEvaluation& evaluation) {
    if (!elsewhere(waiting_.at(evaluation.id).asker)) return false;
    waiting_.erase(evaluation.id);
    return true;
  });
  for (auto& [id, call] : calls_) {
    for (Wanted& row : call.rows) {
      if (elsewhere(row.asker)) row.step = nullptr;
    }
  }
}

void Dispatcher::Cancel(const Call& call) {
  if (const auto lane = lanes_.find(call.lane); lane != lanes_.end()) lane->second.lane->Cancel(call.evaluation->id);
}

SchedulerOptions Dispatcher::SchedulerOptionsNow() const {
  // The limit holds for all lanes, because any of them may have to take a batch over from another.
  SchedulerOptions options;
  for (const auto& [number, lane] : lanes_) {
    const int64_t most = lane.info.max_batch_values;
    if (most > 0) options.max_values_per_batch = std::min(options.max_values_per_batch, most);
  }
  return options;
}

bool Dispatcher::StartBatches() {
  look_again_at_ = absl::InfiniteDuration();
  if (ready_.empty()) return false;
  RefreshLanes();
  const absl::Duration now = clock_->Monotonic();
  const std::vector<LaneState> usable = UsableLanes(now);
  GiveUpUnhosted(now, usable);
  std::vector<RequestService> requests;
  for (const auto& [id, service] : requests_) requests.push_back(service);
  const SchedulerDecision decision = DecideDispatches(now, ready_, usable, requests, costs_, SchedulerOptionsNow());
  for (const Charge& charge : decision.charges) {
    RequestService& service = requests_.at(charge.request);
    service.used += charge.used;
    service.last_service = now;
  }
  for (const Dispatch& dispatch : decision.dispatches) Start(now, dispatch);
  if (!lost_.empty()) inbox_->Wake();
  return !decision.dispatches.empty();
}

std::vector<LaneState> Dispatcher::UsableLanes(absl::Duration now) {
  std::vector<LaneState> usable;
  for (auto& [number, lane] : lanes_) {
    LaneState& state = usable.emplace_back(lane.state);
    std::erase_if(lane.paused, [now](const auto& entry) { return entry.second <= now; });
    for (const auto& [network, until] : lane.paused) LookAgain(until);
    std::erase_if(state.networks, [&paused = lane.paused](const LaneNetwork& entry) {
      return paused.contains({entry.model, entry.network});
    });
    if (lane.breaker.half_open(now)) state.free_slots = std::min(state.free_slots, 1 - lane.under_way);
    if (!lane.breaker.open(now)) continue;
    state.networks.clear();
    LookAgain(lane.breaker.open_until());
  }
  return usable;
}

void Dispatcher::GiveUpUnhosted(absl::Duration now, const std::vector<LaneState>& usable) {
  const auto hosted = [&usable](const Place& place) {
    return std::any_of(usable.begin(), usable.end(), [&place](const LaneState& lane) {
      const auto& [model, network, numerics] = place;
      return (numerics == 0 || lane.numerics == numerics) && Hosts(lane, model, network);
    });
  };
  const auto place_of = [](const GroupKey& key) { return Place(key.model, key.network, key.numerics); };
  std::erase_if(unhosted_since_, [&](const auto& entry) { return hosted(entry.first); });
  std::map<Place, bool> lost;  // of those that are wanted
  for (const ReadyEvaluation& evaluation : ready_) {
    const auto [entry, is_new] = lost.try_emplace(place_of(evaluation.key), false);
    if (!is_new || hosted(entry->first)) continue;
    const absl::Duration until = unhosted_since_.try_emplace(entry->first, now).first->second + kReplicaWait;
    entry->second = now >= until;
    if (!entry->second) LookAgain(until);
  }
  std::erase_if(ready_, [&](const ReadyEvaluation& evaluation) {
    if (!lost.at(place_of(evaluation.key))) return false;
    const Wanted row = std::move(waiting_.extract(evaluation.id).mapped());
    Lose(evaluation.key, row.asker, "no replica is left" + (row.errors.empty() ? "" : "; " + row.errors));
    return true;
  });
}

void Dispatcher::Lose(const GroupKey& key, const Asker& asker, const std::string& why) {
  const NetworkId network = NetworkOf(key);
  if (observer_ != nullptr) observer_->OnFailover({.model = network.model, .network = key.network, .lost = true});
  const bool elsewhere = std::any_of(lanes_.begin(), lanes_.end(), [&](const auto& entry) {
    const LaneState& lane = entry.second.state;
    return lane.numerics != key.numerics && Hosts(lane, key.model, key.network);
  });
  absl::Status lost = ExpertLost(network, why);
  if (key.reproducible && elsewhere) {
    lost = MakeError(absl::StatusCode::kUnavailable, "NUMERICS_CHANGED",
                     fmt::format("{}: no replica of the arithmetic on which the reproducible request began answers; "
                                 "those that are left would give other bits; send the request again",
                                 Describe(network)));
  }
  lost_.push_back({.key = key, .askers = {asker}, .answer = std::move(lost)});
}

void Dispatcher::Fail(int64_t id, const std::string& why) {
  Call call = std::move(calls_.extract(id).mapped());
  const absl::Duration now = clock_->Monotonic();
  bool again = false;
  for (Wanted& row : call.rows) {
    if (row.step == nullptr || !requests_.contains(row.request)) continue;
    row.errors += (row.errors.empty() ? "" : "; ") + why;
    if (++row.asker.failures >= kMaxAttempts) {
      Lose(call.key, row.asker, row.errors);
      continue;
    }
    again = true;
    const int64_t next = next_id_++;
    ready_.push_back({.id = next, .request = row.request, .key = call.key, .ready_since = now});
    waiting_[next] = std::move(row);
  }
  if (again && observer_ != nullptr) {
    observer_->OnFailover({.model = call.evaluation->network.model, .network = call.key.network});
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
  const int64_t id = evaluation.id = next_id_++;
  Lane& lane = lanes_.at(dispatch.lane);
  Call call{.key = dispatch.key, .lane = dispatch.lane, .remote = lane.info.remote, .started = now};
  bool again = false;
  for (const int64_t row : dispatch.evaluations) {
    call.rows.push_back(std::move(waiting_.extract(row).mapped()));
    again = again || call.rows.back().asker.failures > 0;
  }
  std::erase_if(ready_, [&](const ReadyEvaluation& ready) {
    if (!std::binary_search(dispatch.evaluations.begin(), dispatch.evaluations.end(), ready.id)) return false;
    call.wait = std::max(call.wait, now - ready.ready_since);
    return true;
  });
  if (call.remote) {
    // A thread of this process is neither late nor lost: behind a long load it may take as long as it does.
    const int64_t rows = evaluation.rows.count * call.key.rows_each();
    // A light router network says nothing about an expert that was never measured.
    const BatchCost took = times_.Measured(call.key.model, call.key.network);
    evaluation.deadline = now + (again ? kLongestCall : FirstAttemptLimit(took, rows));
  }
  call.evaluation = std::make_shared<const Evaluation>(std::move(evaluation));
  ++lane.under_way;
  const Call& started = calls_[id] = std::move(call);
  lane.lane->Start(started.evaluation,
                   [inbox = inbox_, id, number = dispatch.lane](absl::StatusOr<EvaluationAnswer> answer) {
                     inbox->Add(LaneAnswer{.evaluation = id, .lane = number, .answer = std::move(answer)});
                   });
}

std::optional<FinishedCall> Dispatcher::TakeAnswer(LaneAnswer answer) {
  const auto found = calls_.find(answer.evaluation);
  std::string lane_name;
  const absl::Status status = answer.answer.status();
  const bool failed = IsFailoverError(status);
  const absl::Duration now = clock_->Monotonic();
  if (const auto entry = lanes_.find(answer.lane); entry != lanes_.end()) {
    Lane& lane = entry->second;
    lane_name = lane.info.name;
    --lane.under_way;
    if (!failed) lane.breaker.Close();
    // If the call has already ended, its failure may be the cancellation that the dispatcher requested.
    if (failed && found != calls_.end()) {
      const GroupKey& key = found->second.key;
      // In this process it is the network that could not be read again: the lane's others are as good as before.
      const bool answers = !lane.info.remote || ErrorReason(status) == "NETWORK_NOT_HOSTED";
      if (answers) lane.paused[{key.model, key.network}] = now + kNetworkPause;
      if (!answers) lane.breaker.Trip(now);
    }
  }
  if (found == calls_.end()) return std::nullopt;
  const Call& call = found->second;
  if (answer.answer.ok()) {
    if (const absl::Status fits = CheckAnswer(*call.evaluation, *answer.answer); !fits.ok()) answer.answer = fits;
  }
  Report(call, answer.answer.status().code());
  // A network that has become slow gets more time.
  if (answer.answer.ok() || absl::IsDeadlineExceeded(status)) {
    times_.Record(call.key.model, call.key.network, call.row_count(), now - call.started);
  }
  if (failed) {
    Fail(answer.evaluation, fmt::format("'{}': {}", lane_name, std::string(status.message())));
    return std::nullopt;
  }
  if (answer.answer.ok()) {
    costs_.Record(call.key.model, call.key.network, call.row_count(), answer.answer->compute_time);
  }
  FinishedCall finished{.key = call.key, .answer = std::move(answer.answer)};
  for (const Wanted& row : call.rows) finished.askers.push_back(row.asker);
  calls_.erase(found);
  return finished;
}

std::vector<FinishedCall> Dispatcher::TakeLost() {
  return std::exchange(lost_, {});
}

void Dispatcher::Report(const Call& call, absl::StatusCode outcome) {
  if (observer_ == nullptr) return;
  observer_->OnBatch({.model = call.evaluation->network.model,
                      .network = call.key.network,
                      .rows = call.row_count(),
                      .remote = call.remote,
                      .outcome = outcome,
                      .wait = call.wait,
                      .lane_time = clock_->Monotonic() - call.started});
}

}  // namespace atl::router
