// Shared code of the trainer's benchmarks: the work, profiles of all ranks, and steps in turns.
#pragma once

#include <ctime>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/base/clock.h"
#include "common/planner/profile.h"
#include "common/spec/spec.h"
#include "tests/bench/rank_processes.h"
#include "worker/trainer/trainer.h"
#include "worker/transport/transport.h"

namespace atl::bench {

// A DiT of `depth` blocks on square images of `tokens` patches.
struct Work {
  int depth = 8;
  int width = 256;
  int tokens = 64;  // a square number
  int patch = 2;
  int channels = 1;
  double mlp_ratio = 4.0;
  int micro_batches = 8;
  int micro_batch_size = 8;
  bool self_conditioning = false;  // in every step
  std::vector<spec::FrozenSpec> frozen;

  int batch_size() const { return micro_batches * micro_batch_size; }
};

// Returns a frozen encoder that keeps the images' size and channels (one): a convolution, `blocks` residual ones, a
// last convolution.
std::vector<spec::FrozenSpec> Encoder(int blocks);

// Returns the number of blocks with which the encoder's time over a batch is `r` times that of the trainable layers,
// according to a profile of some encoder.
int BlocksFor(double r, const Work& work, const planner::Profile& profile);

trainer::TrainerOptions OptionsOf(const Work& work);

// In a child: measures this work at the same time as the others, sends the result to the parent, and receives the
// merged profile. A calibration only measures the machine's current speed (planner::AdjustSpeed).
absl::StatusOr<planner::Profile> ShareProfile(const Work& work, transport::Transport* transport, ParentPipes* parent,
                                              Clock* clock = Clock::Real(), bool calibration = false);
// In the parent: merges the children's profiles into one and sends it to all of them.
absl::StatusOr<planner::Profile> MergeAndShare(const Children& ranks);

// In a child: runs one step and answers the parent.
absl::Status StepAndAnswer(trainer::Trainer* trainer, ParentPipes* parent);

// The cost of a command in wall-clock time and in processor time. The latter holds even on a busy machine.
struct Cost {
  double seconds = 0;
  double cpu_seconds = 0;
  double page_faults = 0;
};

// Sends one command to every child, at once; with `show`, prints their answers on standard error.
absl::StatusOr<Cost> StepAll(const std::vector<Child*>& children, const std::string& command, bool show = false);

std::vector<double> SecondsOf(const std::vector<Cost>& costs);
std::vector<double> CpuSecondsOf(const std::vector<Cost>& costs);
std::vector<double> PageFaultsOf(const std::vector<Cost>& costs);
// Returns scale * a[i] / b[i].
std::vector<double> Ratios(const std::vector<Cost>& a, const std::vector<Cost>& b, double scale = 1);

}  // namespace atl::bench
