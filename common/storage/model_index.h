// model_index.json of a published model version: a diffusers-style folder
//   model_index.json, expert_<k>/{config.json, diffusion_pytorch_model.safetensors}, router/{…}
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "common/storage/checkpoint.h"

namespace atl::storage {

inline constexpr int kModelFormat = 1;
inline constexpr char kWeightsFile[] = "diffusion_pytorch_model.safetensors";
inline constexpr char kConfigFile[] = "config.json";

struct ModelIndex {
  int format = kModelFormat;
  std::string name;
  std::string version;  // the job's id
  std::string dataset;
  int32_t channels = 0;
  int32_t height = 0;
  int32_t width = 0;
  bool latent = false;             // samples are latents of that shape: numbers, not pixels
  bool self_conditioning = false;  // experts read the ensemble's estimate of the step before
  std::vector<std::string> classes;
  std::vector<int64_t> cluster_rows;  // training samples by expert
  int32_t experts = 0;
  std::vector<CheckpointFile> files;  // every other file of the folder, by relative name, with its hash
  bool operator==(const ModelIndex&) const = default;
};

std::string ToJson(const ModelIndex& index);
// DATA_LOSS naming `file_name` for text that is none; FAILED_PRECONDITION for another format.
absl::StatusOr<ModelIndex> ParseModelIndex(std::string_view json, std::string_view file_name);

// "<root>/models/<name>/<version>"
std::string ModelFolderUri(const BlobStore& store, std::string_view name, std::string_view version);

}  // namespace atl::storage
