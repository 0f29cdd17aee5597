#include "inference/local/network.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <numeric>

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>

#include "common/base/counter_random.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"
#include "inference/fixed_batches.h"

namespace atl::router {
namespace {

// Doublings of the base size that are tried.
constexpr int64_t kLargestFixedBatch = 8;

// LibTorch's exceptions end here.
template <typename Body>
auto Guarded(const std::string& doing, Body body) -> absl::StatusOr<decltype(body())> {
  try {
    const c10::InferenceMode inference;
    return body();
  } catch (const std::exception& e) {
    return MakeError(absl::StatusCode::kInternal, "NETWORK_FAILED", fmt::format("{}: {}", doing, e.what()));
  }
}

std::vector<float> Floats(const at::Tensor& tensor) {
  const float* data = tensor.const_data_ptr<float>();
  return {data, data + tensor.numel()};
}

// Row `i` of `a` and row `j` of `b`, both contiguous.
bool SameBits(const at::Tensor& a, int64_t i, const at::Tensor& b, int64_t j) {
  const int64_t row = a.numel() / a.size(0);
  return std::memcmp(a.const_data_ptr<float>() + i * row, b.const_data_ptr<float>() + j * row,
                     static_cast<size_t>(row) * sizeof(float)) == 0;
}

std::vector<int64_t> Consecutive(int64_t begin, int64_t count) {
  std::vector<int64_t> rows(static_cast<size_t>(count));
  std::iota(rows.begin(), rows.end(), begin);
  return rows;
}

}  // namespace

absl::StatusOr<std::shared_ptr<const Network>> Network::Place(model::LoadedModel loaded, const std::string& device) {
  try {
    const at::Device place(device);
    if (!place.is_cpu()) {
      for (const auto& layer : loaded.layers) layer->MoveTo(place);
    }
    return std::shared_ptr<const Network>(new Network(std::move(loaded), place));
  } catch (const std::exception& e) {
    return MakeError(absl::StatusCode::kResourceExhausted, "MODEL_TOO_LARGE",
                     fmt::format("moving weights to {}: {}", device, e.what()));
  }
}

absl::Status Network::Check(const Evaluation& evaluation) const {
  const model::DitConfig& config = loaded_.config;
  const Rows& rows = evaluation.rows;
  const auto mismatch = [](const std::string& message) {
    return MakeError(absl::StatusCode::kInvalidArgument, "SHAPE_MISMATCH", message);
  };
  if (evaluation.channels != config.channels || evaluation.height != config.height ||
      evaluation.width != config.width_pixels) {
    return mismatch(fmt::format("{}: expected images of {}x{}x{}, found {}x{}x{}", Describe(evaluation.network),
                                config.channels, config.height, config.width_pixels, evaluation.channels,
                                evaluation.height, evaluation.width));
  }
  const auto count = static_cast<size_t>(std::max<int64_t>(0, rows.count));
  const size_t values = count * static_cast<size_t>(config.channels * config.height * config.width_pixels);
  const bool estimates = !routes() && config.self_conditioning;
  if (count == 0 || rows.x.size() != values || rows.t.size() != count || rows.classes.size() != count ||
      (evaluation.guided() && rows.null_classes.size() != count) ||
      (!rows.estimate.empty() && (!estimates || rows.estimate.size() != values))) {
    return mismatch(fmt::format(
        "{}: expected at least one row and {} values, a time and a class each{}, found {} rows, "
        "{} values, {} times, {} and {} classes, {} values of estimates",
        Describe(evaluation.network), values / std::max<size_t>(1, count), estimates ? "" : " and no estimate",
        rows.count, rows.x.size(), rows.t.size(), rows.classes.size(), rows.null_classes.size(), rows.estimate.size()));
  }
  for (const std::vector<int64_t>* classes : {&rows.classes, &rows.null_classes}) {
    for (const int64_t label : *classes) {
      if (label >= 0 && label <= config.classes) continue;
      return mismatch(fmt::format("{}: expected classes from 0 to {}, found {}", Describe(evaluation.network),
                                  config.classes, label));
    }
  }
  return absl::OkStatus();
}

Network::Inputs Network::InputsOf(const Rows& rows) const {
  const model::DitConfig& config = loaded_.config;
  // from_blob does not write; the rows stay untouched.
  const auto floats = [](const std::vector<float>& values, at::IntArrayRef sizes) {
    return at::from_blob(const_cast<float*>(values.data()), sizes, at::kFloat);
  };
  const auto labels = [&](const std::vector<int64_t>& values) {
    return at::from_blob(const_cast<int64_t*>(values.data()), {rows.count}, at::kLong);
  };
  const int64_t image[] = {rows.count, config.channels, config.height, config.width_pixels};
  Inputs inputs{.x = floats(rows.x, image), .t = floats(rows.t, {rows.count}), .classes = labels(rows.classes)};
  if (!rows.estimate.empty()) inputs.estimate = floats(rows.estimate, image);
  if (rows.null_classes.empty()) return inputs;
  inputs.x = at::cat({inputs.x, inputs.x});
  inputs.t = at::cat({inputs.t, inputs.t});
  inputs.classes = at::cat({inputs.classes, labels(rows.null_classes)});
  if (inputs.estimate.defined()) inputs.estimate = at::cat({inputs.estimate, inputs.estimate});
  return inputs;
}

Network::Inputs Network::NoiseInputs(int64_t count) const {
  const model::DitConfig& config = loaded_.config;
  const auto noise = [&](uint64_t seed) {
    at::Tensor values = at::empty({count, config.channels, config.height, config.width_pixels}, at::kFloat);
    CounterRandom(seed, RandomPurpose::kSampleNoise, /*step=*/0, /*sample=*/0)
        .Normal({values.mutable_data_ptr<float>(), static_cast<size_t>(values.numel())});
    return values;
  };
  Inputs inputs{.x = noise(0),
                .t = at::linspace(1.0, 0.05, count, at::kFloat),
                .classes = at::arange(count, at::kLong).remainder(config.classes + 1)};
  if (config.self_conditioning && !routes()) {
    inputs.estimate = noise(1);
    inputs.estimate[0].zero_();  // no estimate yet
  }
  return inputs;
}

Network::Inputs Network::Pick(const Inputs& inputs, const std::vector<int64_t>& rows) {
  const at::Tensor index =
      at::from_blob(const_cast<int64_t*>(rows.data()), {static_cast<int64_t>(rows.size())}, at::kLong);
  Inputs picked{.x = inputs.x.index_select(0, index),
                .t = inputs.t.index_select(0, index),
                .classes = inputs.classes.index_select(0, index)};
  if (inputs.estimate.defined()) picked.estimate = inputs.estimate.index_select(0, index);
  return picked;
}

at::Tensor Network::Forward(const Inputs& inputs) const {
  at::Tensor answer =
      model::RunModel(loaded_.layers, inputs.x.to(device_), inputs.t.to(device_), inputs.classes.to(device_),
                      inputs.estimate.defined() ? inputs.estimate.to(device_) : at::Tensor())
          .to(at::kFloat);
  if (routes()) answer = at::softmax(answer, -1);
  return answer.to(at::kCPU).contiguous();
}

absl::StatusOr<std::vector<float>> Network::Run(const Rows& rows) const {
  return Guarded(fmt::format("evaluating {} rows", rows.count), [&] { return Floats(Forward(InputsOf(rows))); });
}

absl::StatusOr<std::vector<float>> Network::RunInFixedBatches(const Rows& rows, std::span<const int64_t> sizes) const {
  return Guarded(fmt::format("evaluating {} rows in fixed batches", rows.count), [&] {
    const Inputs inputs = InputsOf(rows);
    std::vector<float> values;
    for (const FixedBatch& batch : CutIntoFixedBatches(inputs.t.size(0), sizes)) {
      std::vector<int64_t> picked = Consecutive(batch.begin, batch.count);
      picked.resize(static_cast<size_t>(batch.size), picked.back());
      const at::Tensor answer = Forward(Pick(inputs, picked));
      const float* data = answer.const_data_ptr<float>();
      values.insert(values.end(), data, data + answer.numel() / batch.size * batch.count);
    }
    return values;
  });
}

absl::StatusOr<std::vector<int64_t>> Network::ReproducibleSizes(int64_t base) const {
  return Guarded("looking for batch sizes that agree", [&] {
    const int64_t largest = base * kLargestFixedBatch;
    const Inputs all = NoiseInputs(largest);
    // Rows first, first + 1, …, around the end, in batches of the base size; answers in that order.
    const auto in_base_batches = [&](int64_t first) {
      std::vector<at::Tensor> answers;
      for (int64_t begin = 0; begin < largest; begin += base) {
        std::vector<int64_t> picked = Consecutive(first + begin, base);
        for (int64_t& row : picked) row %= largest;
        answers.push_back(Forward(Pick(all, picked)));
      }
      return at::cat(answers);
    };
    const at::Tensor expected = in_base_batches(0);
    // Every row in another place beside other rows.
    const at::Tensor moved = in_base_batches(1);
    for (int64_t row = 0; row < largest; ++row) {
      if (!SameBits(expected, row, moved, (row + largest - 1) % largest)) return std::vector<int64_t>{1};
    }
    std::vector<int64_t> sizes{base};
    for (int64_t size = 2 * base; size <= largest; size *= 2) {
      const at::Tensor together = Forward(Pick(all, Consecutive(0, size)));
      for (int64_t row = 0; row < size; ++row) {
        if (!SameBits(expected, row, together, row)) return sizes;
      }
      sizes.push_back(size);
    }
    return sizes;
  });
}

absl::Status Network::Probe(const std::string& name) const {
  ATOLL_ASSIGN_OR_RETURN(const bool finite, Guarded("answering a probe", [&] {
                           return at::isfinite(Forward(NoiseInputs(3))).all().item<bool>();
                         }));
  if (finite) return absl::OkStatus();
  return MakeError(absl::StatusCode::kDataLoss, "NON_FINITE_OUTPUT",
                   fmt::format("{}: expected finite answers to a probe, found some that are not", name));
}

void UseOneThread() {
  at::set_num_threads(1);
}

}  // namespace atl::router
