// Derives the shapes of frozen components from the spec alone. Pure.
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

// Shape of one sample: [channels, height, width], [features], or empty for a class.
using SampleShape = std::vector<int32_t>;

// Returns the number of layers that run: native ones or files.
int32_t FrozenLayerCount(const FrozenSpec& component);

// Returns the index of the component called `name`; none for "image", "label" and unknown names.
std::optional<int32_t> FindFrozen(const std::vector<FrozenSpec>& components, std::string_view name);
// Returns the index of the component with this output ("latent", "condition").
std::optional<int32_t> FrozenWithOutput(const std::vector<FrozenSpec>& components, std::string_view output);

// Returns the shape after each native layer, for samples of shape `input`. INVALID_ARGUMENT with the layer's path
// (below `path`) for a layer that cannot read its input.
absl::StatusOr<std::vector<SampleShape>> NativeShapes(const FrozenSpec& component, const SampleShape& input,
                                                      std::string_view path);

// Returns the output shape of each component, for images of shape `image`: the declared shape, or that of the native
// layers. Empty optional for TorchScript without `shape`. INVALID_ARGUMENT with the field if the two differ or a needed
// one is missing.
absl::StatusOr<std::vector<std::optional<SampleShape>>> FrozenOutputShapes(const std::vector<FrozenSpec>& components,
                                                                           const SampleShape& image);

// Returns the shape of the tensor that is noised and learnt: the latent's, or the image's if there is no latent.
absl::StatusOr<SampleShape> LearntShape(const std::vector<FrozenSpec>& components, const SampleShape& image);

// Returns the components that `components[i]` needs, in order, with itself last.
std::vector<int32_t> FrozenChain(const std::vector<FrozenSpec>& components, int32_t i);

// Returns the components that a router network needs: it sees latents, but no condition.
std::vector<FrozenSpec> LatentChain(const std::vector<FrozenSpec>& components);

// Returns the URIs of a component's files: its TorchScript files, or its weights if it has some.
std::vector<std::string> FilesOf(const FrozenSpec& component);
// Returns every URI that the components name, once each.
std::vector<std::string> FrozenFiles(const std::vector<FrozenSpec>& components);
// A file that a component names, the field that names it ("frozen[0].torchscript[1]"), and its hash; empty if the job
// does not give it.
struct FrozenFileField {
  std::string field;
  std::string uri;
  std::string sha256;
};
// Returns all files in the order of the fields; a URI may repeat.
std::vector<FrozenFileField> FrozenFileFields(const std::vector<FrozenSpec>& components);

// OK for an empty text and for 64 lower-case hex digits; INVALID_ARGUMENT (INVALID_SHA256) with `path`.
absl::Status ValidateSha256(std::string_view path, std::string_view sha256);

// Checks the rules of the fields; shapes too if `image` is known. A condition must be as wide as `model_width`.
absl::Status ValidateFrozen(const std::vector<FrozenSpec>& components, const SampleShape* image, int32_t classes,
                            int32_t model_width);

}  // namespace atl::spec
