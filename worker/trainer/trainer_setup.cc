#include "worker/trainer/trainer_setup.h"

#include <malloc.h>

#include <mutex>

#include <ATen/Parallel.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/spec/frozen.h"
#include "fmt/format.h"
#include "worker/trainer/learning_rate.h"

namespace atl::trainer {
namespace {

// glibc gives large blocks back to the kernel on every free and takes them, page fault by page fault, on the next
// allocation. A training step allocates the same sizes again and again: let the process keep them.
void KeepFreedMemory() {
  static std::once_flag once;
  std::call_once(once, [] {
    mallopt(M_MMAP_THRESHOLD, 32 << 20);
    mallopt(M_TRIM_THRESHOLD, -1);
    mallopt(M_TOP_PAD, 64 << 20);
  });
}

absl::Status ValidateDevice(const std::string& device) {
  if (device == "cpu") return absl::OkStatus();
  if (device.rfind("cuda", 0) == 0) {
    if (at::hasCUDA()) return absl::OkStatus();
    return MakeError(absl::StatusCode::kFailedPrecondition, "DEVICE_UNAVAILABLE",
                     fmt::format("device '{}': this build or machine has no CUDA device", device));
  }
  return FieldError("device", "VALUE_UNKNOWN", fmt::format("expected cpu or cuda; found '{}'", device));
}

}  // namespace

model::DitConfig ConfigOf(const TrainerOptions& options, const spec::PrecisionSpec& precision) {
  const spec::SampleShape image{options.channels, options.height, options.width};
  const spec::SampleShape learnt = spec::LearntShape(options.frozen, image).value_or(image);
  return {.channels = learnt[0],
          .height = learnt[1],
          .width_pixels = learnt[2],
          .classes = options.classes,
          .patch = options.model.patch,
          .width = options.model.width,
          .depth = options.model.depth,
          .heads = options.model.heads,
          .mlp_ratio = options.model.mlp_ratio,
          .outputs = options.objective == Objective::kCluster ? options.clusters : 0,
          .compute = precision.compute,
          .self_conditioning = options.model.self_conditioning};
}

absl::Status ValidatePrecision(const spec::PrecisionSpec& precision) {
  struct Role {
    const char* field;
    const std::string& value;
  };
  // Compute is checked with the model. The others are what the optimizer's state is kept in.
  for (const Role& role :
       {Role{"training.precision.params", precision.params}, Role{"training.precision.reduce", precision.reduce},
        Role{"training.precision.ema", precision.ema}}) {
    if (role.value != "float32") {
      return FieldError(role.field, "VALUE_UNKNOWN", fmt::format("expected float32; found '{}'", role.value));
    }
  }
  return absl::OkStatus();
}

absl::Status ValidateOptions(const TrainerOptions& options, const TrainingData& data) {
  ATOLL_RETURN_IF_ERROR(ValidateTraining(options.training));
  ATOLL_RETURN_IF_ERROR(ValidateDevice(options.device));
  if (options.objective == Objective::kCluster && options.clusters < 1) {
    return FieldError("clusters", "VALUE_OUT_OF_RANGE", fmt::format("expected at least 1; found {}", options.clusters));
  }
  if (options.threads < 1) {
    return FieldError("threads", "VALUE_OUT_OF_RANGE", fmt::format("expected at least 1; found {}", options.threads));
  }
  const spec::SampleShape image{options.channels, options.height, options.width};
  ATOLL_RETURN_IF_ERROR(spec::ValidateFrozen(options.frozen, &image, options.classes, options.model.width));
  ATOLL_RETURN_IF_ERROR(spec::LearntShape(options.frozen, image).status());
  if (data.size() < 1) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "DATA_EMPTY",
                     "training data: expected samples; found none");
  }
  return absl::OkStatus();
}

void TuneProcess(int32_t threads, const std::string& device) {
  KeepFreedMemory();
  at::set_num_threads(threads);
  if (const at::Device named(device); named.has_index()) {
    c10::impl::VirtualGuardImpl(named.type()).setDevice(named);
  }
}

}  // namespace atl::trainer
