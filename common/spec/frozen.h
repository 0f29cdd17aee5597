// Shapes of frozen components, worked out from the spec alone. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/spec/spec.h"

namespace atl::spec {

inline constexpr int32_t kMostFrozenLayers = 1024;  // of one component

// Of one sample: [channels, height, width], [features], or empty for a class.
using SampleShape = std::vector<int32_t>;

// How many layers run: native ones or files.
int32_t FrozenLayerCount(const FrozenSpec& component);

// The component called `name`, as an index; none for "image", "label" and what is unknown.
std::optional<int32_t> FindFrozen(const std::vector<FrozenSpec>& components, std::string_view name);
// The component with this output ("latent", "condition"), as an index.
std::optional<int32_t> FrozenWithOutput(const std::vector<FrozenSpec>& components, std::string_view output);

// After each native layer, for samples of shape `input`. INVALID_ARGUMENT with the layer's path (below `path`) for a
// layer that cannot read what comes before it.
absl::StatusOr<std::vector<SampleShape>> NativeShapes(const FrozenSpec& component, const SampleShape& input,
                                                      std::string_view path);

// What leaves each component, for images of shape `image`: the declared shape, or that of the native layers.
// INVALID_ARGUMENT with the field where the two differ or a needed one is missing (TorchScript without `shape` is an
// empty optional).
absl::StatusOr<std::vector<std::optional<SampleShape>>> FrozenOutputShapes(const std::vector<FrozenSpec>& components,
                                                                           const SampleShape& image);

// What is noised and learnt: the latent's shape, or the image's where there is no latent.
absl::StatusOr<SampleShape> LearntShape(const std::vector<FrozenSpec>& components, const SampleShape& image);

// The components that `components[i]` needs, itself last, in order.
std::vector<int32_t> FrozenChain(const std::vector<FrozenSpec>& components, int32_t i);

// What a router network needs of them: it sees latents, but no condition.
std::vector<FrozenSpec> LatentChain(const std::vector<FrozenSpec>& components);

// The URIs of a component's files: its TorchScript files, or its weights where it has some.
std::vector<std::string> FilesOf(const FrozenSpec& component);
// Every URI that the components name, once each.
std::vector<std::string> FrozenFiles(const std::vector<FrozenSpec>& components);
// A file that a component names, the field that names it ("frozen[0].torchscript[1]"), and its hash; empty where the
// job does not say it.
struct FrozenFileField {
  std::string field;
  std::string uri;
  std::string sha256;
};
// All of them, in the order of the fields; a URI may come again.
std::vector<FrozenFileField> FrozenFileFields(const std::vector<FrozenSpec>& components);

// OK for nothing and for 64 lower-case hex digits; INVALID_ARGUMENT (INVALID_SHA256) with `path`.
absl::Status ValidateSha256(std::string_view path, std::string_view sha256);

// The rules of the fields; shapes too where `image` is known. `model_width` is what a condition must be as wide as.
absl::Status ValidateFrozen(const std::vector<FrozenSpec>& components, const SampleShape* image, int32_t classes,
                            int32_t model_width);

}  // namespace atl::spec
