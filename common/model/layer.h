// A model as a list of layers, so that any contiguous run of them is a pipeline stage. Layers pass a list of named
// tensors (a boundary) to each other. LibTorch lives here.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

namespace atl::model {

struct NamedTensor {
  std::string name;
  at::Tensor tensor;
};

// The tensors between two layers, in a fixed order of names.
using Flow = std::vector<NamedTensor>;

// Returns the flow's tensor called `name`; CHECK-fails if it is absent (a bug in a layer list).
const at::Tensor& Get(const Flow& flow, std::string_view name);

// The same, or null if it is absent.
const at::Tensor* Find(const Flow& flow, std::string_view name);

// One layer of a model: parameters plus a forward. Built on Atoll's own Linear, Convolution and Embedding (ops.h), so
// that a backward can be split. Forward is thread-safe while no parameter changes.
class Layer {
 public:
  virtual ~Layer() = default;
  const std::string& name() const { return name_; }
  // Canonical names are "<layer>.<parameter>", in a fixed order. The tensors are leaves that require gradients.
  const std::vector<NamedTensor>& parameters() const { return parameters_; }
  // The first layer of a model reads {"x", "t", "class"} and, if present, "condition" and "estimate"; the others read
  // the output of the previous layer. The last returns {"out"}.
  virtual Flow Forward(const Flow& in) const = 0;
  // Moves parameters and buffers. Call before the first Forward.
  void MoveTo(const at::Device& device);

 protected:
  explicit Layer(std::string name) : name_(std::move(name)) {}
  // Registers a parameter and returns its index.
  size_t AddParameter(std::string name, at::Tensor value);
  const at::Tensor& parameter(size_t i) const { return parameters_[i].tensor; }
  // Adds a constant of the layer, which is neither saved nor trained.
  size_t AddBuffer(at::Tensor value);
  const at::Tensor& buffer(size_t i) const { return buffers_[i]; }

 private:
  std::string name_;
  std::vector<NamedTensor> parameters_;
  std::vector<at::Tensor> buffers_;
};

using LayerList = std::vector<std::unique_ptr<Layer>>;

// Returns every parameter under its canonical name "<layer>.<parameter>", in order. The tensors are shared, not copied.
std::vector<NamedTensor> NamedParameters(const LayerList& layers);

}  // namespace atl::model
