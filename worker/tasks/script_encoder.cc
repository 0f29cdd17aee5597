#include "worker/tasks/script_encoder.h"

#include <exception>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/jit/api/module.h>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/model/torchscript.h"

namespace atl::tasks {
namespace {

constexpr char kField[] = "features.encoder_uri";

absl::StatusOr<at::Tensor> Checked(const c10::IValue& result, const at::Tensor& images, const std::string& uri) {
  if (!result.isTensor()) {
    return FieldError(kField, "ENCODER_OUTPUT",
                      fmt::format("{}: expected a tensor [{}, d], found {}", uri, images.size(0), result.tagKind()));
  }
  const at::Tensor features = result.toTensor();
  if (features.dim() != 2 || features.size(0) != images.size(0) || features.size(1) < 1 ||
      !features.is_floating_point()) {
    return FieldError(kField, "ENCODER_OUTPUT",
                      fmt::format("{}: expected floats [{}, d] for images [{}], found {} [{}]", uri, images.size(0),
                                  fmt::join(images.sizes(), ", "), c10::toString(features.scalar_type()),
                                  fmt::join(features.sizes(), ", ")));
  }
  return features;
}

}  // namespace

absl::StatusOr<ScriptEncoder> LoadScriptEncoder(const std::string& archive, const std::string& uri) {
  ATOLL_ASSIGN_OR_RETURN(torch::jit::Module module, model::LoadTorchScript(archive, "cpu", kField, uri));
  return [module = std::move(module), uri](const at::Tensor& images) mutable -> absl::StatusOr<at::Tensor> {
    try {
      return Checked(module.forward({images}), images, uri);
    } catch (const std::exception& error) {
      return FieldError(
          kField, "ENCODER_FAILED",
          fmt::format("{}: on images [{}]: {}", uri, fmt::join(images.sizes(), ", "), model::FirstLine(error.what())));
    }
  };
}

}  // namespace atl::tasks
