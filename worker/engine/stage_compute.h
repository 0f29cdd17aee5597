// The interface through which the engine computes stages. Depends on neither LibTorch nor gRPC.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace atl::engine {

// One tensor of a stage boundary. Boundaries are lists: tokens and conditioning today, masks and skips tomorrow.
struct BoundaryTensor {
  std::string name;
  std::vector<int64_t> shape;
  std::string dtype;  // "float32", "bfloat16", "int64"
  bool needs_gradient = true;
  int64_t bytes = 0;
};

// The tensors that leave stage s and enter stage s + 1, for one micro-batch.
struct Boundary {
  std::vector<BoundaryTensor> tensors;
  int64_t bytes() const;
};

// One stage's gradients while they are summed over the replicas.
struct ReduceBuffers {
  // The gradients as one run of memory, cut into one part per replica, the same way on every replica.
  std::vector<std::span<std::byte>> parts;
  // Memory for replica d's values of this replica's part, as large as that part; empty for this replica itself.
  std::vector<std::span<std::byte>> gathered;
};

// The computation of the stages on one rank. Called by the engine's one thread. Returned buffers stay valid and
// unchanged until Release of the same (stage, micro-batch), or until the call that releases them earlier.
//
// Calls per (stage, micro-batch): InputBuffers, or HandOver of the previous stage; Forward; Outputs and later
// ReleaseOutputs, or HandOver; OutputGradientBuffers, or HandOverGradient of the next stage; Backward, or InputGradient
// and later WeightGradient; after Backward or InputGradient, InputGradients and later ReleaseInputGradients, or
// HandOverGradient; Release, once. The engine may call InputBuffers one action ahead of Forward, and
// OutputGradientBuffers one ahead of Backward, but never before its Forward. With replicas, per stage after its last
// weight gradient: BeginReduce, SumOwnPart, EndReduce.
class StageCompute {
 public:
  virtual ~StageCompute() = default;

  // Returns the tensors that enter `stage` (empty for stage 0, which reads its own batch).
  virtual const Boundary& InputOf(int32_t stage) const = 0;
  // Returns the tensors that leave `stage` (empty for the last stage, which computes the loss).
  virtual const Boundary& OutputOf(int32_t stage) const = 0;

  // Returns memory for the inputs of (stage, micro-batch), one span per boundary tensor, for a receive to fill.
  virtual absl::StatusOr<std::vector<std::span<std::byte>>> InputBuffers(int32_t stage, int32_t micro_batch) = 0;
  // Returns memory for the gradients of the outputs (tensors that need one, in order), for a receive to fill.
  virtual absl::StatusOr<std::vector<std::span<std::byte>>> OutputGradientBuffers(int32_t stage,
                                                                                  int32_t micro_batch) = 0;

  virtual absl::Status Forward(int32_t stage, int32_t micro_batch) = 0;
  virtual absl::Status InputGradient(int32_t stage, int32_t micro_batch) = 0;
  virtual absl::Status WeightGradient(int32_t stage, int32_t micro_batch) = 0;
  virtual absl::Status Backward(int32_t stage, int32_t micro_batch) = 0;

  // Returns the outputs of a finished Forward, to send.
  virtual absl::StatusOr<std::vector<std::span<const std::byte>>> Outputs(int32_t stage, int32_t micro_batch) = 0;
  // Returns the gradients of the inputs after InputGradient or Backward, to send.
  virtual absl::StatusOr<std::vector<std::span<const std::byte>>> InputGradients(int32_t stage,
                                                                                 int32_t micro_batch) = 0;

  // Pass tensors within one rank, if possible without a copy: the outputs of `stage` become the inputs of `stage + 1`,
  // the input gradients of `stage` the output gradients of `stage - 1`. Called right after the action that computed
  // them. The passed tensors must outlive a Release of `stage`.
  virtual absl::Status HandOver(int32_t stage, int32_t micro_batch) = 0;
  virtual absl::Status HandOverGradient(int32_t stage, int32_t micro_batch) = 0;

  // The outputs, or the input gradients, have been sent: these buffers are not read any more.
  virtual void ReleaseOutputs(int32_t stage, int32_t micro_batch) = 0;
  virtual void ReleaseInputGradients(int32_t stage, int32_t micro_batch) = 0;

  // Returns the gradients of `stage`, to be summed; valid until EndReduce. `replica` is this one.
  virtual absl::StatusOr<ReduceBuffers> BeginReduce(int32_t stage, int32_t replica, int32_t replicas) = 0;
  // Sums parts[replica], in replica order; every replica's values of this part have been gathered.
  virtual absl::Status SumOwnPart(int32_t stage) = 0;
  // Every part holds its sum: these are the stage's gradients.
  virtual absl::Status EndReduce(int32_t stage) = 0;

  // The sends of (stage, micro-batch) have completed and its gradients are done: its memory may be freed. Not called
  // for work that was under way when an iteration failed: the owner ends the attempt and destroys the object.
  virtual void Release(int32_t stage, int32_t micro_batch) = 0;
};

}  // namespace atl::engine
