#include "router/engine/image_step.h"

#include <algorithm>
#include <cmath>

#include "common/base/errors.h"
#include "fmt/format.h"

namespace atl::router {

ImageStep::ImageStep(const SamplerInfo& info, const SampleOrder& order, const ImageOrder& image, const SolverStep& step,
                     SampleState* state)
    : info_(&info), order_(&order), image_(image), step_(step), state_(state), need_(StepNeed::kPosterior) {
  if (!order.routing.needs_posterior()) Choose(ChooseExperts(order.routing, {}));
}

EvaluationPoint ImageStep::point() const {
  EvaluationPoint point{.number = point_number_,
                        .x = at_second_ ? end_ : state_->x,
                        .t = static_cast<float>(time()),
                        .class_row = RowOf(image_.class_label),
                        .null_row = RowOf(order_->negative_class)};
  if (need_ == StepNeed::kPosterior) return point;
  point.estimate = state_->estimate;
  point.guided = order_->guided(image_, time());
  return point;
}

std::vector<int32_t> ImageStep::awaited() const {
  std::vector<int32_t> experts;
  if (need_ != StepNeed::kVelocities) return experts;
  for (size_t i = 0; i < choice_.experts.size(); ++i) {
    if (!current().by_choice[i].here) experts.push_back(choice_.experts[i].expert);
  }
  return experts;
}

void ImageStep::Choose(ExpertChoice choice) {
  choice_ = std::move(choice);
  first_.by_choice.resize(choice_.experts.size());
  second_.by_choice.resize(choice_.experts.size());
  need_ = StepNeed::kVelocities;
}

absl::Status ImageStep::TakePosterior(std::span<const float> posterior) {
  double total = 0;
  for (const float p : posterior) total += p;
  if (!std::isfinite(total) || !(total > 0)) {
    return MakeError(
        absl::StatusCode::kInternal, "NON_FINITE_OUTPUT",
        fmt::format("router network of model '{}' version '{}': expected probabilities, found a row that adds up to {}",
                    info_->model, info_->version, total));
  }
  Choose(ChooseExperts(order_->routing, posterior));
  return absl::OkStatus();
}

void ImageStep::TakeVelocity(int64_t point, int32_t expert, std::span<const float> own,
                             std::span<const float> null_branch) {
  if (need_ != StepNeed::kVelocities || point != point_number_) return;
  const auto picked = std::find_if(choice_.experts.begin(), choice_.experts.end(),
                                   [&](const ExpertWeight& entry) { return entry.expert == expert; });
  if (picked == choice_.experts.end()) return;
  Answers::Velocity& velocity = current().by_choice[picked - choice_.experts.begin()];
  if (velocity.here) return;
  velocity.here = true;
  if (order_->guided(image_, time())) {
    const auto guidance = static_cast<float>(order_->guidance);
    velocity.guided.resize(own.size());
    for (size_t p = 0; p < own.size(); ++p) velocity.guided[p] = null_branch[p] + guidance * (own[p] - null_branch[p]);
  } else {
    velocity.guided.assign(own.begin(), own.end());
  }
  if (info_->self_conditioning) velocity.own.assign(own.begin(), own.end());
  Proceed();
}

bool ImageStep::Answers::complete() const {
  return std::all_of(by_choice.begin(), by_choice.end(), [](const Velocity& velocity) { return velocity.here; });
}

std::vector<float> ImageStep::Sum(const Answers& answers, std::vector<float> Answers::Velocity::*branch) const {
  std::vector<float> sum(state_->x.size(), 0);
  for (size_t i = 0; i < choice_.experts.size(); ++i) {
    const auto weight = static_cast<float>(choice_.experts[i].weight);
    const std::vector<float>& velocity = answers.by_choice[i].*branch;
    for (size_t p = 0; p < sum.size(); ++p) sum[p] += weight * velocity[p];
  }
  return sum;
}

void ImageStep::Proceed() {
  if (!current().complete()) return;
  if (at_second_ || !step_.second_evaluation) {
    need_ = StepNeed::kFinish;
    return;
  }
  const std::vector<float> velocity = Sum(first_, &Answers::Velocity::guided);
  end_ = state_->x;
  for (size_t p = 0; p < end_.size(); ++p) end_[p] += static_cast<float>(step_.to - step_.from) * velocity[p];
  at_second_ = true;
  ++point_number_;
}

absl::Status ImageStep::LoseExpert(int32_t expert, const absl::Status& why) {
  const auto lost = std::find_if(choice_.experts.begin(), choice_.experts.end(),
                                 [&](const ExpertWeight& entry) { return entry.expert == expert; });
  if (lost == choice_.experts.end()) return absl::OkStatus();
  if (choice_.experts.size() == 1) return why;
  const auto place = lost - choice_.experts.begin();
  choice_.experts.erase(lost);
  double total = 0;
  for (const ExpertWeight& entry : choice_.experts) total += entry.weight;
  for (ExpertWeight& entry : choice_.experts) entry.weight /= total;
  first_.by_choice.erase(first_.by_choice.begin() + place);
  second_.by_choice.assign(choice_.experts.size(), {});
  at_second_ = false;
  need_ = StepNeed::kVelocities;
  Proceed();
  return absl::OkStatus();
}

void ImageStep::Finish() {
  std::vector<float>& x = state_->x;
  const std::vector<float> first = Sum(first_, &Answers::Velocity::guided);
  // Before x moves: it may be the point itself.
  if (!state_->estimate.empty()) {
    const std::vector<float> own = Sum(current(), &Answers::Velocity::own);
    const EvaluationPoint last = point();
    for (size_t p = 0; p < x.size(); ++p) state_->estimate[p] = last.x[p] - last.t * own[p];
  }
  if (order_->preview_every > 0) {
    const std::vector<float> guided = Sum(current(), &Answers::Velocity::guided);
    const EvaluationPoint last = point();
    state_->preview.resize(x.size());
    for (size_t p = 0; p < x.size(); ++p) state_->preview[p] = last.x[p] - last.t * guided[p];
  }
  const auto span = static_cast<float>(step_.to - step_.from);
  if (at_second_) {
    const std::vector<float> second = Sum(second_, &Answers::Velocity::guided);
    for (size_t p = 0; p < x.size(); ++p) x[p] += span * (0.5f * (first[p] + second[p]));
  } else if (order_->solver == Solver::kMultistep) {
    MultistepAdvance(step_, first, &state_->history, x);
  } else {
    for (size_t p = 0; p < x.size(); ++p) x[p] += span * first[p];
  }
}

}  // namespace atl::router
