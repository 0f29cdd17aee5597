#include "worker/trainer/trainer_state.h"

#include <ATen/core/grad_mode.h>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/model/weights.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "worker/trainer/tensor_errors.h"

namespace atl::trainer {
namespace {

class StateCopy : public Trainer::Snapshot {
 public:
  struct File {
    std::string name;
    std::vector<model::NamedTensor> tensors;
  };
  StateCopy(storage::CheckpointManifest manifest, std::vector<File> files)
      : manifest_(std::move(manifest)), files_(std::move(files)) {}

  int64_t step() const override { return manifest_.step; }
  int64_t samples_consumed() const override { return manifest_.samples_consumed; }
  storage::CheckpointManifest Manifest() const override { return manifest_; }

  absl::StatusOr<std::vector<storage::CheckpointFile>> Write(storage::BlobStore* store,
                                                             const std::string& folder) override {
    // The file is made in memory, which may not hold the state once more.
    return CatchTensorErrors("write state", [&] { return WriteFiles(store, folder); });
  }

 private:
  absl::StatusOr<std::vector<storage::CheckpointFile>> WriteFiles(storage::BlobStore* store,
                                                                  const std::string& folder) const {
    std::vector<storage::CheckpointFile> written;
    for (const File& file : files_) {
      std::vector<storage::TensorView> views;
      for (const model::NamedTensor& tensor : file.tensors) views.push_back(model::ToView(tensor.name, tensor.tensor));
      ATOLL_ASSIGN_OR_RETURN(const std::string bytes,
                             storage::SerializeSafetensors(std::move(views), {{"format", "pt"}}));
      const std::string separator = folder.empty() || folder.back() == '/' ? "" : "/";
      ATOLL_ASSIGN_OR_RETURN(const storage::WrittenFile result, store->Write(folder + separator + file.name, bytes));
      written.push_back({.name = file.name, .bytes = result.bytes, .sha256 = result.sha256});
    }
    return written;
  }

  const storage::CheckpointManifest manifest_;
  const std::vector<File> files_;
};

absl::Status Differs(const char* what, const std::string& expected, const std::string& found) {
  return MakeError(absl::StatusCode::kFailedPrecondition, "CHECKPOINT_MISMATCH",
                   fmt::format("checkpoint: expected {} {}; found {}", what, expected, found));
}

absl::Status CopyInto(const std::map<std::string, storage::TensorView>& tensors, const model::NamedTensor& target) {
  const auto damaged = [&target](const std::string& found) {
    return MakeError(absl::StatusCode::kDataLoss, "CHECKPOINT_DAMAGED",
                     fmt::format("checkpoint: expected tensor '{}' as {} [{}]; found {}", target.name,
                                 model::DtypeName(target.tensor.scalar_type()),
                                 fmt::join(target.tensor.sizes().vec(), ", "), found));
  };
  const auto found = tensors.find(target.name);
  if (found == tensors.end()) return damaged("none");
  ATOLL_ASSIGN_OR_RETURN(const at::Tensor value, model::ToTensor(found->second));
  if (value.sizes() != target.tensor.sizes() || value.scalar_type() != target.tensor.scalar_type()) {
    return damaged(fmt::format("{} [{}]", found->second.dtype, fmt::join(found->second.shape, ", ")));
  }
  target.tensor.copy_(value);
  return absl::OkStatus();
}

}  // namespace

std::map<std::string, std::string> PrecisionMap(const spec::PrecisionSpec& precision) {
  return {{"params", precision.params},
          {"compute", precision.compute},
          {"reduce", precision.reduce},
          {"ema", precision.ema}};
}

std::unique_ptr<Trainer::Snapshot> CopyState(const Optimizer& optimizer, const std::vector<StageState>& stages,
                                             storage::CheckpointManifest manifest) {
  const at::NoGradGuard no_grad;
  std::vector<StateCopy::File> files;
  for (const StageState& stage : stages) {
    StateCopy::File file{.name = stage.file};
    for (size_t i = stage.first; i < stage.end; ++i) {
      for (model::NamedTensor& tensor : optimizer.State(i)) {
        // Device memory is copied by the move to the host; host memory needs a copy of its own.
        const at::Tensor copy = tensor.tensor.detach().to(at::kCPU, tensor.tensor.scalar_type(), /*non_blocking=*/false,
                                                          /*copy=*/true, at::MemoryFormat::Contiguous);
        file.tensors.push_back({std::move(tensor.name), copy});
      }
    }
    files.push_back(std::move(file));
  }
  return std::make_unique<StateCopy>(std::move(manifest), std::move(files));
}

absl::Status LoadState(const storage::CheckpointReader& checkpoint, const storage::CheckpointManifest& expected,
                       Optimizer* optimizer) {
  const storage::CheckpointManifest& found = checkpoint.manifest();
  if (found.model_config != expected.model_config) {
    return Differs("the model", expected.model_config, found.model_config);
  }
  if (found.precision != expected.precision) {
    return Differs("the precision", fmt::format("{}", expected.precision), fmt::format("{}", found.precision));
  }
  if (found.seed != expected.seed) {
    return Differs("the seed", std::to_string(expected.seed), std::to_string(found.seed));
  }
  return CatchTensorErrors("load", [&]() -> absl::Status {
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < optimizer->size(); ++i) {
      for (const model::NamedTensor& tensor : optimizer->State(i)) {
        ATOLL_RETURN_IF_ERROR(CopyInto(checkpoint.tensors(), tensor));
      }
    }
    return absl::OkStatus();
  });
}

}  // namespace atl::trainer
