#include "common/formats/checkpoint.h"

#include <set>
#include <utility>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/formats/file_list.h"
#include "common/storage/json_reader.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace atl::storage {

std::string ToJson(const CheckpointManifest& manifest) {
  return ToText({{"format", manifest.format},
                 {"task_id", manifest.task_id},
                 {"attempt", manifest.attempt},
                 {"step", manifest.step},
                 {"samples_consumed", manifest.samples_consumed},
                 {"seed", manifest.seed},
                 {"build", manifest.build},
                 {"precision", manifest.precision},
                 {"model_config", manifest.model_config},
                 {"files", FilesToJson(manifest.files)}});
}

absl::StatusOr<CheckpointManifest> ParseManifest(std::string_view json, std::string_view file_name) {
  ATOLL_ASSIGN_OR_RETURN(const nlohmann::json object, ParseSealedObject(json, file_name));
  JsonReader reader(object, file_name);
  CheckpointManifest manifest;
  reader.Read("format", &manifest.format);
  ATOLL_RETURN_IF_ERROR(reader.status());
  ATOLL_RETURN_IF_ERROR(CheckFormat(manifest.format, kCheckpointFormat, file_name));
  reader.Read("task_id", &manifest.task_id);
  reader.Read("attempt", &manifest.attempt);
  reader.Read("step", &manifest.step);
  reader.Read("samples_consumed", &manifest.samples_consumed);
  reader.Read("seed", &manifest.seed);
  reader.Read("build", &manifest.build);
  reader.Read("precision", &manifest.precision);
  reader.Read("model_config", &manifest.model_config);
  ReadFiles(&reader, "files", &manifest.files);
  ATOLL_RETURN_IF_ERROR(reader.status());
  return manifest;
}

std::string CheckpointFolder(std::string_view write_prefix, int64_t step, std::string_view nonce) {
  return fmt::format("{}{}{:08}-{}/", write_prefix, write_prefix.ends_with('/') ? "" : "/", step, nonce);
}

absl::StatusOr<CheckpointReader> CheckpointReader::Open(BlobStore* store, std::string_view manifest_uri,
                                                        std::string_view manifest_sha256) {
  ATOLL_ASSIGN_OR_RETURN(const std::string text, store->ReadVerified(manifest_uri, manifest_sha256));
  CheckpointReader reader;
  ATOLL_ASSIGN_OR_RETURN(reader.manifest_, ParseManifest(text, manifest_uri));
  const std::string_view folder = manifest_uri.substr(0, manifest_uri.rfind('/'));
  for (const CheckpointFile& file : reader.manifest_.files) {
    const std::string uri = fmt::format("{}/{}", folder, file.name);
    ATOLL_ASSIGN_OR_RETURN(std::string bytes, store->ReadVerified(uri, file.sha256));
    auto content = std::make_shared<std::string>(std::move(bytes));
    ATOLL_ASSIGN_OR_RETURN(Safetensors parsed, ParseSafetensors(*content, uri));
    reader.contents_.push_back(std::move(content));
    for (TensorView& tensor : parsed.tensors) {
      const std::string name = tensor.name;
      if (!reader.tensors_.emplace(name, std::move(tensor)).second) {
        return MakeError(
            absl::StatusCode::kDataLoss, "TENSOR_REPEATED",
            fmt::format("{}: tensor '{}': expected it in one file of the checkpoint, found it in two", uri, name));
      }
    }
  }
  return reader;
}

}  // namespace atl::storage
