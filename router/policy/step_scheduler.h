// Continuous batching at step granularity: decides which evaluations run next, on which lane, in which batch. Pure.
//
// At every step each image in flight picks its own experts, so batches are formed anew across requests: evaluations of
// one (model version, network, shape, guidance mode) share batches, whatever step their images are at. There is no
// common tick: a free lane gets the batch that is due, and an image continues as soon as its own answers are there.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "absl/time/time.h"
#include "common/base/network_id.h"
#include "router/policy/cost_estimates.h"

namespace atl::router {

// Evaluations of equal keys may share a batch.
struct GroupKey {
  int64_t model = 0;                 // a loaded model version
  int32_t network = kRouterNetwork;  // or an expert
  int32_t channels = 0;
  int32_t height = 0;
  int32_t width = 0;
  bool guided = false;        // evaluated with its class and with the null class, in the same batch
  bool reproducible = false;  // batches of a fixed shape
  int32_t numerics = 0;       // shared by lanes of equal arithmetic; 0: any lane
  auto operator<=>(const GroupKey&) const = default;

  int64_t rows_each() const { return guided ? 2 : 1; }
  // The most values that an evaluation adds to a batch's tensors, or to its answer's: an estimate beside the sample, or
  // the velocities of two branches.
  int64_t values_each() const { return 2 * int64_t{channels} * height * width; }
};

struct LaneNetwork {
  int64_t model = 0;
  int32_t network = kRouterNetwork;
  bool resident = true;  // else the lane must load it first
  auto operator<=>(const LaneNetwork&) const = default;
};

// The scheduler's view of one executor of batches.
struct LaneState {
  int32_t lane = 0;
  int32_t free_slots = 0;             // batches that it can take now
  std::vector<LaneNetwork> networks;  // that it can run, ascending
  int32_t numerics = 0;
};

// An evaluation that waits for a lane.
struct ReadyEvaluation {
  int64_t id = 0;  // ascending in the order of becoming ready
  int64_t request = 0;
  GroupKey key;
  absl::Duration ready_since;
};

// A request that is in flight, whether or not any of its evaluations is ready.
struct RequestService {
  int64_t request = 0;
  int32_t priority = 0;         // higher goes first
  double weight = 1;            // its share among equals; above 0
  absl::Duration used;          // lane time charged to it, divided by its weight
  absl::Duration last_service;  // when it last got a lane; when it joined, before that
};

struct SchedulerOptions {
  int64_t max_rows_per_batch = 256;
  // Limit on the values in the tensors of a batch, and in those of its answer; by default none.
  int64_t max_values_per_batch = int64_t{1} << 40;
  // Limit on the time of a batch: bounds how long a new request waits for a lane, and how long a leaving request's
  // batch continues.
  absl::Duration longest_batch = absl::Milliseconds(150);
};

struct Dispatch {
  int32_t lane = 0;
  GroupKey key;
  std::vector<int64_t> evaluations;  // ids, ascending
  std::string_view reason;           // static text: what bounded the batch
};

struct Charge {
  int64_t request = 0;
  absl::Duration used;  // to add to RequestService::used
};

struct SchedulerDecision {
  std::vector<Dispatch> dispatches;  // in the order in which they start
  std::vector<Charge> charges;       // for the dispatches, one per request
};

// Fills the free slots.
// Order: priority, raised by ageing; then the request that was served least for its weight; then the evaluation that
// has been ready longest; then the id. The first evaluation in this order leads a batch. Others of its key fill it, in
// the same order, with every row charged as it is taken, so that requests take turns in a batch that is too small for
// all. No request starves: served requests are charged, and waiting ones age.
// Size: at most the rows, values and time of the options, by `costs`, and always one evaluation; and an even share of
// the work of all free slots that could run it, so that no lane idles beside a long batch. While other requests are in
// flight, each has at most the quantum, and no more than the leading request, except for rows that hardly prolong the
// batch: a single image never waits for the rows that a large request adds.
// Networks: a network that a lane has loaded runs there, and no other lane loads it; a network that no lane has is
// loaded by one.
SchedulerDecision DecideDispatches(absl::Duration now, std::span<const ReadyEvaluation> ready,
                                   std::span<const LaneState> lanes, std::span<const RequestService> requests,
                                   const CostEstimates& costs, const SchedulerOptions& options);

// Returns the `used` of a joining request: that of the request in flight that was served least, so that it neither
// waits for nor overtakes earlier service of the others.
absl::Duration ServiceOfJoining(std::span<const RequestService> in_flight);

// Returns the weight of a request. Several images have twice the share of a single image, which can use at most one
// lane at a time; a larger share would make small requests wait.
double ShareOf(int64_t images);

}  // namespace atl::router
