#include "router/policy/step_scheduler.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "absl/container/flat_hash_map.h"

namespace atl::router {
namespace {

// While other requests are in flight, the time of what one request may put into a batch.
constexpr absl::Duration kQuantum = absl::Milliseconds(20);
// Rows that take no longer hardly prolong a batch: starting one costs about as much.
constexpr absl::Duration kNegligible = absl::Microseconds(500);
// A request that got no lane for so long rises by one priority, again and again.
constexpr absl::Duration kAgeing = absl::Seconds(1);
// How long evaluations of networks that lanes have go before one whose network has to be loaded first.
constexpr absl::Duration kLongestLoadAvoidance = absl::Milliseconds(200);

// The cost of an unmeasured network, so that requests take turns from the first batch on.
constexpr BatchCost kNominalCost{.per_row = absl::Microseconds(1)};

struct Group {
  GroupKey key;
  std::vector<const ReadyEvaluation*> waiting;  // ascending by id
  BatchCost cost;

  int64_t rows() const { return static_cast<int64_t>(waiting.size()) * key.rows_each(); }
  // Returns the cost per evaluation of a batch with that many evaluations.
  absl::Duration Charge(int64_t evaluations) const {
    return (cost.known() ? cost : kNominalCost).Of(evaluations * key.rows_each()) / evaluations;
  }
};

struct Place {
  size_t lane = 0;
  bool resident = true;
};

// The order of evaluations: smaller ranks go first.
using Rank = std::tuple<bool, int64_t, absl::Duration, absl::Duration, int64_t>;

const LaneNetwork* Hosted(const LaneState& lane, const GroupKey& key) {
  if (key.numerics != 0 && key.numerics != lane.numerics) return nullptr;
  const auto found = std::lower_bound(lane.networks.begin(), lane.networks.end(), std::pair(key.model, key.network),
                                      [](const LaneNetwork& entry, const std::pair<int64_t, int32_t>& wanted) {
                                        return std::pair(entry.model, entry.network) < wanted;
                                      });
  if (found == lane.networks.end() || found->model != key.model || found->network != key.network) return nullptr;
  return &*found;
}

class Decider {
 public:
  Decider(absl::Duration now, std::span<const ReadyEvaluation> ready, std::span<const LaneState> lanes,
          std::span<const RequestService> requests, const CostEstimates& costs, const SchedulerOptions& options)
      : now_(now), lanes_(lanes), options_(options), alone_(requests.size() < 2) {
    for (const LaneState& lane : lanes) free_.push_back(lane.free_slots);
    for (const RequestService& request : requests) requests_[request.request] = request;
    std::map<GroupKey, Group> groups;
    for (const ReadyEvaluation& evaluation : ready) {
      Group& group = groups[evaluation.key];
      group.waiting.push_back(&evaluation);
    }
    for (auto& [key, group] : groups) {
      group.key = key;
      group.cost = costs.Cost(key.model, key.network);
      groups_.push_back(std::move(group));
    }
  }

  SchedulerDecision Run() {
    while (StartNext()) {
    }
    for (const auto& [request, used] : charges_) decision_.charges.push_back({request, used});
    return std::move(decision_);
  }

 private:
  bool StartNext();
  // Whether the lane has the network, or loads it by this decision.
  bool Has(size_t lane, const GroupKey& key) const;
  // Where the group can run now: on a lane that has the network; where none has it, on one that loads it.
  std::optional<Place> FindPlace(const Group& group);
  int64_t RowLimit(const Group& group) const;
  int64_t EvenShare(const Group& group, const Place& place) const;
  // Evaluations of one request in a batch that `leader` leads.
  int64_t LimitOfRequest(const Group& group, int64_t leader) const;
  Rank RankOf(const ReadyEvaluation& evaluation, bool resident, absl::Duration charged_before) const;
  void Start(Group* group, int64_t leader, const Place& place);
  void Charge(const ReadyEvaluation& evaluation, absl::Duration cost);

  const absl::Duration now_;
  const std::span<const LaneState> lanes_;
  const SchedulerOptions& options_;
  const bool alone_;           // no request but one is in flight
  std::vector<int32_t> free_;  // slots, by lane
  std::vector<Group> groups_;
  std::set<std::tuple<size_t, int64_t, int32_t>> loading_;  // lane, model, network
  absl::flat_hash_map<int64_t, RequestService> requests_;
  std::map<int64_t, absl::Duration> charges_;
  SchedulerDecision decision_;
};

bool Decider::Has(size_t lane, const GroupKey& key) const {
  const LaneNetwork* const hosted = Hosted(lanes_[lane], key);
  return hosted != nullptr && (hosted->resident || loading_.contains({lane, key.model, key.network}));
}

std::optional<Place> Decider::FindPlace(const Group& group) {
  std::optional<Place> best;
  bool somewhere = false;
  for (size_t i = 0; i < lanes_.size(); ++i) {
    if (Hosted(lanes_[i], group.key) == nullptr) continue;
    const bool has = Has(i, group.key);
    somewhere |= has;
    if (free_[i] <= 0) continue;
    const auto better_than = [&](const Place& other) {
      return std::tuple(!has, -free_[i], lanes_[i].networks.size()) <
             std::tuple(!other.resident, -free_[other.lane], lanes_[other.lane].networks.size());
    };
    if (!best || better_than(*best)) best = Place{i, has};
  }
  if (best && !best->resident && somewhere) return std::nullopt;
  return best;
}

int64_t Decider::RowLimit(const Group& group) const {
  const int64_t fit = options_.max_values_per_batch / std::max<int64_t>(1, group.key.values_each());
  const int64_t rows = std::min(options_.max_rows_per_batch, std::max<int64_t>(1, fit) * group.key.rows_each());
  return group.cost.known() ? group.cost.RowsWithin(options_.longest_batch, rows) : rows;
}

int64_t Decider::LimitOfRequest(const Group& group, int64_t leader) const {
  const auto count = static_cast<int64_t>(group.waiting.size());
  if (alone_ || !group.cost.known()) return count;
  const int64_t each = group.key.rows_each();
  const int64_t quantum = std::max<int64_t>(1, group.cost.RowsWithin(kQuantum, count * each) / each);
  const int64_t of_leader = std::count_if(group.waiting.begin(), group.waiting.end(),
                                          [&](const auto* evaluation) { return evaluation->request == leader; });
  // As many rows as cost no more than what a batch costs anyway.
  const absl::Duration hardly = std::max(group.cost.fixed, kNegligible);
  const int64_t cheap = group.cost.RowsWithin(group.cost.fixed + hardly, count * each) / each;
  return std::min(quantum, std::max(of_leader, cheap));
}

int64_t Decider::EvenShare(const Group& group, const Place& place) const {
  int64_t slots = 0;
  std::vector<size_t> usable;
  for (size_t i = 0; i < lanes_.size(); ++i) {
    if (free_[i] <= 0 || (i != place.lane && !Has(i, group.key))) continue;
    slots += free_[i];
    usable.push_back(i);
  }
  const auto runs = [&](size_t lane, const GroupKey& key) {
    if (Has(lane, key)) return true;
    for (size_t i = 0; i < lanes_.size(); ++i) {
      if (Has(i, key)) return false;
    }
    return Hosted(lanes_[lane], key) != nullptr;
  };
  int64_t rows = 0;
  for (const Group& other : groups_) {
    const bool shares = std::any_of(usable.begin(), usable.end(), [&](size_t i) { return runs(i, other.key); });
    if (shares) rows += other.rows();
  }
  return (rows + slots - 1) / std::max<int64_t>(1, slots);
}

Rank Decider::RankOf(const ReadyEvaluation& evaluation, bool resident, absl::Duration charged_before) const {
  const auto found = requests_.find(evaluation.request);
  const RequestService request = found == requests_.end() ? RequestService{} : found->second;
  const absl::Duration waited =
      std::max(absl::ZeroDuration(), now_ - std::max(request.last_service, evaluation.ready_since));
  const auto raised = static_cast<int64_t>(absl::FDivDuration(waited, kAgeing));
  const bool loads = !resident && now_ < evaluation.ready_since + kLongestLoadAvoidance;
  return {loads, -(request.priority + raised), request.used + charged_before / std::max(request.weight, 1e-6),
          evaluation.ready_since, evaluation.id};
}

void Decider::Charge(const ReadyEvaluation& evaluation, absl::Duration cost) {
  const auto found = requests_.find(evaluation.request);
  if (found == requests_.end()) return;
  const absl::Duration used = cost / std::max(found->second.weight, 1e-6);
  found->second.used += used;
  found->second.last_service = now_;
  charges_[evaluation.request] += used;
}

bool Decider::StartNext() {
  Group* next = nullptr;
  Rank best;
  int64_t leader = 0;
  Place where;
  for (Group& group : groups_) {
    if (group.waiting.empty()) continue;
    const std::optional<Place> place = FindPlace(group);
    if (!place) continue;
    for (const ReadyEvaluation* evaluation : group.waiting) {
      const Rank rank = RankOf(*evaluation, place->resident, absl::ZeroDuration());
      if (next != nullptr && best <= rank) continue;
      next = &group;
      best = rank;
      leader = evaluation->request;
      where = *place;
    }
  }
  if (next == nullptr) return false;
  Start(next, leader, where);
  return true;
}

void Decider::Start(Group* group, int64_t leader, const Place& place) {
  const int64_t each = group->key.rows_each();
  const auto count = static_cast<int64_t>(group->waiting.size());
  const int64_t by_limit = std::max<int64_t>(1, RowLimit(*group) / each);
  const int64_t by_share = std::max<int64_t>(1, (EvenShare(*group, place) + each - 1) / each);
  const int64_t limit = std::min(by_limit, by_share);
  // In even parts, rather than full batches and a rest.
  const int64_t parts = (count + limit - 1) / limit;
  const int64_t size = (count + parts - 1) / parts;
  const int64_t per_request = LimitOfRequest(*group, leader);

  std::vector<std::pair<Rank, const ReadyEvaluation*>> order;
  absl::flat_hash_map<int64_t, int64_t> turns;
  // Oldest first within a request; ids ascend in the order of becoming ready.
  for (const ReadyEvaluation* evaluation : group->waiting) {
    const int64_t turn = turns[evaluation->request]++;
    if (turn >= per_request) continue;
    order.emplace_back(RankOf(*evaluation, place.resident, group->Charge(1) * turn), evaluation);
  }
  const bool quantum_bounds = static_cast<int64_t>(order.size()) < size;
  const auto taken = std::min<int64_t>(size, static_cast<int64_t>(order.size()));
  std::partial_sort(order.begin(), order.begin() + taken, order.end());

  Dispatch dispatch{.lane = lanes_[place.lane].lane, .key = group->key};
  for (int64_t i = 0; i < taken; ++i) {
    dispatch.evaluations.push_back(order[i].second->id);
    Charge(*order[i].second, group->Charge(taken));
  }
  std::sort(dispatch.evaluations.begin(), dispatch.evaluations.end());
  if (taken == count) {
    dispatch.reason = "all of its kind that is ready";
  } else if (quantum_bounds) {
    dispatch.reason = "others wait: the quantum of each request";
  } else {
    dispatch.reason = by_share < by_limit ? "an even share of the free slots" : "the limit of a batch";
  }
  std::erase_if(group->waiting, [&](const ReadyEvaluation* evaluation) {
    return std::binary_search(dispatch.evaluations.begin(), dispatch.evaluations.end(), evaluation->id);
  });
  --free_[place.lane];
  if (!place.resident) loading_.insert({place.lane, group->key.model, group->key.network});
  decision_.dispatches.push_back(std::move(dispatch));
}

}  // namespace

SchedulerDecision DecideDispatches(absl::Duration now, std::span<const ReadyEvaluation> ready,
                                   std::span<const LaneState> lanes, std::span<const RequestService> requests,
                                   const CostEstimates& costs, const SchedulerOptions& options) {
  const bool any_free = std::any_of(lanes.begin(), lanes.end(), [](const auto& lane) { return lane.free_slots > 0; });
  if (ready.empty() || !any_free) return {};
  return Decider(now, ready, lanes, requests, costs, options).Run();
}

absl::Duration ServiceOfJoining(std::span<const RequestService> in_flight) {
  absl::Duration least = absl::InfiniteDuration();
  for (const RequestService& request : in_flight) least = std::min(least, request.used);
  return in_flight.empty() ? absl::ZeroDuration() : least;
}

double ShareOf(int64_t images) {
  return images > 1 ? 2 : 1;
}

}  // namespace atl::router
