#include "common/model/layer.h"

#include <cstdlib>

#include "spdlog/spdlog.h"

namespace atl::model {

const at::Tensor* Find(const Flow& flow, std::string_view name) {
  for (const NamedTensor& entry : flow) {
    if (entry.name == name) return &entry.tensor;
  }
  return nullptr;
}

const at::Tensor& Get(const Flow& flow, std::string_view name) {
  if (const at::Tensor* tensor = Find(flow, name)) return *tensor;
  std::string found;
  for (const NamedTensor& entry : flow) found += " " + entry.name;
  spdlog::critical("A layer wants the tensor '{}'; the flow holds:{}", name, found);
  std::abort();
}

size_t Layer::AddParameter(std::string name, at::Tensor value) {
  parameters_.push_back({std::move(name), value.requires_grad_(true)});
  return parameters_.size() - 1;
}

size_t Layer::AddBuffer(at::Tensor value) {
  buffers_.push_back(std::move(value));
  return buffers_.size() - 1;
}

void Layer::MoveTo(const at::Device& device) {
  for (NamedTensor& entry : parameters_) entry.tensor = entry.tensor.detach().to(device).requires_grad_(true);
  for (at::Tensor& buffer : buffers_) buffer = buffer.to(device);
}

std::vector<NamedTensor> NamedParameters(const LayerList& layers) {
  std::vector<NamedTensor> all;
  for (const auto& layer : layers) {
    for (const NamedTensor& entry : layer->parameters())
      all.push_back({layer->name() + "." + entry.name, entry.tensor});
  }
  return all;
}

}  // namespace atl::model
