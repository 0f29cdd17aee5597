#include "worker/engine/fake_stage_compute.h"

#include <algorithm>

namespace atl::engine {
namespace {

using schedule::ActionKind;

const Boundary& EmptyBoundary() {
  static const auto* const kBoundary = new Boundary;
  return *kBoundary;
}

const Boundary& MiddleBoundary() {
  static const auto* const kBoundary = new Boundary{{
      {.name = "tokens", .shape = {1}, .dtype = "int64", .needs_gradient = true, .bytes = 8},
      {.name = "mask", .shape = {1}, .dtype = "int32", .needs_gradient = false, .bytes = 4},
      {.name = "conditioning", .shape = {1}, .dtype = "int64", .needs_gradient = true, .bytes = 8},
  }};
  return *kBoundary;
}

const Boundary& FeedbackBoundary() {
  static const auto* const kBoundary =
      new Boundary{{{.name = "feedback", .shape = {1}, .dtype = "int64", .needs_gradient = false, .bytes = 8}}};
  return *kBoundary;
}

uint64_t Mix(uint64_t a, uint64_t b, uint64_t c) {
  return (a * 0x9E3779B97F4A7C15u + b) * 0xBF58476D1CE4E5B9u + c;
}

template <typename T>
std::span<std::byte> BytesOf(T& value) {
  return std::as_writable_bytes(std::span<T>(&value, 1));
}

}  // namespace

FakeValues FakeForward(int32_t stage, const FakeValues& input) {
  return {Mix(input.tokens, input.conditioning + input.mask, stage + 1), input.mask + 1,
          Mix(input.conditioning, input.tokens, stage + 2)};
}

FakeValues FakeInputGradient(int32_t stage, const FakeValues& input, const FakeValues& output_gradient) {
  return {Mix(output_gradient.tokens, input.conditioning, stage + 3), 0,
          Mix(output_gradient.conditioning, input.tokens, stage + 4)};
}

FakeValues FakeBatch(int32_t micro_batch) {
  return {1000u + static_cast<uint64_t>(micro_batch), static_cast<uint32_t>(micro_batch), 7};
}

FakeValues FakeConditioned(const FakeValues& batch, uint64_t feedback) {
  return {Mix(batch.tokens, feedback, 8), batch.mask, batch.conditioning};
}

FakeValues FakeLossGradient(const FakeValues& output) {
  return {output.tokens + 1, 0, output.conditioning + 1};
}

void FakeAccumulate(const FakeValues& weight_gradient, FakeGradients& gradients) {
  gradients = {Mix(gradients[0], weight_gradient.tokens, 5), Mix(gradients[1], weight_gradient.conditioning, 6),
               gradients[2] + 1};
}

uint64_t FakeJoin(uint64_t a, uint64_t b) {
  return Mix(a, b, 9);
}

FakeStageCompute::Slot& FakeStageCompute::At(int32_t stage, int32_t micro_batch) {
  Slot& slot = slots_[{stage, micro_batch}];
  live_peak = std::max(live_peak, slots_.size());
  return slot;
}

absl::Status FakeStageCompute::Record(ActionKind kind, int32_t stage, int32_t micro_batch) {
  const schedule::Action action{kind, stage, micro_batch};
  ran.push_back(action);
  return before ? before(action) : absl::OkStatus();
}

const Boundary& FakeStageCompute::InputOf(int32_t stage) const {
  return stage == 0 ? EmptyBoundary() : MiddleBoundary();
}

const Boundary& FakeStageCompute::OutputOf(int32_t stage) const {
  return stage + 1 == stages_ ? EmptyBoundary() : MiddleBoundary();
}

absl::StatusOr<std::vector<std::span<std::byte>>> FakeStageCompute::InputBuffers(int32_t stage, int32_t micro_batch) {
  FakeValues& input = At(stage, micro_batch).input;
  return std::vector<std::span<std::byte>>{BytesOf(input.tokens), BytesOf(input.mask), BytesOf(input.conditioning)};
}

absl::StatusOr<std::vector<std::span<std::byte>>> FakeStageCompute::OutputGradientBuffers(int32_t stage,
                                                                                          int32_t micro_batch) {
  if (!slots_.contains({stage, micro_batch})) return absl::InternalError("gradient asked for before its forward");
  FakeValues& gradient = At(stage, micro_batch).output_gradient;
  return std::vector<std::span<std::byte>>{BytesOf(gradient.tokens), BytesOf(gradient.conditioning)};
}

absl::Status FakeStageCompute::Forward(int32_t stage, int32_t micro_batch) {
  if (absl::Status status = Record(ActionKind::kForward, stage, micro_batch); !status.ok()) return status;
  Slot& slot = At(stage, micro_batch);
  if (stage == 0) {
    slot.input = FakeBatch(first_batch_ + micro_batch);
    const auto feedback = estimate_inputs_.extract({0, micro_batch});
    if (!feedback.empty()) slot.input = FakeConditioned(slot.input, feedback.mapped().tokens);
  }
  slot.output = FakeForward(stage, slot.input);
  if (stage + 1 == stages_) slot.output_gradient = FakeLossGradient(slot.output);
  return absl::OkStatus();
}

absl::Status FakeStageCompute::InputGradient(int32_t stage, int32_t micro_batch) {
  if (absl::Status status = Record(ActionKind::kInputGradient, stage, micro_batch); !status.ok()) return status;
  Slot& slot = At(stage, micro_batch);
  slot.input_gradient = FakeInputGradient(stage, slot.input, slot.output_gradient);
  return absl::OkStatus();
}

absl::Status FakeStageCompute::WeightGradient(int32_t stage, int32_t micro_batch) {
  if (absl::Status status = Record(ActionKind::kWeightGradient, stage, micro_batch); !status.ok()) return status;
  weight_gradients[{stage, micro_batch}] = At(stage, micro_batch).input_gradient;
  FakeAccumulate(At(stage, micro_batch).input_gradient, gradients[stage]);
  return absl::OkStatus();
}

absl::Status FakeStageCompute::Backward(int32_t stage, int32_t micro_batch) {
  if (absl::Status status = Record(ActionKind::kBackward, stage, micro_batch); !status.ok()) return status;
  Slot& slot = At(stage, micro_batch);
  slot.input_gradient = FakeInputGradient(stage, slot.input, slot.output_gradient);
  weight_gradients[{stage, micro_batch}] = slot.input_gradient;
  FakeAccumulate(slot.input_gradient, gradients[stage]);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::span<const std::byte>>> FakeStageCompute::Outputs(int32_t stage, int32_t micro_batch) {
  FakeValues& output = At(stage, micro_batch).output;
  return std::vector<std::span<const std::byte>>{BytesOf(output.tokens), BytesOf(output.mask),
                                                 BytesOf(output.conditioning)};
}

absl::StatusOr<std::vector<std::span<const std::byte>>> FakeStageCompute::InputGradients(int32_t stage,
                                                                                         int32_t micro_batch) {
  FakeValues& gradient = At(stage, micro_batch).input_gradient;
  return std::vector<std::span<const std::byte>>{BytesOf(gradient.tokens), BytesOf(gradient.conditioning)};
}

absl::Status FakeStageCompute::HandOver(int32_t stage, int32_t micro_batch) {
  const FakeValues output = At(stage, micro_batch).output;
  At(stage + 1, micro_batch).input = output;
  return absl::OkStatus();
}

absl::Status FakeStageCompute::HandOverGradient(int32_t stage, int32_t micro_batch) {
  const FakeValues gradient = At(stage, micro_batch).input_gradient;
  At(stage - 1, micro_batch).output_gradient = gradient;
  return absl::OkStatus();
}

void FakeStageCompute::ReleaseOutputs(int32_t stage, int32_t micro_batch) {
  ++released_outputs[{stage, micro_batch}];
}

void FakeStageCompute::ReleaseInputGradients(int32_t stage, int32_t micro_batch) {
  ++released_input_gradients[{stage, micro_batch}];
}

absl::StatusOr<ReduceBuffers> FakeStageCompute::BeginReduce(int32_t stage, int32_t replica, int32_t replicas) {
  if (before) {
    if (absl::Status status = before({ActionKind::kReduce, stage, 0}); !status.ok()) return status;
  }
  FakeGradients& own = gradients[stage];
  const auto cut = [&own, replicas](int32_t part) {
    return own.size() * static_cast<size_t>(part) / static_cast<size_t>(replicas);
  };
  Reducing& reducing = reducing_[stage];
  reducing = {replica, cut(replica), cut(replica + 1), std::vector<FakeGradients>(static_cast<size_t>(replicas))};
  ReduceBuffers buffers;
  for (int32_t part = 0; part < replicas; ++part) {
    buffers.parts.push_back(std::as_writable_bytes(std::span(own).subspan(cut(part), cut(part + 1) - cut(part))));
    std::span<uint64_t> gathered =
        std::span(reducing.gathered[static_cast<size_t>(part)]).subspan(reducing.begin, reducing.end - reducing.begin);
    if (part == replica) gathered = {};
    buffers.gathered.push_back(std::as_writable_bytes(gathered));
  }
  return buffers;
}

absl::Status FakeStageCompute::SumOwnPart(int32_t stage) {
  Reducing& reducing = reducing_[stage];
  reducing.gathered[static_cast<size_t>(reducing.replica)] = gradients[stage];
  for (size_t i = reducing.begin; i < reducing.end; ++i) {
    uint64_t sum = reducing.gathered[0][i];
    for (size_t replica = 1; replica < reducing.gathered.size(); ++replica) {
      sum = FakeJoin(sum, reducing.gathered[replica][i]);
    }
    gradients[stage][i] = sum;
  }
  return absl::OkStatus();
}

absl::Status FakeStageCompute::EndReduce(int32_t stage) {
  reducing_.erase(stage);
  reduced.push_back(stage);
  return absl::OkStatus();
}

void FakeStageCompute::Release(int32_t stage, int32_t micro_batch) {
  ++released[{stage, micro_batch}];
  slots_.erase({stage, micro_batch});
}

const Boundary& FakeStageCompute::EstimateInputOf(int32_t stage) const {
  return stage == 0 ? FeedbackBoundary() : MiddleBoundary();
}

absl::StatusOr<std::vector<std::span<std::byte>>> FakeStageCompute::EstimateInputs(int32_t stage, int32_t micro_batch) {
  FakeValues& input = estimate_inputs_[{stage, micro_batch}];
  if (stage == 0) return std::vector<std::span<std::byte>>{BytesOf(input.tokens)};
  return std::vector<std::span<std::byte>>{BytesOf(input.tokens), BytesOf(input.mask), BytesOf(input.conditioning)};
}

absl::Status FakeStageCompute::EstimateForward(int32_t stage, int32_t micro_batch) {
  if (absl::Status status = Record(ActionKind::kSelfConditioning, stage, micro_batch); !status.ok()) return status;
  FakeValues input = FakeBatch(first_batch_ + micro_batch);
  if (stage > 0) {
    const auto received = estimate_inputs_.extract({stage, micro_batch});
    if (received.empty()) return absl::InternalError("an extra forward before its inputs");
    input = received.mapped();
  }
  estimate_outputs_[{stage, micro_batch}] = FakeForward(stage, input);
  return absl::OkStatus();
}

absl::StatusOr<std::vector<std::span<const std::byte>>> FakeStageCompute::EstimateOutputs(int32_t stage,
                                                                                          int32_t micro_batch) {
  FakeValues& output = estimate_outputs_[{stage, micro_batch}];
  if (stage + 1 == stages_) return std::vector<std::span<const std::byte>>{BytesOf(output.tokens)};
  return std::vector<std::span<const std::byte>>{BytesOf(output.tokens), BytesOf(output.mask),
                                                 BytesOf(output.conditioning)};
}

absl::Status FakeStageCompute::HandOverEstimate(int32_t stage, int32_t micro_batch) {
  const auto output = estimate_outputs_.extract({stage, micro_batch});
  estimate_inputs_[{(stage + 1) % stages_, micro_batch}] = output.mapped();
  return absl::OkStatus();
}

void FakeStageCompute::ReleaseEstimate(int32_t stage, int32_t micro_batch) {
  ++released_estimates[{stage, micro_batch}];
  estimate_outputs_.erase({stage, micro_batch});
}

}  // namespace atl::engine
