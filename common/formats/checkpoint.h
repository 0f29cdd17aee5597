// Checkpoints: tensor files plus one manifest, which is written once and last. A checkpoint exists once the coordinator
// has committed its row.
//
// Tensors are saved by canonical layer name ("blocks.3.attention.qkv.weight"), under "weights/", "ema/", "adam_m/",
// "adam_v/" prefixes, in one safetensors file per stage. Readers do not depend on the stage that held a tensor.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/storage/blob_store.h"
#include "common/storage/safetensors.h"

namespace atl::storage {

inline constexpr int kCheckpointFormat = 1;

struct CheckpointFile {
  std::string name;  // relative to the manifest's folder
  int64_t bytes = 0;
  std::string sha256;
  bool operator==(const CheckpointFile&) const = default;
};

struct CheckpointManifest {
  int format = kCheckpointFormat;
  std::string task_id;
  int64_t attempt = 0;
  int64_t step = 0;
  // Samples consumed so far: the data cursor. With (seed, step), this is the complete random state.
  int64_t samples_consumed = 0;
  uint64_t seed = 0;
  std::string build;
  // dtype names by role: params, compute, reduce, ema.
  std::map<std::string, std::string> precision;
  // The model's config.json, so that a checkpoint explains itself.
  std::string model_config;
  std::vector<CheckpointFile> files;
  bool operator==(const CheckpointManifest&) const = default;
};

std::string ToJson(const CheckpointManifest& manifest);
// DATA_LOSS names `file_name` if the text is no manifest; FAILED_PRECONDITION names the supported and the found format
// if this build cannot read it.
absl::StatusOr<CheckpointManifest> ParseManifest(std::string_view json, std::string_view file_name);

// Returns "<prefix>/<step>-<nonce>/": a new folder per try, so that a retry never overwrites an earlier try.
std::string CheckpointFolder(std::string_view write_prefix, int64_t step, std::string_view nonce);

// A committed checkpoint opened for reading; every file is verified against the manifest's hash.
class CheckpointReader {
 public:
  // `manifest_sha256` as committed. NOT_FOUND or DATA_LOSS name the file.
  static absl::StatusOr<CheckpointReader> Open(BlobStore* store, std::string_view manifest_uri,
                                               std::string_view manifest_sha256);

  const CheckpointManifest& manifest() const { return manifest_; }
  // All tensors, by name. Views live as long as the reader.
  const std::map<std::string, TensorView>& tensors() const { return tensors_; }

 private:
  CheckpointManifest manifest_;
  std::vector<std::shared_ptr<std::string>> contents_;
  std::map<std::string, TensorView> tensors_;
};

}  // namespace atl::storage
