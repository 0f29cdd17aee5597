// One solver step of one image, as a state machine: names the networks to evaluate and the point, takes the answers in
// any order, and moves the sample. Knows neither batches nor lanes.
//
// An image is routed once per step, on x_t at the step's start. Heun's second evaluation and both guidance branches use
// the same experts and weights, so that only the experts' answers differ, not the choice of experts.
//
// Experts of a self-conditioned model all get the ensemble's own estimate of the clean sample from the step before: x_t
// - t v at the last evaluated point, v the weighted velocity of the image's class alone. The estimate has no guidance,
// because training never used a guided estimate. The router network gets none.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "inference/expert_choice.h"
#include "router/policy/request.h"
#include "router/policy/solver.h"
#include "router/policy/time_grid.h"

namespace atl::router {

// The state of an image between steps.
struct SampleState {
  std::vector<float> x;  // [channels][height][width]
  // For a self-conditioned model: the clean sample to which the ensemble pointed in the previous step, shaped as x;
  // zeros before the first step.
  std::vector<float> estimate;
  SolverHistory history;  // of the multistep solver
  // For requests with previews: the guided clean sample to which the ensemble pointed in the previous step.
  std::vector<float> preview;
};

enum class StepNeed {
  kPosterior,   // the router network's answer at point()
  kVelocities,  // those of awaited() at point()
  kFinish,      // nothing but Finish
};

// The inputs for evaluating networks.
struct EvaluationPoint {
  int64_t number = 0;  // of the point within its step; answers name it
  std::span<const float> x;
  std::span<const float> estimate;  // empty for the router network and for models without self-conditioning
  float t = 0;
  int64_t class_row = 0;
  int64_t null_row = 0;  // of the second branch, where it is guided: the null class, or a negative one
  bool guided = false;
};

class ImageStep {
 public:
  // `info`, `order` and `state` must outlive the step and not move; only Finish changes `state`.
  ImageStep(const SamplerInfo& info, const SampleOrder& order, const ImageOrder& image, const SolverStep& step,
            SampleState* state);

  StepNeed need() const { return need_; }
  // Valid until the step takes its next answer.
  EvaluationPoint point() const;
  // Returns the experts whose velocities at point() are missing, ascending.
  std::vector<int32_t> awaited() const;
  // The experts of this step and their weights. Empty while the posterior is missing.
  const ExpertChoice& choice() const { return choice_; }

  // Takes one row of the router network. INTERNAL (NON_FINITE_OUTPUT) when it is not a distribution.
  absl::Status TakePosterior(std::span<const float> posterior);
  // Takes an expert's answer at the point of that number, shaped as x; reads `null_branch` only if the point is guided.
  // Ignores an answer that is not awaited (any more).
  void TakeVelocity(int64_t point, int32_t expert, std::span<const float> own, std::span<const float> null_branch);
  // Continues without the expert in the whole step: renormalises the others' weights, and evaluates a second point
  // again if the expert's velocity led to it. Returns `why` if no other expert is left; the step is then useless.
  absl::Status LoseExpert(int32_t expert, const absl::Status& why);
  // Moves the sample and the solver's history. need() must be kFinish.
  void Finish();

 private:
  // The answers at one point, kept by expert and summed in that order, so that an image's arithmetic depends neither on
  // its neighbours nor on the order of answers.
  struct Answers {
    struct Velocity {
      bool here = false;
      std::vector<float> guided;
      std::vector<float> own;  // without guidance; of self-conditioned models alone
    };
    std::vector<Velocity> by_choice;  // as choice_.experts

    bool complete() const;
  };

  // The time of point().
  double time() const { return at_second_ ? step_.to : step_.from; }
  int64_t RowOf(int32_t class_label) const { return class_label == kNoClass ? info_->classes : class_label; }
  Answers& current() { return at_second_ ? second_ : first_; }
  const Answers& current() const { return at_second_ ? second_ : first_; }
  std::vector<float> Sum(const Answers& answers, std::vector<float> Answers::Velocity::*branch) const;
  void Choose(ExpertChoice choice);
  // After an answer or a loss, proceeds to the second point or to the end.
  void Proceed();

  const SamplerInfo* const info_;
  const SampleOrder* const order_;
  const ImageOrder image_;
  const SolverStep step_;
  SampleState* const state_;
  StepNeed need_;
  ExpertChoice choice_;
  Answers first_;
  Answers second_;
  bool at_second_ = false;
  int64_t point_number_ = 0;
  std::vector<float> end_;  // where Heun's second evaluation takes place: the end of the Euler step
};

}  // namespace atl::router
