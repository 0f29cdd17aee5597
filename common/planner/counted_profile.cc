#include <algorithm>
#include <optional>
#include <string>

#include "common/planner/profile.h"

namespace atl::planner {
namespace {

// A core that was measured at 84 GFLOP/s of fp32 products; only the ratios between layers matter to a plan.
constexpr double kMultiplyAddsPerSecond = 42e9;
// In a DiT block the forward keeps 20.2 times its output, and four fifths of that until its weight gradient (measured),
// as fp32.
constexpr double kActivationsPerBlock = 20.2;
constexpr double kKeptUntilWeightGradient = 0.8;
constexpr double kBytesPerValue = 4;
// Width of the sinusoidal features of the time.
constexpr double kFrequencyWidth = 256;
// Fixed cost of a call of a frozen layer, and the values per second that pass through one.
constexpr double kSecondsPerCall = 5e-5;
constexpr double kValuesPerSecond = 1e9;
constexpr int kFrozenHalvings = 4;

// Input and weight gradients are one product of the forward's size each.
LayerProfile CountLayer(double multiply_adds, double kept_values, double output_values, bool has_input_gradient) {
  const double seconds = multiply_adds / kMultiplyAddsPerSecond;
  return {.forward_seconds = seconds,
          .input_gradient_seconds = has_input_gradient ? seconds : 0,
          .weight_gradient_seconds = seconds,
          .backward_seconds = has_input_gradient ? 2 * seconds : seconds,
          .kept_bytes = kept_values * kBytesPerValue,
          .weight_gradient_bytes = kKeptUntilWeightGradient * kept_values * kBytesPerValue,
          .output_bytes = output_values * kBytesPerValue};
}

double Values(const spec::SampleShape& shape) {
  double values = 1;
  for (const int32_t size : shape) values *= size;
  return values;
}

// Multiply-adds of one sample, and the layer's parameters.
struct FrozenWork {
  double multiply_adds = 0;
  double parameters = 0;
};

FrozenWork CountLayer(const spec::FrozenLayerSpec& layer, const spec::SampleShape& in, const spec::SampleShape& out,
                      int32_t classes) {
  const double area = static_cast<double>(layer.kernel) * layer.kernel;
  if (layer.kind == "convolution") {
    const double parameters = in[0] * area * out[0];
    return {parameters * out[1] * out[2], parameters + out[0]};
  }
  if (layer.kind == "block") {
    const double parameters = 2 * in[0] * area * in[0];
    return {parameters * in[1] * in[2], parameters + 2 * in[0]};
  }
  if (layer.kind == "linear") return {Values(in) * out[0], Values(in) * out[0] + out[0]};
  if (layer.kind == "embedding") return {0, (classes + 1.0) * out[0]};
  return {};
}

FrozenLayerProfile CountedFrozenLayer(const spec::FrozenLayerSpec& layer, const spec::SampleShape& in,
                                      const spec::SampleShape& out, int32_t classes, int32_t batch_size) {
  const FrozenWork work = CountLayer(layer, in, out, classes);
  const double seconds = work.multiply_adds / kMultiplyAddsPerSecond + (Values(in) + Values(out)) / kValuesPerSecond;
  FrozenLayerProfile profile{.input_bytes = Values(in) * (in.empty() ? sizeof(int64_t) : kBytesPerValue),
                             .output_bytes = Values(out) * kBytesPerValue,
                             .parameter_bytes = work.parameters * kBytesPerValue};
  for (const int32_t samples : FrozenSizes(batch_size)) profile.seconds[samples] = kSecondsPerCall + samples * seconds;
  return profile;
}

// Returns the shape that components[i] reads, if known; `outputs` are the components' output shapes.
std::optional<spec::SampleShape> InputShape(const std::vector<spec::FrozenSpec>& components, size_t i,
                                            const spec::SampleShape& image,
                                            const std::vector<std::optional<spec::SampleShape>>& outputs) {
  const std::optional<int32_t> reads = spec::FindFrozen(components, components[i].input);
  if (reads.has_value()) return outputs[static_cast<size_t>(*reads)];
  return components[i].input == "label" ? spec::SampleShape{} : image;
}

}  // namespace

std::vector<int32_t> FrozenSizes(int32_t batch_size) {
  std::vector<int32_t> sizes{batch_size};
  for (int i = 0; i < kFrozenHalvings && sizes.back() > 1; ++i) sizes.push_back(sizes.back() / 2);
  std::reverse(sizes.begin(), sizes.end());
  return sizes;
}

std::vector<FrozenComponentProfile> CountedFrozen(const std::vector<spec::FrozenSpec>& components,
                                                  const spec::SampleShape& image, int32_t classes, int32_t batch_size) {
  const auto outputs = spec::FrozenOutputShapes(components, image);
  if (!outputs.ok()) return {};
  std::vector<FrozenComponentProfile> counted;
  for (size_t i = 0; i < components.size(); ++i) {
    const spec::FrozenSpec& spec = components[i];
    const std::optional<spec::SampleShape> input = InputShape(components, i, image, *outputs);
    if (spec.layers.empty() || !input.has_value()) return {};
    const auto shapes = spec::NativeShapes(spec, *input, spec.name);
    if (!shapes.ok()) return {};
    FrozenComponentProfile& component = counted.emplace_back(FrozenComponentProfile{.name = spec.name});
    if (const auto reads = spec::FindFrozen(components, spec.input)) component.reads = {*reads};
    for (size_t layer = 0; layer < spec.layers.size(); ++layer) {
      const spec::SampleShape& in = layer == 0 ? *input : (*shapes)[layer - 1];
      component.layers.push_back(CountedFrozenLayer(spec.layers[layer], in, (*shapes)[layer], classes, batch_size));
    }
  }
  return counted;
}

Profile CountedProfile(const spec::ModelSpec& model, int32_t tokens, int32_t channels) {
  const double width = model.width;
  const double count = tokens;
  const double values_of_patch = static_cast<double>(model.patch) * model.patch * channels;
  // Tokens, and the conditioning beside them.
  const double boundary = (count + 1) * width;

  const double products = (4 + 2 * model.mlp_ratio) * count * width * width;  // qkv, projection, two of the MLP
  const double attention = 2 * count * count * width;
  const double modulation = 6 * width * width;
  // A self-conditioned model embeds its estimate beside the sample.
  const double embedded = (model.self_conditioning ? 2 : 1) * values_of_patch;
  const double embedding = count * embedded * width + 2 * width * width;
  const double head = count * values_of_patch * width + 2 * width * width;

  Profile profile{.key = "counted"};
  std::vector<LayerProfile>& layers = profile.layers[1];
  layers.push_back(CountLayer(embedding, 2 * count * width, boundary, /*has_input_gradient=*/false));
  profile.parameter_bytes.push_back((embedded + kFrequencyWidth + width) * width * kBytesPerValue);
  for (int32_t i = 0; i < model.depth; ++i) {
    LayerProfile block =
        CountLayer(products + attention + modulation, kActivationsPerBlock * count * width, boundary, true);
    // Attention has no weights, and two products in its backward for each of its forward.
    block.weight_gradient_seconds -= attention / kMultiplyAddsPerSecond;
    block.input_gradient_seconds += attention / kMultiplyAddsPerSecond;
    layers.push_back(block);
    profile.parameter_bytes.push_back((6 + 4 + 2 * model.mlp_ratio) * width * width * kBytesPerValue);
  }
  layers.push_back(CountLayer(head, 2 * count * width, count * values_of_patch, true));
  profile.parameter_bytes.push_back((2 * width + values_of_patch) * width * kBytesPerValue);
  return profile;
}

}  // namespace atl::planner
