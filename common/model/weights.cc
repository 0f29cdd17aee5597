#include "common/model/weights.h"

#include <ATen/core/grad_mode.h>

#include <cstring>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace atl::model {
namespace {

struct Dtype {
  at::ScalarType type;
  std::string_view name;
  std::string_view file_name;
};
constexpr Dtype kDtypes[] = {{at::kFloat, "float32", "F32"}, {at::kBFloat16, "bfloat16", "BF16"},
                             {at::kHalf, "float16", "F16"},  {at::kDouble, "float64", "F64"},
                             {at::kLong, "int64", "I64"},    {at::kInt, "int32", "I32"},
                             {at::kShort, "int16", "I16"},   {at::kChar, "int8", "I8"},
                             {at::kByte, "uint8", "U8"},     {at::kBool, "bool", "BOOL"}};

const Dtype* Find(at::ScalarType type) {
  for (const Dtype& dtype : kDtypes) {
    if (dtype.type == type) return &dtype;
  }
  return nullptr;
}

}  // namespace

std::string_view DtypeName(at::ScalarType type) {
  const Dtype* dtype = Find(type);
  return dtype == nullptr ? "unknown" : dtype->name;
}

storage::TensorView ToView(std::string name, const at::Tensor& tensor) {
  const Dtype* dtype = Find(tensor.scalar_type());
  return {.name = std::move(name),
          .dtype = std::string(dtype == nullptr ? "?" : dtype->file_name),
          .shape = tensor.sizes().vec(),
          .bytes = {static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes()}};
}

absl::StatusOr<at::Tensor> ToTensor(const storage::TensorView& view) {
  for (const Dtype& dtype : kDtypes) {
    if (dtype.file_name != view.dtype) continue;
    at::Tensor tensor = at::empty(view.shape, dtype.type);
    if (tensor.nbytes() != view.bytes.size()) {
      return MakeError(absl::StatusCode::kDataLoss, "TENSOR_DAMAGED",
                       fmt::format("tensor '{}': expected {} bytes for its shape; found {}", view.name, tensor.nbytes(),
                                   view.bytes.size()));
    }
    if (!view.bytes.empty()) std::memcpy(tensor.mutable_data_ptr(), view.bytes.data(), view.bytes.size());
    return tensor;
  }
  return MakeError(absl::StatusCode::kInvalidArgument, "DTYPE_UNKNOWN",
                   fmt::format("tensor '{}': LibTorch has no dtype '{}'", view.name, view.dtype));
}

absl::Status LoadParameters(const LayerList& layers, const std::map<std::string, storage::TensorView>& tensors,
                            std::string_view prefix) {
  const at::NoGradGuard no_grad;
  for (const NamedTensor& parameter : NamedParameters(layers)) {
    const std::string name = std::string(prefix) + parameter.name;
    const auto found = tensors.find(name);
    if (found == tensors.end()) {
      return MakeError(absl::StatusCode::kNotFound, "TENSOR_MISSING",
                       fmt::format("expected tensor '{}' among {}; it is not there", name, tensors.size()));
    }
    ATOLL_ASSIGN_OR_RETURN(const at::Tensor value, ToTensor(found->second));
    if (value.sizes() != parameter.tensor.sizes() || value.scalar_type() != parameter.tensor.scalar_type()) {
      return MakeError(
          absl::StatusCode::kFailedPrecondition, "TENSOR_MISMATCH",
          fmt::format("tensor '{}': expected {} [{}]; found {} [{}]", name, DtypeName(parameter.tensor.scalar_type()),
                      fmt::join(parameter.tensor.sizes().vec(), ", "), DtypeName(value.scalar_type()),
                      fmt::join(found->second.shape, ", ")));
    }
    parameter.tensor.copy_(value);
  }
  return absl::OkStatus();
}

absl::StatusOr<LoadedModel> LoadModel(std::string_view config_json, std::string_view safetensors_bytes,
                                      std::string_view name) {
  LoadedModel model;
  ATOLL_ASSIGN_OR_RETURN(model.config, ParseDitConfig(config_json, fmt::format("{}/config.json", name)));
  ATOLL_ASSIGN_OR_RETURN(const storage::Safetensors file, storage::ParseSafetensors(safetensors_bytes, name));
  std::map<std::string, storage::TensorView> tensors;
  for (const storage::TensorView& tensor : file.tensors) tensors.emplace(tensor.name, tensor);
  try {
    model.layers = BuildLayers(model.config, std::nullopt, 0, LayerCount(model.config));
    const absl::Status loaded = LoadParameters(model.layers, tensors);
    if (!loaded.ok()) {
      return MakeError(absl::StatusCode::kDataLoss, "MODEL_WEIGHTS_DAMAGED",
                       fmt::format("{}: {}", name, std::string(loaded.message())));
    }
  } catch (const std::exception& e) {  // LibTorch: out of memory for the sizes that the file states
    return MakeError(absl::StatusCode::kResourceExhausted, "MODEL_TOO_LARGE", fmt::format("{}: {}", name, e.what()));
  }
  for (const NamedTensor& parameter : NamedParameters(model.layers)) parameter.tensor.requires_grad_(false);
  return model;
}

}  // namespace atl::model
