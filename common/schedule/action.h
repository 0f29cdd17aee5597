// A pipeline schedule as data: each rank's actions in order. Pure.
//
// Text form: one line per rank, tokens `<stage><kind><micro-batch>` separated by commas, as in PyTorch's schedule CSV
// (torch/distributed/pipelining/schedules.py): "0F0,0F1,0B0,0B1". The kind `C` is a forward of self-conditioning, which
// PyTorch does not have. `E<piece>` is frozen work, and `R<stage>` the reduction of a stage's gradients over replicas.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace atl::schedule {

enum class ActionKind : uint8_t {
  kForward,         // F
  kInputGradient,   // I
  kWeightGradient,  // W
  kBackward,        // B: input and weight gradient at once
  kFrozen,          // E: forward of one piece of the frozen components, for the next iteration
  kReduce,          // R: the stage's gradients, summed over the replicas
  // C: forward without a graph. The first stage's F of a micro-batch reads the last stage's output of its C: a
  // self-conditioned model sees its own estimate of the sample (Analog Bits, arXiv 2208.04202).
  kSelfConditioning,
};

char KindLetter(ActionKind kind);
// Returns nothing for an unknown letter.
std::optional<ActionKind> KindOf(char letter);

// A frozen action has a piece instead: an index into the plan's list of pieces, kept in `micro_batch`; its stage is 0.
// A reduction has only a stage; its micro-batch is 0. Neither belongs to a micro-batch: see HasMicroBatch.
struct Action {
  ActionKind kind = ActionKind::kForward;
  int32_t stage = 0;
  int32_t micro_batch = 0;
  bool operator==(const Action&) const = default;
};

// Returns whether the action computes a micro-batch of a stage: F, C, I, W or B.
bool HasMicroBatch(ActionKind kind);

std::string ToString(const Action& action);  // "2F0", "E3", "R1"

// The schedule of one pipeline; its replicas run the same one. Stages are numbered 0 .. stages - 1 along the model;
// every stage lies on one rank.
struct Schedule {
  int32_t stages = 0;
  int32_t micro_batches = 0;
  int32_t frozen_pieces = 0;
  std::vector<std::vector<Action>> ranks;  // ranks[r]: rank r's actions in order
  std::vector<int32_t> rank_of_stage;

  int32_t rank_count() const { return static_cast<int32_t>(ranks.size()); }
  bool operator==(const Schedule&) const = default;
};

// Returns the text of docs/formats.md, with a newline after each rank.
std::string ToText(const Schedule& schedule);

// Parses the text. INVALID_ARGUMENT with rank, position and reason: an unknown token, an invalid number, more than 10
// million actions, a stage on two ranks, a gap in stages or micro-batches. Does not check order: see Validate.
absl::StatusOr<Schedule> ParseText(std::string_view text);

// Checks three conditions. Every stage runs F once per micro-batch and then B once, or I once and W once after it, and
// either no C at all or C once before each F. No rank can wait forever under the blocking semantics of the transport: a
// receive blocks until its send, sends do not block, lanes are in order. Sender and receiver of every lane agree on its
// order; C's have lanes of their own, and so has the feedback from the last stage's C to the first stage's F. Otherwise
// INVALID_ARGUMENT naming rank, position, token and reason.
absl::Status Validate(const Schedule& schedule);

}  // namespace atl::schedule
