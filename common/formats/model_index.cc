#include "common/formats/model_index.h"

#include <algorithm>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/formats/file_list.h"
#include "common/storage/json_reader.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace atl::storage {
namespace {

nlohmann::ordered_json SamplingToJson(const VersionSampling& sampling) {
  nlohmann::ordered_json json{{"mode", sampling.mode}};
  if (sampling.top_k != 0) json["top_k"] = sampling.top_k;
  if (sampling.threshold != 0) json["threshold"] = sampling.threshold;
  if (sampling.nucleus_p != 0) json["nucleus_p"] = sampling.nucleus_p;
  if (sampling.temperature != 0) json["temperature"] = sampling.temperature;
  if (!sampling.solver.empty()) json["solver"] = sampling.solver;
  if (sampling.steps != 0) json["steps"] = sampling.steps;
  if (sampling.guidance.has_value()) json["guidance"] = *sampling.guidance;
  nlohmann::ordered_json measured = nlohmann::ordered_json::array();
  for (const MeasuredMode& mode : sampling.measured) {
    measured.push_back({{"mode", mode.mode}, {"velocity_error", mode.velocity_error}, {"experts", mode.experts}});
  }
  json["measured"] = std::move(measured);
  return json;
}

// Bounds as the router's own of a request, so that a version cannot make every request fail.
VersionSampling ReadSampling(const nlohmann::json& object, int32_t experts, JsonReader* reader) {
  VersionSampling sampling;
  const auto number = [&](const char* name, double most, double* out) {
    if (!object.contains(name)) return;
    reader->Read(name, out);
    if (!(*out > 0 && *out <= most)) reader->Fail(name, fmt::format("above 0 and at most {}", most), object[name]);
  };
  reader->Read("mode", &sampling.mode);
  if (object.contains("top_k")) reader->Read("top_k", &sampling.top_k, 1);
  if (sampling.top_k > experts) reader->Fail("top_k", fmt::format("at most {}, the experts", experts), object["top_k"]);
  number("threshold", 1, &sampling.threshold);
  number("nucleus_p", 1, &sampling.nucleus_p);
  number("temperature", 100, &sampling.temperature);
  if (sampling.temperature != 0 && sampling.temperature < 0.01) {
    reader->Fail("temperature", "at least 0.01", object["temperature"]);
  }
  const bool known = sampling.mode == "full" || (sampling.mode == "top_k" && sampling.top_k > 0) ||
                     (sampling.mode == "threshold" && sampling.threshold > 0) ||
                     (sampling.mode == "nucleus" && sampling.nucleus_p > 0);
  if (!known && object.contains("mode")) {
    reader->Fail("mode", "'full', 'top_k' with top_k, 'threshold' with threshold or 'nucleus' with nucleus_p",
                 object["mode"]);
  }
  if (object.contains("solver")) {
    reader->Read("solver", &sampling.solver);
    if (sampling.solver != "euler" && sampling.solver != "heun" && sampling.solver != "multistep") {
      reader->Fail("solver", "'euler', 'heun' or 'multistep'", object["solver"]);
    }
  }
  if (object.contains("steps")) reader->Read("steps", &sampling.steps, 1);
  if (object.contains("guidance")) {
    double guidance = 0;
    reader->Read("guidance", &guidance);
    if (!(guidance >= 0 && guidance <= 100)) reader->Fail("guidance", "0 to 100", object["guidance"]);
    sampling.guidance = guidance;
  }
  if (object.contains("measured")) {
    reader->ReadObjects("measured", &sampling.measured, [](JsonReader& element, MeasuredMode* mode) {
      element.Read("mode", &mode->mode);
      element.Read("velocity_error", &mode->velocity_error);
      element.Read("experts", &mode->experts);
    });
  }
  return sampling;
}

}  // namespace

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
  if (index.sampling.has_value()) json["sampling"] = SamplingToJson(*index.sampling);
  if (!index.probe.empty()) json["probe"] = index.probe;
  return ToText(json);
}

absl::StatusOr<ModelIndex> ParseModelIndex(std::string_view json, std::string_view file_name) {
  ATOLL_ASSIGN_OR_RETURN(const nlohmann::json object, ParseSealedObject(json, file_name));
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
  if (object.contains("probe")) reader.Read("probe", &index.probe);
  ReadFiles(&reader, "files", &index.files);
  ATOLL_RETURN_IF_ERROR(reader.status());
  if (object.contains("sampling")) {
    if (!object["sampling"].is_object()) reader.Fail("sampling", "an object", object["sampling"]);
    ATOLL_RETURN_IF_ERROR(reader.status());
    JsonReader sampling(object["sampling"], file_name, "sampling.");
    index.sampling = ReadSampling(object["sampling"], index.experts, &sampling);
    ATOLL_RETURN_IF_ERROR(sampling.status());
  }
  const bool listed = std::any_of(index.files.begin(), index.files.end(),
                                  [&](const CheckpointFile& file) { return file.name == index.probe; });
  if (!index.probe.empty() && !listed) {
    reader.Fail("probe", "one of files", object["probe"]);
    return reader.status();
  }
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
