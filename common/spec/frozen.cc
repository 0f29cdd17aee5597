#include "common/spec/frozen.h"

#include <algorithm>
#include <string>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/spec/nearest_name.h"
#include "common/spec/spec_io.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace atl::spec {
namespace {

constexpr int32_t kMostComponents = 64;
constexpr int32_t kMostWidth = 65536;
constexpr int64_t kMostPixels = int64_t{64} << 20;  // as many as an image of a dataset may have
constexpr int64_t kMostValues = kMostWidth * kMostPixels;

std::string Text(const SampleShape& shape) {
  return shape.empty() ? "a class" : fmt::format("[{}]", fmt::join(shape, ", "));
}

absl::Status CheckOneOf(const std::string& path, const std::string& value, const std::vector<std::string>& known) {
  if (std::find(known.begin(), known.end(), value) != known.end()) return absl::OkStatus();
  const std::string nearest = NearestName(value, known);
  return FieldError(path, "UNKNOWN_VALUE",
                    fmt::format("expected one of {}; found '{}'{}", fmt::join(known, ", "), value,
                                nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest)));
}

absl::Status CheckRange(const std::string& path, int64_t value, int64_t least, int64_t most) {
  if (value >= least && value <= most) return absl::OkStatus();
  return FieldError(path, "OUT_OF_RANGE", fmt::format("expected between {} and {}, found {}", least, most, value));
}

bool HasWidth(const FrozenLayerSpec& layer) {
  return layer.kind == "convolution" || layer.kind == "linear" || layer.kind == "embedding";
}

absl::Status ValidateLayer(const std::string& path, const FrozenLayerSpec& layer) {
  ATOLL_RETURN_IF_ERROR(
      CheckOneOf(path + ".kind", layer.kind, {"convolution", "block", "norm", "mean", "linear", "embedding"}));
  ATOLL_RETURN_IF_ERROR(HasWidth(layer) ? CheckRange(path + ".width", layer.width, 1, kMostWidth)
                                        : CheckRange(path + ".width", layer.width, 0, 0));
  ATOLL_RETURN_IF_ERROR(CheckRange(path + ".kernel", layer.kernel, 1, 63));
  if (layer.kernel % 2 == 0) {
    return FieldError(path + ".kernel", "OUT_OF_RANGE", fmt::format("expected an odd number, found {}", layer.kernel));
  }
  ATOLL_RETURN_IF_ERROR(CheckRange(path + ".stride", layer.stride, 1, 63));
  return CheckOneOf(path + ".activation", layer.activation, {"none", "relu", "silu", "gelu", "tanh"});
}

absl::Status ValidateHashes(const std::string& path, const FrozenSpec& component) {
  const size_t files = FilesOf(component).size();
  const size_t hashes = component.file_sha256.size();
  if (hashes != 0 && hashes != files) {
    return FieldError(
        path, "INVALID_SHA256",
        fmt::format("expected none, or one for each of the component's {} files; found {}", files, hashes));
  }
  for (size_t i = 0; i < hashes; ++i) {
    ATOLL_RETURN_IF_ERROR(ValidateSha256(fmt::format("{}[{}]", path, i), component.file_sha256[i]));
  }
  return absl::OkStatus();
}

absl::Status ValidateSource(const std::string& path, const FrozenSpec& component) {
  if (component.layers.empty() == component.torchscript.empty()) {
    return FieldError(path + ".layers", "FROZEN_LAYERS",
                      fmt::format("expected either layers or torchscript files, found {} and {}",
                                  component.layers.size(), component.torchscript.size()));
  }
  ATOLL_RETURN_IF_ERROR(CheckRange(path + ".layers", FrozenLayerCount(component), 1, kMostFrozenLayers));
  for (size_t i = 0; i < component.layers.size(); ++i) {
    ATOLL_RETURN_IF_ERROR(ValidateLayer(fmt::format("{}.layers[{}]", path, i), component.layers[i]));
  }
  for (size_t i = 0; i < component.torchscript.size(); ++i) {
    if (component.torchscript[i].empty()) {
      return FieldError(fmt::format("{}.torchscript[{}]", path, i), "REQUIRED_FIELD", "expected a value, found none");
    }
  }
  if (!component.weights.empty() && component.layers.empty()) {
    return FieldError(path + ".weights", "FROZEN_LAYERS",
                      "expected none: TorchScript files hold their own weights, found '" + component.weights + "'");
  }
  return ValidateHashes(path + ".file_sha256", component);
}

absl::Status ValidateShapeField(const std::string& path, const FrozenSpec& component) {
  int64_t values = 1;
  for (const int32_t size : component.shape) {
    ATOLL_RETURN_IF_ERROR(CheckRange(path + ".shape", size, 1, kMostWidth));
    values *= size;
    ATOLL_RETURN_IF_ERROR(CheckRange(path + ".shape", values, 1, kMostValues));
  }
  const size_t dimensions = component.output == "latent" ? 3 : component.output == "condition" ? 1 : 0;
  const bool needed = dimensions > 0 && !component.torchscript.empty();
  if (dimensions == 3 && component.shape.size() == 3) {
    ATOLL_RETURN_IF_ERROR(
        CheckRange(path + ".shape", int64_t{component.shape[1]} * component.shape[2], 1, kMostPixels));
  }
  if (dimensions == 0 || (component.shape.empty() && !needed) || component.shape.size() == dimensions) {
    return absl::OkStatus();
  }
  return FieldError(
      path + ".shape", "FROZEN_SHAPE",
      fmt::format("expected {} for a {}, found {} numbers", dimensions == 3 ? "[channels, height, width]" : "[width]",
                  component.output, component.shape.size()));
}

// "image" or "label": where the chain of inputs begins.
std::string RootOf(const std::vector<FrozenSpec>& components, int32_t i) {
  return components[static_cast<size_t>(FrozenChain(components, i).front())].input;
}

absl::Status ValidateOutput(const std::vector<FrozenSpec>& components, int32_t i, const std::string& path) {
  const FrozenSpec& component = components[static_cast<size_t>(i)];
  ATOLL_RETURN_IF_ERROR(CheckOneOf(path + ".output", component.output, {"latent", "condition", "none"}));
  if (component.output == "none") return absl::OkStatus();
  if (const int32_t first = *FrozenWithOutput(components, component.output); first != i) {
    return FieldError(path + ".output", "FROZEN_OUTPUT",
                      fmt::format("expected at most one {}, found that of '{}' too", component.output,
                                  components[static_cast<size_t>(first)].name));
  }
  // When sampling, only the class is known before the image is, so a condition can only come from the label.
  const std::string expected = component.output == "latent" ? "image" : "label";
  if (RootOf(components, i) == expected) return absl::OkStatus();
  return FieldError(
      path + ".input", "FROZEN_OUTPUT",
      fmt::format("expected a {} to come from the {}{}, found the {}", component.output, expected,
                  expected == "label" ? ", which is all that is known when sampling" : "", RootOf(components, i)));
}

absl::Status ValidateComponent(const std::vector<FrozenSpec>& components, int32_t i) {
  const FrozenSpec& component = components[static_cast<size_t>(i)];
  const std::string path = fmt::format("frozen[{}]", i);
  ATOLL_RETURN_IF_ERROR(ValidateName(path + ".name", component.name));
  if (component.name == "image" || component.name == "label" || *FindFrozen(components, component.name) != i) {
    return FieldError(path + ".name", "INVALID_NAME",
                      fmt::format("expected a name of its own, found '{}' again", component.name));
  }
  std::vector<std::string> inputs{"image", "label"};
  for (int32_t before = 0; before < i; ++before) inputs.push_back(components[static_cast<size_t>(before)].name);
  ATOLL_RETURN_IF_ERROR(CheckOneOf(path + ".input", component.input, inputs));
  ATOLL_RETURN_IF_ERROR(ValidateSource(path, component));
  ATOLL_RETURN_IF_ERROR(ValidateOutput(components, i, path));
  return ValidateShapeField(path, component);
}

// Returns the output shape of a native layer, or the reason why it cannot read `in`.
absl::StatusOr<SampleShape> After(const FrozenLayerSpec& layer, const SampleShape& in, const std::string& path) {
  const auto cannot = [&](std::string_view expected) {
    return FieldError(path, "FROZEN_SHAPE",
                      fmt::format("{}: expected {} before it, found {}", layer.kind, expected, Text(in)));
  };
  if (layer.kind == "embedding") {
    if (in.empty()) return SampleShape{layer.width};
    return cannot("a class");
  }
  if (in.empty()) return cannot("numbers");
  if (layer.kind == "linear") return SampleShape{layer.width};
  if (layer.kind == "norm") return in;
  if (in.size() != 3) return cannot("[channels, height, width]");
  if (layer.kind == "mean") return SampleShape{in[0]};
  if (layer.kind == "block") return in;
  const auto shrunk = [&](int32_t size) { return (size - 1) / layer.stride + 1; };  // padded by kernel / 2
  return SampleShape{layer.width, shrunk(in[1]), shrunk(in[2])};
}

absl::Status CheckUse(const std::vector<FrozenSpec>& components, const std::vector<std::optional<SampleShape>>& shapes,
                      int32_t model_width) {
  const auto differs = [](int32_t i, std::string_view expected, const SampleShape& found) {
    return FieldError(fmt::format("frozen[{}].output", i), "FROZEN_SHAPE",
                      fmt::format("expected {}, found {}", expected, Text(found)));
  };
  if (const auto latent = FrozenWithOutput(components, "latent"); latent.has_value()) {
    const auto& shape = shapes[static_cast<size_t>(*latent)];
    if (shape.has_value() && shape->size() != 3) return differs(*latent, "a latent [channels, height, width]", *shape);
  }
  if (const auto condition = FrozenWithOutput(components, "condition"); condition.has_value()) {
    const auto& shape = shapes[static_cast<size_t>(*condition)];
    if (shape.has_value() && *shape != SampleShape{model_width}) {
      return differs(*condition, fmt::format("a condition as wide as the model, [{}]", model_width), *shape);
    }
  }
  return absl::OkStatus();
}

}  // namespace

int32_t FrozenLayerCount(const FrozenSpec& component) {
  return static_cast<int32_t>(component.layers.empty() ? component.torchscript.size() : component.layers.size());
}

std::optional<int32_t> FindFrozen(const std::vector<FrozenSpec>& components, std::string_view name) {
  for (size_t i = 0; i < components.size(); ++i) {
    if (components[i].name == name) return static_cast<int32_t>(i);
  }
  return std::nullopt;
}

std::optional<int32_t> FrozenWithOutput(const std::vector<FrozenSpec>& components, std::string_view output) {
  for (size_t i = 0; i < components.size(); ++i) {
    if (components[i].output == output) return static_cast<int32_t>(i);
  }
  return std::nullopt;
}

std::vector<int32_t> FrozenChain(const std::vector<FrozenSpec>& components, int32_t i) {
  std::vector<int32_t> chain{i};
  // A component reads an earlier one: the walk ends.
  for (auto before = FindFrozen(components, components[static_cast<size_t>(i)].input);
       before.has_value() && *before < chain.back();
       before = FindFrozen(components, components[static_cast<size_t>(*before)].input)) {
    chain.push_back(*before);
  }
  std::reverse(chain.begin(), chain.end());
  return chain;
}

std::vector<FrozenSpec> LatentChain(const std::vector<FrozenSpec>& components) {
  std::vector<FrozenSpec> chain;
  if (const auto latent = FrozenWithOutput(components, "latent")) {
    for (const int32_t i : FrozenChain(components, *latent)) chain.push_back(components[static_cast<size_t>(i)]);
  }
  return chain;
}

std::vector<std::string> FilesOf(const FrozenSpec& component) {
  std::vector<std::string> uris = component.torchscript;
  if (!component.weights.empty()) uris.push_back(component.weights);
  return uris;
}

std::vector<std::string> FrozenFiles(const std::vector<FrozenSpec>& components) {
  std::vector<std::string> uris;
  for (const FrozenSpec& component : components) {
    const std::vector<std::string> files = FilesOf(component);
    uris.insert(uris.end(), files.begin(), files.end());
  }
  std::sort(uris.begin(), uris.end());
  uris.erase(std::unique(uris.begin(), uris.end()), uris.end());
  return uris;
}

std::vector<FrozenFileField> FrozenFileFields(const std::vector<FrozenSpec>& components) {
  std::vector<FrozenFileField> files;
  for (size_t i = 0; i < components.size(); ++i) {
    const FrozenSpec& component = components[i];
    const std::vector<std::string> uris = FilesOf(component);
    for (size_t k = 0; k < uris.size(); ++k) {
      files.push_back({k < component.torchscript.size() ? fmt::format("frozen[{}].torchscript[{}]", i, k)
                                                        : fmt::format("frozen[{}].weights", i),
                       uris[k], k < component.file_sha256.size() ? component.file_sha256[k] : ""});
    }
  }
  return files;
}

absl::Status ValidateSha256(std::string_view path, std::string_view sha256) {
  const auto hex = [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); };
  if (sha256.empty() || (sha256.size() == 64 && std::all_of(sha256.begin(), sha256.end(), hex))) {
    return absl::OkStatus();
  }
  return FieldError(path, "INVALID_SHA256",
                    fmt::format("expected 64 lower-case hex digits, found '{}'", sha256.substr(0, 80)));
}

absl::StatusOr<std::vector<SampleShape>> NativeShapes(const FrozenSpec& component, const SampleShape& input,
                                                      std::string_view path) {
  std::vector<SampleShape> shapes;
  SampleShape shape = input;
  for (size_t i = 0; i < component.layers.size(); ++i) {
    ATOLL_ASSIGN_OR_RETURN(shape, After(component.layers[i], shape, fmt::format("{}.layers[{}]", path, i)));
    shapes.push_back(shape);
  }
  return shapes;
}

absl::StatusOr<std::vector<std::optional<SampleShape>>> FrozenOutputShapes(const std::vector<FrozenSpec>& components,
                                                                           const SampleShape& image) {
  std::vector<std::optional<SampleShape>> shapes;
  for (size_t i = 0; i < components.size(); ++i) {
    const FrozenSpec& component = components[i];
    const std::string path = fmt::format("frozen[{}]", i);
    std::optional<SampleShape> declared;
    if (!component.shape.empty()) declared = component.shape;
    std::optional<SampleShape> input = component.input == "image"   ? std::optional<SampleShape>(image)
                                       : component.input == "label" ? std::optional<SampleShape>(SampleShape{})
                                                                    : std::nullopt;
    if (const auto before = FindFrozen(components, component.input);
        before.has_value() && static_cast<size_t>(*before) < shapes.size()) {
      input = shapes[static_cast<size_t>(*before)];
    }
    if (component.layers.empty() || !input.has_value()) {
      shapes.push_back(declared);
      continue;
    }
    ATOLL_ASSIGN_OR_RETURN(const std::vector<SampleShape> after, NativeShapes(component, *input, path));
    if (declared.has_value() && *declared != after.back()) {
      return FieldError(
          path + ".shape", "FROZEN_SHAPE",
          fmt::format("expected {}, which the layers make, found {}", Text(after.back()), Text(*declared)));
    }
    shapes.push_back(after.back());
  }
  return shapes;
}

absl::StatusOr<SampleShape> LearntShape(const std::vector<FrozenSpec>& components, const SampleShape& image) {
  const auto latent = FrozenWithOutput(components, "latent");
  if (!latent.has_value()) return image;
  ATOLL_ASSIGN_OR_RETURN(const auto shapes, FrozenOutputShapes(components, image));
  const auto& shape = shapes[static_cast<size_t>(*latent)];
  if (shape.has_value() && shape->size() == 3) return *shape;
  return FieldError(fmt::format("frozen[{}].shape", *latent), "FROZEN_SHAPE",
                    "expected the latent's [channels, height, width], found none");
}

absl::Status ValidateFrozen(const std::vector<FrozenSpec>& components, const SampleShape* image, int32_t classes,
                            int32_t model_width) {
  ATOLL_RETURN_IF_ERROR(CheckRange("frozen", static_cast<int64_t>(components.size()), 0, kMostComponents));
  for (size_t i = 0; i < components.size(); ++i) {
    ATOLL_RETURN_IF_ERROR(ValidateComponent(components, static_cast<int32_t>(i)));
  }
  if (image == nullptr) return absl::OkStatus();
  for (size_t i = 0; i < components.size(); ++i) {
    if (components[i].input != "label" || classes > 0) continue;
    return FieldError(fmt::format("frozen[{}].input", i), "FROZEN_OUTPUT",
                      "expected image, of a dataset without classes, found label");
  }
  ATOLL_ASSIGN_OR_RETURN(const auto shapes, FrozenOutputShapes(components, *image));
  return CheckUse(components, shapes, model_width);
}

}  // namespace atl::spec
