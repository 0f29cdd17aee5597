#include "common/planner/profile.h"

namespace atl::planner {
namespace {

// A core that was measured at 84 GFLOP/s of fp32 products; only the ratios between layers matter to a plan.
constexpr double kMultiplyAddsPerSecond = 42e9;
// In a DiT block the forward keeps 20.2 times what it passes on, and four fifths of that until its weight gradient
// (measured), as fp32.
constexpr double kActivationsPerBlock = 20.2;
constexpr double kKeptUntilWeightGradient = 0.8;
constexpr double kBytesPerValue = 4;
// Width of the sinusoidal features of the time.
constexpr double kFrequencyWidth = 256;

// Input and weight gradients are one product of the forward's size each.
LayerProfile Counted(double multiply_adds, double kept_values, double output_values, bool has_input_gradient) {
  const double seconds = multiply_adds / kMultiplyAddsPerSecond;
  return {.forward_seconds = seconds,
          .input_gradient_seconds = has_input_gradient ? seconds : 0,
          .weight_gradient_seconds = seconds,
          .backward_seconds = has_input_gradient ? 2 * seconds : seconds,
          .kept_bytes = kept_values * kBytesPerValue,
          .weight_gradient_bytes = kKeptUntilWeightGradient * kept_values * kBytesPerValue,
          .output_bytes = output_values * kBytesPerValue};
}

}  // namespace

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
  layers.push_back(Counted(embedding, 2 * count * width, boundary, /*has_input_gradient=*/false));
  profile.parameter_bytes.push_back((embedded + kFrequencyWidth + width) * width * kBytesPerValue);
  for (int32_t i = 0; i < model.depth; ++i) {
    LayerProfile block =
        Counted(products + attention + modulation, kActivationsPerBlock * count * width, boundary, true);
    // Attention has no weights, and two products in its backward for each of its forward.
    block.weight_gradient_seconds -= attention / kMultiplyAddsPerSecond;
    block.input_gradient_seconds += attention / kMultiplyAddsPerSecond;
    layers.push_back(block);
    profile.parameter_bytes.push_back((6 + 4 + 2 * model.mlp_ratio) * width * width * kBytesPerValue);
  }
  layers.push_back(Counted(head, 2 * count * width, count * values_of_patch, true));
  profile.parameter_bytes.push_back((2 * width + values_of_patch) * width * kBytesPerValue);
  return profile;
}

}  // namespace atl::planner
