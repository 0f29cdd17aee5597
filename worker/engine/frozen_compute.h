// What the engine needs of the thing that computes frozen pieces. Knows neither LibTorch nor gRPC.
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
// The engine calls, per iteration: for a piece of another rank whose output is needed here, InputBuffer, and Release
// when the pieces of this rank that read it have run; for a piece of this rank, Run once what it reads is there, Output
// if another rank needs it, and Release when it has been sent and read. What no piece here reads is not released.
class FrozenCompute {
 public:
  virtual ~FrozenCompute() = default;

  // Memory for the output of a piece of another rank, for a receive to fill.
  virtual absl::StatusOr<std::span<std::byte>> InputBuffer(int32_t piece) = 0;
  virtual absl::Status Run(int32_t piece) = 0;
  // The output of a piece that has run, to send.
  virtual absl::StatusOr<std::span<const std::byte>> Output(int32_t piece) = 0;
  // No piece and no send reads this output any longer; it may still be what a stage trains on in the next iteration.
  virtual void Release(int32_t piece) = 0;
};

}  // namespace atl::engine
