// model_index.json of a published model version: a diffusers-style folder
//   model_index.json, expert_<k>/{config.json, diffusion_pytorch_model.safetensors}, router/{…}
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/formats/checkpoint.h"

namespace atl::storage {

inline constexpr int kModelFormat = 1;
inline constexpr char kWeightsFile[] = "diffusion_pytorch_model.safetensors";
inline constexpr char kConfigFile[] = "config.json";

// The measured velocity error of one routing mode on held-out samples.
struct MeasuredMode {
  std::string mode;           // "top-2", "threshold 0.1", "nucleus 0.9", "full"
  double velocity_error = 0;  // mean square over samples and pixels
  double experts = 0;         // evaluated per sample and step, on average
  bool operator==(const MeasuredMode&) const = default;
};

// Sampling defaults of requests to this version. The router chooses fields that are zero or empty here.
struct VersionSampling {
  std::string mode;  // "top_k", "threshold", "full" or "nucleus"
  int32_t top_k = 0;
  double threshold = 0;
  double nucleus_p = 0;
  double temperature = 0;
  std::string solver;  // "euler", "heun" or "multistep"
  int32_t steps = 0;
  std::optional<double> guidance;
  std::vector<MeasuredMode> measured;  // the measurements behind the choice of mode
  bool operator==(const VersionSampling&) const = default;
};

struct ModelIndex {
  int format = kModelFormat;
  std::string name;
  std::string version;  // the job's id
  std::string dataset;
  int32_t channels = 0;
  int32_t height = 0;
  int32_t width = 0;
  bool latent = false;             // samples are latents of that shape: numbers, not pixels
  bool self_conditioning = false;  // experts read the ensemble's estimate of the previous step
  std::vector<std::string> classes;
  std::vector<int64_t> cluster_rows;  // training samples by expert
  int32_t experts = 0;
  std::optional<VersionSampling> sampling;
  std::string probe;                  // the file of points and the answers that the version must give; empty: none
  std::vector<CheckpointFile> files;  // every other file of the folder, by relative name, with its hash
  bool operator==(const ModelIndex&) const = default;
};

std::string ToJson(const ModelIndex& index);
// DATA_LOSS names `file_name` if the text is no index, or if no request could ask for its `sampling`;
// FAILED_PRECONDITION for another format.
absl::StatusOr<ModelIndex> ParseModelIndex(std::string_view json, std::string_view file_name);

// Returns "<root>/models/<name>/<version>".
std::string ModelFolderUri(const BlobStore& store, std::string_view name, std::string_view version);

}  // namespace atl::storage
