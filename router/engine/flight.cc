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

absl::StatusOr<std::string> EncodePngOf(const ActiveImage& image, const SamplerInfo& info) {
  dataset::Image picture{.channels = info.channels, .height = info.height, .width = info.width};
  picture.pixels.resize(image.state.x.size());
  const int64_t area = int64_t{info.height} * info.width;
  for (int64_t channel = 0; channel < info.channels; ++channel) {
    for (int64_t pixel = 0; pixel < area; ++pixel) {
      picture.pixels[pixel * info.channels + channel] = ToByte(image.state.x[channel * area + pixel]);
    }
  }
  return dataset::EncodePng(picture);
}

}  // namespace

void RoutingReport::Count(const ExpertChoice& choice) {
  ++image_steps;
  for (const ExpertWeight& picked : choice.experts) {
    ++chosen[picked.expert];
    weight[picked.expert] += picked.weight;
  }
}

void StartImages(ActiveRequest* request, int64_t tick) {
  const SamplerInfo& info = request->model->info();
  request->routing.chosen.assign(info.experts, 0);
  request->routing.weight.assign(info.experts, 0);
  for (const ImageOrder& order : request->order.images) {
    ActiveImage image{.index = static_cast<int32_t>(request->images.size()), .order = order, .last_tick = tick};
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

absl::StatusOr<SampledImage> FinishImage(const ActiveImage& image, const SamplerInfo& info, ImageFormat format) {
  if (!std::all_of(image.state.x.begin(), image.state.x.end(), [](float value) { return std::isfinite(value); })) {
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
    sampled.data.resize(image.state.x.size() * sizeof(float));
    std::memcpy(sampled.data.data(), image.state.x.data(), sampled.data.size());
  } else {
    ATOLL_ASSIGN_OR_RETURN(sampled.data, EncodePngOf(image, info));
  }
  return sampled;
}

}  // namespace atl::router
