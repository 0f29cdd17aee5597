#include "common/storage/model_index.h"

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/storage/file_list.h"
#include "common/storage/json_reader.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace atl::storage {

std::string ToJson(const ModelIndex& index) {
  nlohmann::ordered_json json{{"_class_name", "AtollEnsemble"},
                              {"format", index.format},
                              {"name", index.name},
                              {"version", index.version},
                              {"dataset", index.dataset},
                              {"channels", index.channels},
                              {"height", index.height},
                              {"width", index.width},
                              {"classes", index.classes},
                              {"cluster_rows", index.cluster_rows},
                              {"experts", index.experts},
                              {"files", FilesToJson(index.files)}};
  if (index.latent) json["latent"] = true;
  if (index.self_conditioning) json["self_conditioning"] = true;
  return ToText(json);
}

absl::StatusOr<ModelIndex> ParseModelIndex(std::string_view json, std::string_view file_name) {
  ATOLL_ASSIGN_OR_RETURN(const nlohmann::json object, ParseJsonObject(json, file_name));
  JsonReader reader(object, file_name);
  ModelIndex index;
  reader.Read("format", &index.format);
  ATOLL_RETURN_IF_ERROR(reader.status());
  ATOLL_RETURN_IF_ERROR(CheckFormat(index.format, kModelFormat, file_name));
  reader.Read("name", &index.name);
  reader.Read("version", &index.version);
  reader.Read("dataset", &index.dataset);
  reader.Read("channels", &index.channels, 1);
  reader.Read("height", &index.height, 1);
  reader.Read("width", &index.width, 1);
  if (object.contains("latent")) reader.Read("latent", &index.latent);
  if (object.contains("self_conditioning")) reader.Read("self_conditioning", &index.self_conditioning);
  reader.Read("classes", &index.classes);
  reader.Read("cluster_rows", &index.cluster_rows);
  reader.Read("experts", &index.experts, 1);
  ReadFiles(&reader, "files", &index.files);
  ATOLL_RETURN_IF_ERROR(reader.status());
  if (index.cluster_rows.size() != static_cast<size_t>(index.experts)) {
    return MakeError(absl::StatusCode::kDataLoss, "FILE_MALFORMED",
                     fmt::format("{}: cluster_rows: expected one number for each of {} experts, found {}", file_name,
                                 index.experts, index.cluster_rows.size()));
  }
  return index;
}

std::string ModelFolderUri(const BlobStore& store, std::string_view name, std::string_view version) {
  return store.UriOf(fmt::format("models/{}/{}", name, version));
}

}  // namespace atl::storage
