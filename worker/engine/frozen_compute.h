// The interface through which the engine computes frozen pieces. Depends on neither LibTorch nor gRPC.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace atl::engine {

// The frozen pieces of one rank, by their number in the plan. Called by the engine's one thread. Buffers that it
// returns stay valid and unchanged until Release of the same piece.
//
// Calls per iteration, for a piece of another rank whose output is needed here: InputBuffer, and Release when the
// pieces of this rank that read it have run. For a piece of this rank: Run once its inputs are present, Output if
// another rank needs it, and Release when it has been sent and read. An output that no piece here reads is not
// released.
class FrozenCompute {
 public:
  virtual ~FrozenCompute() = default;

  // Returns memory for the output of a piece of another rank, for a receive to fill.
  virtual absl::StatusOr<std::span<std::byte>> InputBuffer(int32_t piece) = 0;
  virtual absl::Status Run(int32_t piece) = 0;
  // Returns the output of a piece that has run, to send.
  virtual absl::StatusOr<std::span<const std::byte>> Output(int32_t piece) = 0;
  // No piece and no send reads this output any longer; a stage may still train on it in the next iteration.
  virtual void Release(int32_t piece) = 0;
};

}  // namespace atl::engine
