#include "router/engine/testing/inline_lane.h"

#include <algorithm>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"

namespace atl::router {
namespace {

// Backends know one branch: each row is followed by its second branch.
Rows Interleaved(const Rows& rows) {
  Rows both{.count = 2 * rows.count};
  const auto row_size = static_cast<ptrdiff_t>(rows.x.size()) / std::max<ptrdiff_t>(1, rows.count);
  const auto append = [&](const std::vector<float>& from, int64_t row, std::vector<float>* to) {
    if (from.empty()) return;
    to->insert(to->end(), from.begin() + row * row_size, from.begin() + (row + 1) * row_size);
  };
  for (int64_t row = 0; row < rows.count; ++row) {
    for (const std::vector<int64_t>* classes : {&rows.classes, &rows.null_classes}) {
      append(rows.x, row, &both.x);
      append(rows.estimate, row, &both.estimate);
      both.t.push_back(rows.t[row]);
      both.classes.push_back((*classes)[row]);
    }
  }
  return both;
}

// The first branch of all rows, then the second.
std::vector<float> BranchByBranch(const std::vector<float>& interleaved, int64_t rows) {
  std::vector<float> values;
  values.reserve(interleaved.size());
  const auto row_size = static_cast<ptrdiff_t>(interleaved.size()) / (2 * rows);
  for (int64_t branch = 0; branch < 2; ++branch) {
    for (int64_t row = 0; row < rows; ++row) {
      const auto begin = interleaved.begin() + (2 * row + branch) * row_size;
      values.insert(values.end(), begin, begin + row_size);
    }
  }
  return values;
}

}  // namespace

absl::StatusOr<std::vector<float>> EvaluateOn(ModelBackend* backend, const Evaluation& evaluation) {
  if (evaluation.network.expert == kRouterNetwork) {
    PosteriorBatch batch{.rows = evaluation.rows};
    backend->ComputePosteriors(std::span(&batch, 1));
    ATOLL_RETURN_IF_ERROR(batch.status);
    return std::move(batch.posterior);
  }
  VelocityBatch batch{.expert = evaluation.network.expert,
                      .rows = evaluation.guided() ? Interleaved(evaluation.rows) : evaluation.rows};
  backend->ComputeVelocities(std::span(&batch, 1));
  ATOLL_RETURN_IF_ERROR(batch.status);
  return evaluation.guided() ? BranchByBranch(batch.velocity, evaluation.rows.count) : std::move(batch.velocity);
}

InlineLane::InlineLane(LaneInfo info, std::shared_ptr<ModelBackend> backend, std::string digest, Clock* clock)
    : info_(std::move(info)), backend_(std::move(backend)), clock_(clock) {
  const SamplerInfo& model = backend_->info();
  auto hosted = std::make_shared<std::vector<HostedNetwork>>();
  for (int32_t expert = kRouterNetwork; expert < model.experts; ++expert) {
    hosted->push_back(
        {.id = {.model = model.model, .version = model.version, .digest = digest, .expert = expert}, .resident = true});
  }
  hosted_ = std::move(hosted);
}

absl::StatusOr<std::vector<float>> InlineLane::Evaluate(const Evaluation& evaluation) {
  const bool known = std::any_of(hosted_->begin(), hosted_->end(),
                                 [&](const HostedNetwork& network) { return network.id == evaluation.network; });
  if (!known) {
    return MakeError(absl::StatusCode::kNotFound, "NETWORK_NOT_HOSTED",
                     fmt::format("lane '{}' does not host {}", info_.name, Describe(evaluation.network)));
  }
  return EvaluateOn(backend_.get(), evaluation);
}

void InlineLane::Start(std::shared_ptr<const Evaluation> evaluation, Done done) {
  const absl::Duration start = clock_->Monotonic();
  absl::StatusOr<std::vector<float>> values = Evaluate(*evaluation);
  if (!values.ok()) return done(values.status());
  done(EvaluationAnswer{.values = *std::move(values),
                        .fingerprint = info_.fingerprint,
                        .compute_time = clock_->Monotonic() - start,
                        .queue_time = absl::ZeroDuration()});
}

}  // namespace atl::router
