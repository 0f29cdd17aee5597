#include "router/engine/flight.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "common/base/counter_random.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/dataset/image_codec.h"
#include "fmt/format.h"

namespace atl::router {
namespace {

uint8_t ToByte(float value) {
  return static_cast<uint8_t>(std::lround((std::clamp(value, -1.0f, 1.0f) + 1.0f) * 127.5f));
}

absl::StatusOr<std::string> EncodePngOf(const std::vector<float>& pixels, const SamplerInfo& info) {
  dataset::Image picture{.channels = info.channels, .height = info.height, .width = info.width};
  picture.pixels.resize(pixels.size());
  const int64_t area = int64_t{info.height} * info.width;
  for (int64_t channel = 0; channel < info.channels; ++channel) {
    for (int64_t pixel = 0; pixel < area; ++pixel) {
      picture.pixels[pixel * info.channels + channel] = ToByte(pixels[channel * area + pixel]);
    }
  }
  return dataset::EncodePng(picture);
}

}  // namespace

absl::StatusOr<SampledImage> FinishImage(const ActiveImage& image, const SamplerInfo& info, ImageFormat format) {
  const std::vector<float>& pixels = image.state.x;
  if (!std::all_of(pixels.begin(), pixels.end(), [](float value) { return std::isfinite(value); })) {
    return MakeError(absl::StatusCode::kInternal, "NON_FINITE_OUTPUT",
                     fmt::format("image {} (class {}, seed {}) of model '{}' version '{}': expected finite pixels, "
                                 "found some that are not",
                                 image.index, image.order.class_label, image.order.seed, info.model, info.version));
  }
  SampledImage sampled{.index = image.index,
                       .order = image.order,
                       .channels = info.channels,
                       .height = info.height,
                       .width = info.width};
  if (format == ImageFormat::kRaw) {
    sampled.data.resize(pixels.size() * sizeof(float));
    std::memcpy(sampled.data.data(), pixels.data(), sampled.data.size());
  } else {
    ATOLL_ASSIGN_OR_RETURN(sampled.data, EncodePngOf(pixels, info));
  }
  return sampled;
}

void RoutingReport::Count(const ExpertChoice& choice, std::vector<int32_t>* before) {
  ++image_steps;
  std::vector<int32_t> experts;
  for (const ExpertWeight& picked : choice.experts) {
    ++chosen[picked.expert];
    weight[picked.expert] += picked.weight;
    experts.push_back(picked.expert);
  }
  if (!before->empty() && *before != experts) ++switches;
  if (choice.close()) ++close_calls;
  *before = std::move(experts);
}

void StartImages(ActiveRequest* request) {
  const SamplerInfo& info = request->model->info;
  request->routing.chosen.assign(info.experts, 0);
  request->routing.weight.assign(info.experts, 0);
  for (const ImageOrder& order : request->order.images) {
    ActiveImage image{.index = static_cast<int32_t>(request->images.size()), .order = order};
    image.state.x.resize(info.pixels());
    if (info.self_conditioning) image.state.estimate.resize(info.pixels());
    CounterRandom(order.seed, RandomPurpose::kSampleNoise, /*step=*/0, /*sample=*/0).Normal(image.state.x);
    const double start = request->order.start;
    if (start < 1.0) {
      const auto noise = static_cast<float>(start);
      const auto signal = static_cast<float>(1.0 - start);
      for (size_t p = 0; p < image.state.x.size(); ++p) {
        image.state.x[p] = noise * image.state.x[p] + (order.init ? signal * (*order.init)[p] : 0.0f);
      }
    }
    request->images.push_back(std::move(image));
  }
}

std::vector<ActiveImage*> TakeDuePreviews(ActiveRequest* request) {
  std::vector<ActiveImage*> due;
  const int32_t every = request->order.preview_every;
  if (every == 0 || request->reported_step / every == request->previewed_step / every) return due;
  request->previewed_step = request->reported_step;
  for (ActiveImage& image : request->images) {
    const bool finished = image.steps_done == static_cast<int32_t>(request->grid.size());
    if (!finished && !image.previewing && !image.state.preview.empty()) due.push_back(&image);
  }
  return due;
}

}  // namespace atl::router
