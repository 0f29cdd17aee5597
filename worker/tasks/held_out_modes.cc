#include "worker/tasks/held_out_modes.h"

#include <algorithm>
#include <map>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <fmt/format.h>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/model/dit.h"
#include "common/model/flow_matching.h"
#include "common/storage/safetensors.h"
#include "spdlog/spdlog.h"
#include "worker/tasks/mode_choice.h"
#include "worker/tasks/pixels.h"
#include "worker/tasks/task_files.h"

namespace atl::tasks {
namespace {

constexpr int32_t kRouterNetwork = -1;
constexpr int64_t kMaxRows = 256;
constexpr int64_t kProbeRows = 8;
// Rows of one evaluation; bounds the activations.
constexpr int64_t kRowsPerBatch = 32;

struct HeldOut {
  at::Tensor images;   // [n, c, h, w] in [-1, 1]
  at::Tensor classes;  // [n] int64, the null class where a sample has none
  std::vector<uint64_t> sequence;
};

absl::StatusOr<HeldOut> ReadHeldOut(const TaskContext& context, const dataset::DatasetManifest& manifest) {
  ATOLL_ASSIGN_OR_RETURN(const auto reader,
                         dataset::SampleReader::Open(context.store, dataset::ShardsOf(manifest, "held_out")));
  const int64_t rows = std::min(kMaxRows, reader->size());
  const auto null_class = static_cast<int64_t>(manifest.classes.size());
  HeldOut held_out{.images = at::empty({rows, manifest.channels, manifest.height, manifest.width}, at::kFloat),
                   .classes = at::empty({rows}, at::kLong)};
  const int64_t values = held_out.images[0].numel();
  for (int64_t i = 0; i < rows; ++i) {
    // Spread over the split, which may be sorted by class.
    const int64_t position = i * reader->size() / rows;
    ATOLL_ASSIGN_OR_RETURN(const dataset::Sample sample, reader->Read(position));
    if (static_cast<int64_t>(sample.image.pixels.size()) != values) {
      return MakeError(absl::StatusCode::kDataLoss, "IMAGE_SHAPE",
                       fmt::format("dataset {}, {}: expected an image of {} values, found {}", manifest.name,
                                   sample.path, values, sample.image.pixels.size()));
    }
    ReadPlanes(sample.image, std::span(held_out.images.data_ptr<float>() + i * values, static_cast<size_t>(values)));
    held_out.classes[i] = sample.label < 0 ? null_class : int64_t{sample.label};
    held_out.sequence.push_back(static_cast<uint64_t>(position));
  }
  return held_out;
}

// Every row through one network, a batch at a time.
absl::StatusOr<at::Tensor> Evaluate(const TaskContext& context, const NetworkLoader& load, int32_t expert,
                                    const model::NoisedBatch& rows, const at::Tensor& estimate) {
  ATOLL_ASSIGN_OR_RETURN(const model::LoadedModel network, load(expert));
  std::vector<at::Tensor> answers;
  for (int64_t first = 0; first < rows.t.size(0); first += kRowsPerBatch) {
    ATOLL_RETURN_IF_ERROR(CheckCancelled(context));
    const int64_t end = std::min(first + kRowsPerBatch, rows.t.size(0));
    const auto part = [&](const at::Tensor& all) { return all.defined() ? all.slice(0, first, end) : all; };
    answers.push_back(
        model::RunModel(network.layers, part(rows.x_t), part(rows.t), part(rows.classes), part(estimate)));
  }
  return at::cat(answers);
}

// [experts, rows, c, h, w]
absl::StatusOr<at::Tensor> Velocities(const TaskContext& context, const NetworkLoader& load,
                                      const model::NoisedBatch& rows, const at::Tensor& estimate) {
  std::vector<at::Tensor> velocities;
  for (int32_t expert = 0; expert < context.grant.spec.experts; ++expert) {
    ATOLL_ASSIGN_OR_RETURN(at::Tensor answer, Evaluate(context, load, expert, rows, estimate));
    velocities.push_back(std::move(answer));
  }
  return at::stack(velocities);
}

std::span<const float> Values(const at::Tensor& tensor) {
  return {tensor.const_data_ptr<float>(), static_cast<size_t>(tensor.numel())};
}

// `velocities` [rows, experts, …], `posterior` [rows, experts], `target` [rows, …]; contiguous.
ModeTrial Try(const router::RoutingRule& rule, const at::Tensor& velocities, const at::Tensor& posterior,
              const at::Tensor& target) {
  ModeTrial trial;
  const int64_t rows = target.size(0);
  for (int64_t row = 0; row < rows; ++row) {
    const router::ExpertChoice choice = router::ChooseExperts(rule, Values(posterior[row]));
    trial.errors.push_back(BlendError(choice, Values(velocities[row]), Values(target[row])));
    trial.experts += static_cast<double>(choice.experts.size());
  }
  trial.experts /= static_cast<double>(rows);
  return trial;
}

storage::VersionSampling SamplingOf(const router::RoutingRule& rule) {
  storage::VersionSampling sampling;
  switch (rule.mode) {
    case router::RoutingMode::kTopK:
      sampling.mode = "top_k";
      sampling.top_k = rule.top_k;
      break;
    case router::RoutingMode::kThreshold:
      sampling.mode = "threshold";
      sampling.threshold = rule.threshold;
      break;
    case router::RoutingMode::kNucleus:
      sampling.mode = "nucleus";
      sampling.nucleus_p = rule.nucleus_p;
      break;
    case router::RoutingMode::kFull:
    case router::RoutingMode::kOracle:  // not among the candidates
      sampling.mode = "full";
      break;
  }
  return sampling;
}

storage::VersionSampling ChooseSampling(int32_t experts, const at::Tensor& velocities, const at::Tensor& posterior,
                                        const at::Tensor& target) {
  const std::vector<CandidateMode> modes = CandidateModes(experts);
  const at::Tensor by_row = velocities.transpose(0, 1).contiguous();
  std::vector<ModeTrial> trials;
  for (const CandidateMode& mode : modes) trials.push_back(Try(mode.rule, by_row, posterior, target));
  const ModeChoice choice = ChooseMode(trials);
  storage::VersionSampling sampling = SamplingOf(modes[choice.mode].rule);
  for (size_t i = 0; i < modes.size(); ++i) {
    sampling.measured.push_back({modes[i].name, trials[i].mean(), trials[i].experts});
  }
  spdlog::info("default mode {}: {}", modes[choice.mode].name, choice.reason);
  return sampling;
}

absl::StatusOr<std::string> Probe(const model::NoisedBatch& rows, const at::Tensor& estimate,
                                  const at::Tensor& velocities, const at::Tensor& posterior) {
  const int64_t count = std::min(kProbeRows, rows.t.size(0));
  std::map<std::string, at::Tensor> tensors = {{"x", rows.x_t.slice(0, 0, count)},
                                               {"t", rows.t.slice(0, 0, count)},
                                               {"class", rows.classes.slice(0, 0, count)},
                                               {"posterior", posterior.slice(0, 0, count)}};
  if (estimate.defined()) tensors["estimate"] = estimate.slice(0, 0, count);
  for (int64_t expert = 0; expert < velocities.size(0); ++expert) {
    tensors[fmt::format("velocity.{}", expert)] = velocities[expert].slice(0, 0, count);
  }
  std::vector<storage::TensorView> views;
  for (auto& [name, tensor] : tensors) {
    tensor = tensor.contiguous();
    views.push_back(model::ToView(name, tensor));
  }
  return storage::SerializeSafetensors(std::move(views), {{"format", "pt"}});
}

}  // namespace

absl::StatusOr<HeldOutModes> MeasureModes(const TaskContext& context, const dataset::DatasetManifest& manifest,
                                          bool self_conditioning, const NetworkLoader& load,
                                          const SampleEncoder& encode) {
  ATOLL_ASSIGN_OR_RETURN(const HeldOut held_out, ReadHeldOut(context, manifest));
  ATOLL_ASSIGN_OR_RETURN(const at::Tensor samples, encode(held_out.images));
  const model::NoisedBatch rows = model::Noise(samples, held_out.classes, held_out.sequence, context.grant.spec.seed,
                                               static_cast<int64_t>(manifest.classes.size()), /*class_dropout=*/0);
  ATOLL_ASSIGN_OR_RETURN(const at::Tensor logits, Evaluate(context, load, kRouterNetwork, rows, {}));
  const at::Tensor posterior = at::softmax(logits, -1).contiguous();
  ATOLL_ASSIGN_OR_RETURN(at::Tensor velocities, Velocities(context, load, rows, {}));
  at::Tensor estimate;
  if (self_conditioning) {
    const at::Tensor weights = posterior.t().reshape({posterior.size(1), posterior.size(0), 1, 1, 1});
    estimate = model::EstimateOf(rows.x_t, rows.t, (weights * velocities).sum(0)).contiguous();
    ATOLL_ASSIGN_OR_RETURN(velocities, Velocities(context, load, rows, estimate));
  }
  HeldOutModes modes;
  modes.sampling = ChooseSampling(context.grant.spec.experts, velocities, posterior, rows.target.contiguous());
  ATOLL_ASSIGN_OR_RETURN(modes.probe, Probe(rows, estimate, velocities, posterior));
  return modes;
}

}  // namespace atl::tasks
