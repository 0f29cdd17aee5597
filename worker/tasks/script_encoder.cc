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

class LoadedEncoder : public ScriptEncoder {
 public:
  LoadedEncoder(torch::jit::Module module, std::string name) : module_(std::move(module)), name_(std::move(name)) {}

  absl::StatusOr<at::Tensor> Encode(const at::Tensor& images) override {
    try {
      const c10::IValue result = module_.forward({images});
      if (!result.isTensor()) {
        return FieldError(
            kField, "ENCODER_OUTPUT",
            fmt::format("{}: expected a tensor [{}, d], found {}", name_, images.size(0), result.tagKind()));
      }
      const at::Tensor features = result.toTensor();
      if (features.dim() != 2 || features.size(0) != images.size(0) || features.size(1) < 1 ||
          !features.is_floating_point()) {
        return FieldError(kField, "ENCODER_OUTPUT",
                          fmt::format("{}: expected floats [{}, d] for images [{}], found {} [{}]", name_,
                                      images.size(0), fmt::join(images.sizes(), ", "),
                                      c10::toString(features.scalar_type()), fmt::join(features.sizes(), ", ")));
      }
      return features;
    } catch (const std::exception& error) {
      return FieldError(kField, "ENCODER_FAILED",
                        fmt::format("{}: on images [{}]: {}", name_, fmt::join(images.sizes(), ", "),
                                    model::FirstLine(error.what())));
    }
  }

 private:
  torch::jit::Module module_;
  const std::string name_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<ScriptEncoder>> ScriptEncoder::Load(const std::string& archive, const std::string& uri) {
  ATOLL_ASSIGN_OR_RETURN(torch::jit::Module module, model::LoadTorchScript(archive, "cpu", kField, uri));
  return std::make_shared<LoadedEncoder>(std::move(module), uri);
}

}  // namespace atl::tasks
