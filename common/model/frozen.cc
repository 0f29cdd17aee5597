#include "common/model/frozen.h"

#include <ATen/core/grad_mode.h>
#include <torch/csrc/jit/api/module.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/counter_random.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/model/torchscript.h"
#include "common/model/weights.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace atl::model {
namespace {

constexpr double kNormEpsilon = 1e-6;

std::string Sizes(const at::Tensor& tensor) {
  return fmt::format("{} [{}]", DtypeName(tensor.scalar_type()), fmt::join(tensor.sizes().vec(), ", "));
}

absl::Status LayerFailed(const std::string& where, const at::Tensor& x, const std::string& why) {
  return FieldError(where, "FROZEN_LAYER_FAILED", fmt::format("on samples {}: {}", Sizes(x), why));
}

at::Tensor Activate(const std::string& activation, const at::Tensor& x) {
  if (activation == "relu") return at::relu(x);
  if (activation == "silu") return at::silu(x);
  if (activation == "gelu") return at::gelu(x);
  if (activation == "tanh") return at::tanh(x);
  return x;
}

// Gives a layer its parameters: from the weights file, or drawn from (seed, component, layer, parameter).
class ParameterSource {
 public:
  ParameterSource(uint64_t seed, size_t component, const std::map<std::string, storage::TensorView>* file,
                  std::string field)
      : seed_(seed), component_(component), file_(file), field_(std::move(field)) {}

  // Normal numbers of variance 1 / fan_in, or zeros for a bias (fan_in 0).
  absl::StatusOr<at::Tensor> Get(size_t layer, std::string_view name, at::IntArrayRef sizes, int64_t fan_in) {
    at::Tensor value = at::zeros(sizes, at::kFloat);
    if (file_ != nullptr) return FromFile(fmt::format("{}.{}", layer, name), value);
    if (fan_in > 0) {
      CounterRandom(seed_, RandomPurpose::kInitialise, drawn_++, ((component_ + 1) << 32) + layer)
          .Normal({value.data_ptr<float>(), static_cast<size_t>(value.numel())});
      value.mul_(1 / std::sqrt(static_cast<double>(fan_in)));
    }
    return value;
  }

 private:
  absl::StatusOr<at::Tensor> FromFile(const std::string& name, const at::Tensor& like) const {
    const auto found = file_->find(name);
    if (found == file_->end()) {
      return FieldError(field_, "FROZEN_FILE",
                        fmt::format("expected tensor '{}' as {}, found none", name, Sizes(like)));
    }
    ATOLL_ASSIGN_OR_RETURN(at::Tensor value, ToTensor(found->second));
    if (value.sizes() != like.sizes() || !value.is_floating_point()) {
      return FieldError(field_, "FROZEN_FILE",
                        fmt::format("expected tensor '{}' as {}, found {}", name, Sizes(like), Sizes(value)));
    }
    return value.to(at::kFloat);
  }

  const uint64_t seed_;
  const uint64_t component_;
  const std::map<std::string, storage::TensorView>* const file_;
  const std::string field_;
  uint64_t drawn_ = 0;
};

// A layer of the spec's own kinds.
class NativeLayer : public FrozenLayer {
 public:
  NativeLayer(const spec::FrozenLayerSpec& spec, std::string field, std::vector<at::Tensor> parameters)
      : spec_(spec), field_(std::move(field)), parameters_(std::move(parameters)) {}

  static absl::StatusOr<std::shared_ptr<FrozenLayer>> Create(const spec::FrozenLayerSpec& spec,
                                                             const spec::SampleShape& in, int32_t classes, size_t index,
                                                             const std::string& field, const std::string& device,
                                                             ParameterSource& source) {
    std::vector<at::Tensor> parameters;
    const auto add = [&](std::string_view name, at::IntArrayRef sizes, int64_t fan_in) -> absl::Status {
      ATOLL_ASSIGN_OR_RETURN(const at::Tensor value, source.Get(index, name, sizes, fan_in));
      parameters.push_back(value.to(at::Device(device)));
      return absl::OkStatus();
    };
    const int64_t area = int64_t{spec.kernel} * spec.kernel;
    if (spec.kind == "convolution") {
      ATOLL_RETURN_IF_ERROR(add("weight", {spec.width, in[0], spec.kernel, spec.kernel}, in[0] * area));
      ATOLL_RETURN_IF_ERROR(add("bias", {spec.width}, 0));
    } else if (spec.kind == "block") {
      for (const char* half : {"in", "out"}) {
        ATOLL_RETURN_IF_ERROR(
            add(fmt::format("{}.weight", half), {in[0], in[0], spec.kernel, spec.kernel}, in[0] * area));
        ATOLL_RETURN_IF_ERROR(add(fmt::format("{}.bias", half), {in[0]}, 0));
      }
    } else if (spec.kind == "linear") {
      int64_t features = 1;
      for (const int32_t size : in) features *= size;
      ATOLL_RETURN_IF_ERROR(add("weight", {spec.width, features}, features));
      ATOLL_RETURN_IF_ERROR(add("bias", {spec.width}, 0));
    } else if (spec.kind == "embedding") {
      ATOLL_RETURN_IF_ERROR(add("weight", {int64_t{classes} + 1, spec.width}, 1));
    }
    return std::make_shared<NativeLayer>(spec, field, std::move(parameters));
  }

  absl::StatusOr<at::Tensor> Forward(const at::Tensor& x) override {
    try {
      return Activate(spec_.activation, Compute(x));
    } catch (const std::exception& error) {
      return LayerFailed(field_, x, FirstLine(error.what()));
    }
  }

  int64_t parameter_bytes() const override {
    int64_t bytes = 0;
    for (const at::Tensor& parameter : parameters_) bytes += static_cast<int64_t>(parameter.nbytes());
    return bytes;
  }

 private:
  at::Tensor Compute(const at::Tensor& x) const {
    if (spec_.kind == "convolution") return Convolve(x, 0, spec_.stride);
    if (spec_.kind == "block") return x + Convolve(Activate("silu", Convolve(Norm(x), 0, 1)), 2, 1);
    if (spec_.kind == "norm") return Norm(x);
    if (spec_.kind == "mean") return x.mean({2, 3});
    if (spec_.kind == "linear") return at::linear(x.flatten(1), parameters_[0], parameters_[1]);
    return at::embedding(parameters_[0], x);
  }
  at::Tensor Convolve(const at::Tensor& x, size_t first, int64_t stride) const {
    return at::conv2d(x, parameters_[first], parameters_[first + 1], stride, spec_.kernel / 2);
  }
  static at::Tensor Norm(const at::Tensor& x) { return at::layer_norm(x, x.sizes().slice(1), {}, {}, kNormEpsilon); }

  const spec::FrozenLayerSpec spec_;
  const std::string field_;
  const std::vector<at::Tensor> parameters_;
};

class ScriptLayer : public FrozenLayer {
 public:
  ScriptLayer(torch::jit::Module module, std::string name) : module_(std::move(module)), name_(std::move(name)) {}

  static absl::StatusOr<std::shared_ptr<FrozenLayer>> Create(const std::string& bytes, const std::string& name,
                                                             const std::string& uri, const std::string& device) {
    ATOLL_ASSIGN_OR_RETURN(torch::jit::Module module, LoadTorchScript(bytes, device, name, uri));
    return std::make_shared<ScriptLayer>(std::move(module), fmt::format("{} ({})", name, uri));
  }

  absl::StatusOr<at::Tensor> Forward(const at::Tensor& x) override {
    try {
      const c10::IValue result = module_.forward({x});
      if (result.isTensor()) return result.toTensor();
      return LayerFailed(name_, x, fmt::format("expected a tensor, found {}", result.tagKind()));
    } catch (const std::exception& error) {
      return LayerFailed(name_, x, FirstLine(error.what()));
    }
  }

  int64_t parameter_bytes() const override {
    int64_t bytes = 0;
    for (const at::Tensor& parameter : module_.parameters()) bytes += static_cast<int64_t>(parameter.nbytes());
    for (const at::Tensor& buffer : module_.buffers()) bytes += static_cast<int64_t>(buffer.nbytes());
    return bytes;
  }

 private:
  torch::jit::Module module_;
  const std::string name_;
};

absl::StatusOr<const std::string*> FileOf(const FrozenSource& source, const std::string& field,
                                          const std::string& uri) {
  if (source.files != nullptr) {
    const auto found = source.files->find(uri);
    if (found != source.files->end()) return &found->second;
  }
  return FieldError(field, "FROZEN_FILE", fmt::format("{}: the file was not read", uri));
}

absl::StatusOr<std::shared_ptr<FrozenLayer>> LoadScript(const FrozenSource& source, size_t component, size_t layer) {
  const std::string& uri = source.components[component].torchscript[layer];
  const std::string field = fmt::format("frozen[{}].torchscript[{}]", component, layer);
  ATOLL_ASSIGN_OR_RETURN(const std::string* bytes, FileOf(source, field, uri));
  return ScriptLayer::Create(*bytes, field, uri, source.device);
}

// Makes the native layers of one component, in their order.
class NativeLayers {
 public:
  static absl::StatusOr<std::unique_ptr<NativeLayers>> Create(const FrozenSource& source, size_t component,
                                                              const spec::SampleShape& input) {
    const spec::FrozenSpec& spec = source.components[component];
    const std::string path = fmt::format("frozen[{}]", component);
    ATOLL_ASSIGN_OR_RETURN(std::vector<spec::SampleShape> shapes, spec::NativeShapes(spec, input, path));
    shapes.insert(shapes.begin(), input);
    std::map<std::string, storage::TensorView> tensors;
    if (!spec.weights.empty()) {
      ATOLL_ASSIGN_OR_RETURN(const std::string* bytes, FileOf(source, path + ".weights", spec.weights));
      ATOLL_ASSIGN_OR_RETURN(const storage::Safetensors file, storage::ParseSafetensors(*bytes, spec.weights));
      for (const storage::TensorView& tensor : file.tensors) tensors.emplace(tensor.name, tensor);
    }
    return std::unique_ptr<NativeLayers>(new NativeLayers(source, component, std::move(shapes), std::move(tensors)));
  }

  absl::StatusOr<std::shared_ptr<FrozenLayer>> Load(size_t layer) {
    return NativeLayer::Create(spec_.layers[layer], shapes_[layer], source_.classes, layer,
                               fmt::format("{}.layers[{}]", path_, layer), source_.device, parameters_);
  }

 private:
  NativeLayers(const FrozenSource& source, size_t component, std::vector<spec::SampleShape> shapes,
               std::map<std::string, storage::TensorView> tensors)
      : source_(source),
        spec_(source.components[component]),
        path_(fmt::format("frozen[{}]", component)),
        shapes_(std::move(shapes)),
        tensors_(std::move(tensors)),
        parameters_(source.seed, component, spec_.weights.empty() ? nullptr : &tensors_, path_ + ".weights") {}

  const FrozenSource& source_;
  const spec::FrozenSpec& spec_;
  const std::string path_;
  const std::vector<spec::SampleShape> shapes_;  // before each layer, and after the last
  const std::map<std::string, storage::TensorView> tensors_;
  ParameterSource parameters_;
};

std::pair<int32_t, int32_t> KeptLayers(const FrozenSource& source, size_t component) {
  if (source.kept.empty()) return {0, spec::FrozenLayerCount(source.components[component])};
  return component < source.kept.size() ? source.kept[component] : std::pair<int32_t, int32_t>{0, 0};
}

// Returns the input of a component's first layer, for one sample.
at::Tensor OneSample(const FrozenSource& source, const spec::FrozenSpec& spec, const std::vector<at::Tensor>& outputs) {
  const at::TensorOptions on_device = at::TensorOptions().device(source.device);
  if (spec.input == "label") return at::zeros({1}, on_device.dtype(at::kLong));
  if (spec.input == "image") {
    return at::zeros({1, source.image[0], source.image[1], source.image[2]}, on_device.dtype(at::kFloat));
  }
  return outputs[static_cast<size_t>(*spec::FindFrozen(source.components, spec.input))];
}

// The file that made the output, or the field of the layers.
std::string MadeBy(const spec::FrozenSpec& spec, size_t component) {
  return spec.torchscript.empty() ? fmt::format("frozen[{}].layers", component)
                                  : fmt::format("frozen[{}].torchscript ({})", component, spec.torchscript.back());
}

absl::Status CheckOutput(const spec::FrozenSpec& spec, size_t component, const at::Tensor& sample) {
  const std::vector<int64_t> found(sample.sizes().begin() + 1, sample.sizes().end());
  const std::vector<int64_t> expected(spec.shape.begin(), spec.shape.end());
  const bool used = spec.output != "none";
  if ((expected.empty() || found == expected) && (!used || sample.is_floating_point())) return absl::OkStatus();
  return FieldError(
      MadeBy(spec, component), "FROZEN_SHAPE",
      fmt::format("expected {}[{}] per sample (frozen[{}].shape), found {} [{}]", used ? "floats " : "",
                  fmt::join(expected, ", "), component, DtypeName(sample.scalar_type()), fmt::join(found, ", ")));
}

}  // namespace

absl::StatusOr<at::Tensor> FrozenComponent::Run(const at::Tensor& x, int32_t first, int32_t end) const {
  const at::NoGradGuard no_grad;
  at::Tensor value = x;
  for (int32_t i = first; i < end; ++i) {
    ATOLL_ASSIGN_OR_RETURN(value, layers_[static_cast<size_t>(i)]->Forward(value));
  }
  return value.contiguous();
}

int64_t FrozenComponent::ParameterBytes(int32_t layer) const {
  const auto& kept = layers_[static_cast<size_t>(layer)];
  return kept == nullptr ? 0 : kept->parameter_bytes();
}

void FrozenComponent::Keep(int32_t first, int32_t end) {
  for (int32_t i = 0; i < layer_count(); ++i) {
    if (i < first || i >= end) layers_[static_cast<size_t>(i)].reset();
  }
}

absl::StatusOr<std::vector<FrozenComponent>> LoadFrozen(const FrozenSource& source) {
  std::vector<FrozenComponent> components;
  std::vector<at::Tensor> outputs;  // of one sample, by component
  for (size_t i = 0; i < source.components.size(); ++i) {
    const spec::FrozenSpec& spec = source.components[i];
    FrozenComponent& component = components.emplace_back();
    component.spec_ = spec;
    at::Tensor sample = OneSample(source, spec, outputs);
    spec::SampleShape input;
    for (int64_t d = 1; d < sample.dim(); ++d) input.push_back(static_cast<int32_t>(sample.size(d)));
    std::unique_ptr<NativeLayers> native;
    if (!spec.layers.empty()) {
      ATOLL_ASSIGN_OR_RETURN(native, NativeLayers::Create(source, i, input));
    }
    const auto [first_kept, end_kept] = KeptLayers(source, i);
    for (int32_t layer = 0; layer < spec::FrozenLayerCount(spec); ++layer) {
      const auto at = static_cast<size_t>(layer);
      ATOLL_ASSIGN_OR_RETURN(component.layers_.emplace_back(),
                             native == nullptr ? LoadScript(source, i, at) : native->Load(at));
      ATOLL_ASSIGN_OR_RETURN(sample, component.Run(sample, layer, layer + 1));
      if (sample.dim() < 1 || sample.size(0) != 1) {
        return FieldError(MadeBy(spec, i), "FROZEN_SHAPE",
                          fmt::format("layer {}: expected one sample for one sample, found {}", layer, Sizes(sample)));
      }
      component.outputs_.push_back({.shape = {sample.sizes().begin() + 1, sample.sizes().end()},
                                    .dtype = sample.scalar_type(),
                                    .bytes = static_cast<int64_t>(sample.nbytes())});
      component.Keep(first_kept, end_kept);
    }
    ATOLL_RETURN_IF_ERROR(CheckOutput(spec, i, sample));
    outputs.push_back(sample);
  }
  return components;
}

}  // namespace atl::model
