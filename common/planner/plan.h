// The plan of one attempt: the layers of each stage, its rank, and the order of every rank's actions. Immutable; its
// holder stamps it with the attempt. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "common/planner/fill.h"
#include "common/planner/frozen_cache.h"
#include "common/planner/partition.h"
#include "common/planner/profile.h"
#include "common/schedule/action.h"
#include "common/schedule/simulator.h"
#include "common/spec/spec.h"

namespace atl::planner {

// A frozen component as its pieces need it: its input and its readers.
struct FrozenComponent {
  int32_t layers = 0;
  int32_t reads = -1;           // the earlier component whose output it reads; -1: the batch
  bool to_first_stage = false;  // its output goes to the rank of the first stage …
  bool to_last_stage = false;   // … and to that of the last
  bool operator==(const FrozenComponent&) const = default;
};

// The simulator's results for the plan.
struct Prediction {
  double iteration_seconds = 0;  // of `schedule`
  double bubble = 0;
  std::vector<double> peak_bytes;       // by rank of the pipeline, over both schedules
  double self_conditioned_seconds = 0;  // of an iteration by `self_conditioned`; 0 where there is none
  bool operator==(const Prediction&) const = default;
};

// `replicas` pipelines run the same schedule over their own part of the batch: rank r of replica d is rank
// d * schedule.rank_count() + r of the island, and takes samples [d, d + 1) * micro_batches * micro_batch_size.
struct Plan {
  int32_t replicas = 1;
  int32_t micro_batches = 0;  // of one replica
  int32_t micro_batch_size = 0;
  std::string generator;
  std::vector<StagePlacement> stages;
  schedule::Schedule schedule;
  // The ranks' actions in a self-conditioned step: `schedule` with C actions (schedule::AddSelfConditioning), the same
  // pieces and reductions. Without ranks if the model is not self-conditioned.
  schedule::Schedule self_conditioned;
  // Layers that keep only their inputs after F and compute the rest again in B or I; ascending.
  std::vector<int32_t> recomputed_layers;
  std::vector<FrozenComponent> components;
  std::vector<FrozenPiece> frozen;
  // Outputs of frozen components are computed once, before the first step, and then read: the plan has neither
  // components nor pieces.
  bool reads_frozen_cache = false;
  spec::PrecisionSpec precision;
  Prediction predicted;
  std::string reason;

  int32_t rank_count() const { return replicas * schedule.rank_count(); }  // of the island
  int32_t batch_size() const { return replicas * micro_batches * micro_batch_size; }
  int32_t layer_count() const { return stages.empty() ? 0 : stages.back().end_layer; }
  bool is_self_conditioned() const { return !self_conditioned.ranks.empty(); }
  bool operator==(const Plan&) const = default;
};

struct PlanRequest {
  spec::PipelineSpec pipeline;
  spec::PrecisionSpec precision;
  int32_t batch_size = 0;
  int32_t ranks = 1;  // of the island
  Profile profile;
  // The readers of the profile's frozen components; empty: the first stage reads those that no other component reads.
  std::vector<FrozenComponent> components;
  // Their inputs over the task, if known, to decide whether to keep their outputs.
  FrozenInputs frozen_inputs;
  double device_memory_bytes = 0;  // the value of pipeline.memory = auto, per rank; 0: no limit
  // Share of self-conditioned steps; 0: the model is not self-conditioned.
  double self_conditioning_rate = 0;
};

// The best plan of one schedule, to compare with the chosen plan.
struct Candidate {
  std::string schedule;
  int32_t ranks = 0;  // of one pipeline
  int32_t stages = 0;
  int32_t replicas = 0;
  int32_t micro_batches = 0;
  int32_t micro_batch_size = 0;
  int32_t recomputed_layers = 0;
  int32_t frozen_pieces = 0;
  Prediction predicted;
  double expected_seconds = 0;  // ExpectedSeconds of it
  double bound_seconds = 0;     // no schedule of this split and these micro-batches is expected to be shorter
  bool chosen = false;
  std::string why_not;  // empty when chosen
};

struct PlanChoice {
  Plan plan;
  std::vector<Candidate> candidates;  // one per schedule, in the order of schedule::Generators, refused ones too;
                                      // then "adaptive", where it was searched for
};

// Returns a valid plan with the shortest predicted iteration (for a self-conditioned model: on average). It chooses the
// fields that the request leaves open: schedule, replicas and micro-batches if they are "auto" or 0, stages with
// schedule "auto" (else 0 means as many as are useful), and the layers to recompute. Among plans within 0.1 % of the
// shortest (1 % with frozen work), an "auto" schedule is the one that holds the least memory: if frozen work covers the
// bubble, a schedule with a larger bubble and fewer activations costs nothing. Frozen outputs are computed in every
// iteration, or once and kept, as pipeline.frozen_cache says; "auto" chooses by the time over the task and by the
// memory (DecideFrozenCache).
//
// INVALID_ARGUMENT with the field: more stages than the layers or the ranks hold, or not a multiple of the schedule's
// stages per rank; a batch that micro-batches and replicas do not divide; an unknown schedule; a profile that
// CheckProfile refuses. FAILED_PRECONDITION (MEMORY_LIMIT) if no plan fits the memory, with the least limit that does.
//
// Takes below a second for 8 ranks and 30 layers.
absl::StatusOr<Plan> MakePlan(const PlanRequest& request);

// Returns the same plan and every other schedule: at its best if the schedule is "auto", else on as many ranks,
// replicas and micro-batches.
absl::StatusOr<PlanChoice> ComparePlans(const PlanRequest& request);

// Returns the seconds of an iteration, averaged over self-conditioned and other steps; plans are compared by this.
double ExpectedSeconds(const Prediction& predicted, double self_conditioning_rate);

// Returns the simulator's costs of a valid plan: of its stages, boundaries, frozen pieces and reductions, and the bytes
// that each rank of the pipeline holds throughout. The same for both of its schedules.
schedule::SimulationCosts CostsOf(const Plan& plan, const Profile& profile);

}  // namespace atl::planner
