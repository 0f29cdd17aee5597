// Stages that compute on numbers, for tests of the engine. Every result depends on the stage, on its inputs and on
// their order, so that a misplaced message shows.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/schedule/action.h"
#include "worker/engine/self_conditioning_compute.h"
#include "worker/engine/stage_compute.h"

namespace atl::engine {

// The values at one boundary: two tensors with gradient around one without.
struct FakeValues {
  uint64_t tokens = 0;
  uint32_t mask = 0;  // without gradient
  uint64_t conditioning = 0;
  bool operator==(const FakeValues&) const = default;
};

// The functions of a stage. Gradients read the forward's input, so that mixed-up micro-batches show.
FakeValues FakeForward(int32_t stage, const FakeValues& input);
FakeValues FakeInputGradient(int32_t stage, const FakeValues& input, const FakeValues& output_gradient);
FakeValues FakeBatch(int32_t micro_batch);
// The batch as the first stage's F reads it, combined with the result of the last stage's C.
FakeValues FakeConditioned(const FakeValues& batch, uint64_t feedback);
FakeValues FakeLossGradient(const FakeValues& output);

// The gradients of a stage: a few numbers that each weight gradient changes, so that the order of micro-batches shows.
using FakeGradients = std::array<uint64_t, 3>;
void FakeAccumulate(const FakeValues& weight_gradient, FakeGradients& gradients);
// Not a sum: the result depends on the order of `a` and `b`.
uint64_t FakeJoin(uint64_t a, uint64_t b);

// Not thread-safe, as StageCompute allows. Records its calls.
class FakeStageCompute : public StageCompute, public SelfConditioningCompute {
 public:
  // `first_batch`: the number of micro-batch 0 among the batches that the first stage reads.
  explicit FakeStageCompute(int32_t stages, int32_t first_batch = 0) : stages_(stages), first_batch_(first_batch) {}

  const Boundary& InputOf(int32_t stage) const override;
  const Boundary& OutputOf(int32_t stage) const override;
  absl::StatusOr<std::vector<std::span<std::byte>>> InputBuffers(int32_t stage, int32_t micro_batch) override;
  absl::StatusOr<std::vector<std::span<std::byte>>> OutputGradientBuffers(int32_t stage, int32_t micro_batch) override;
  absl::Status Forward(int32_t stage, int32_t micro_batch) override;
  absl::Status InputGradient(int32_t stage, int32_t micro_batch) override;
  absl::Status WeightGradient(int32_t stage, int32_t micro_batch) override;
  absl::Status Backward(int32_t stage, int32_t micro_batch) override;
  absl::StatusOr<std::vector<std::span<const std::byte>>> Outputs(int32_t stage, int32_t micro_batch) override;
  absl::StatusOr<std::vector<std::span<const std::byte>>> InputGradients(int32_t stage, int32_t micro_batch) override;
  absl::Status HandOver(int32_t stage, int32_t micro_batch) override;
  absl::Status HandOverGradient(int32_t stage, int32_t micro_batch) override;
  void ReleaseOutputs(int32_t stage, int32_t micro_batch) override;
  void ReleaseInputGradients(int32_t stage, int32_t micro_batch) override;
  absl::StatusOr<ReduceBuffers> BeginReduce(int32_t stage, int32_t replica, int32_t replicas) override;
  absl::Status SumOwnPart(int32_t stage) override;
  absl::Status EndReduce(int32_t stage) override;
  void Release(int32_t stage, int32_t micro_batch) override;
  const Boundary& EstimateInputOf(int32_t stage) const override;
  absl::StatusOr<std::vector<std::span<std::byte>>> EstimateInputs(int32_t stage, int32_t micro_batch) override;
  absl::Status EstimateForward(int32_t stage, int32_t micro_batch) override;
  absl::StatusOr<std::vector<std::span<const std::byte>>> EstimateOutputs(int32_t stage, int32_t micro_batch) override;
  absl::Status HandOverEstimate(int32_t stage, int32_t micro_batch) override;
  void ReleaseEstimate(int32_t stage, int32_t micro_batch) override;

  // Weight gradients by (stage, micro-batch), as W or B left them.
  std::map<std::pair<int32_t, int32_t>, FakeValues> weight_gradients;
  // By stage, as W, B and R left them.
  std::map<int32_t, FakeGradients> gradients;
  std::vector<schedule::Action> ran;  // without reductions
  std::map<std::pair<int32_t, int32_t>, int> released;
  std::map<std::pair<int32_t, int32_t>, int> released_outputs;
  std::map<std::pair<int32_t, int32_t>, int> released_input_gradients;
  std::map<std::pair<int32_t, int32_t>, int> released_estimates;
  std::vector<int32_t> reduced;  // stages, in the order of their EndReduce
  size_t live_peak = 0;
  // Called before each action runs; an error becomes the action's.
  std::function<absl::Status(const schedule::Action&)> before;

 private:
  struct Slot {
    FakeValues input;
    FakeValues output;
    FakeValues output_gradient;
    FakeValues input_gradient;
  };
  Slot& At(int32_t stage, int32_t micro_batch);
  absl::Status Record(schedule::ActionKind kind, int32_t stage, int32_t micro_batch);

  struct Reducing {
    int32_t replica = 0;
    size_t begin = 0;  // of the own part
    size_t end = 0;
    std::vector<FakeGradients> gathered;
  };

  const int32_t stages_;
  const int32_t first_batch_;
  std::map<std::pair<int32_t, int32_t>, Slot> slots_;
  // The inputs of C: at stage 0 the feedback, in `tokens`.
  std::map<std::pair<int32_t, int32_t>, FakeValues> estimate_inputs_;
  std::map<std::pair<int32_t, int32_t>, FakeValues> estimate_outputs_;
  std::map<int32_t, Reducing> reducing_;
};

}  // namespace atl::engine
