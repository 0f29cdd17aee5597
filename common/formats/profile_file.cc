#include "common/formats/profile_file.h"

#include <algorithm>
#include <limits>
#include <utility>
#include <vector>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/formats/file_list.h"
#include "common/storage/json_reader.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace atl::storage {
namespace {

using nlohmann::ordered_json;
using planner::FrozenComponentProfile;
using planner::FrozenLayerProfile;
using planner::LayerProfile;
using planner::Profile;

ordered_json LayerToJson(const LayerProfile& layer) {
  ordered_json json;
  for (const planner::LayerField& field : planner::kLayerFields) json[field.name] = layer.*field.value;
  return json;
}

ordered_json FrozenLayerToJson(const FrozenLayerProfile& layer) {
  ordered_json sizes = ordered_json::array();
  for (const auto& [samples, seconds] : layer.seconds) sizes.push_back({{"samples", samples}, {"seconds", seconds}});
  return {{"sizes", sizes},
          {"input_bytes", layer.input_bytes},
          {"output_bytes", layer.output_bytes},
          {"parameter_bytes", layer.parameter_bytes}};
}

void ReadLayer(JsonReader& reader, LayerProfile* layer) {
  for (const planner::LayerField& field : planner::kLayerFields) reader.Read(field.name, &(layer->*field.value));
}

void ReadMicroBatches(JsonReader* reader, Profile* profile) {
  std::vector<std::pair<int32_t, std::vector<LayerProfile>>> sizes;
  reader->ReadObjects("micro_batches", &sizes, [&](JsonReader& size, auto* out) {
    size.Read("samples", &out->first, 1);
    size.ReadObjects("layers", &out->second, ReadLayer);
    if (size.status().ok() && !profile->layers.emplace(out->first, std::move(out->second)).second) {
      size.Fail("samples", "each size once", out->first);
    }
  });
}

void ReadFrozenLayer(JsonReader& reader, FrozenLayerProfile* layer) {
  std::vector<std::pair<int32_t, double>> sizes;
  reader.ReadObjects("sizes", &sizes, [&](JsonReader& size, auto* out) {
    size.Read("samples", &out->first, 1);
    size.Read("seconds", &out->second);
    if (size.status().ok() && !layer->seconds.emplace(*out).second) size.Fail("samples", "each once", out->first);
  });
  reader.Read("input_bytes", &layer->input_bytes);
  reader.Read("output_bytes", &layer->output_bytes);
  reader.Read("parameter_bytes", &layer->parameter_bytes);
}

void ReadFrozen(JsonReader* reader, Profile* profile) {
  reader->ReadObjects("frozen", &profile->frozen, [&](JsonReader& component, FrozenComponentProfile* out) {
    component.Read("name", &out->name);
    std::vector<int64_t> reads;
    component.Read("reads", &reads);
    for (const int64_t read : reads) {
      // A clamped value still fails the check that an index is below its component's.
      out->reads.push_back(static_cast<int32_t>(std::min<int64_t>(read, std::numeric_limits<int32_t>::max())));
    }
    component.ReadObjects("layers", &out->layers, ReadFrozenLayer);
  });
}

}  // namespace

std::string ToJson(const Profile& profile) {
  ordered_json sizes = ordered_json::array();
  for (const auto& [samples, layers] : profile.layers) {
    ordered_json list = ordered_json::array();
    for (const LayerProfile& layer : layers) list.push_back(LayerToJson(layer));
    sizes.push_back({{"samples", samples}, {"layers", list}});
  }
  ordered_json frozen = ordered_json::array();
  for (const FrozenComponentProfile& component : profile.frozen) {
    ordered_json layers = ordered_json::array();
    for (const FrozenLayerProfile& layer : component.layers) layers.push_back(FrozenLayerToJson(layer));
    frozen.push_back({{"name", component.name}, {"reads", component.reads}, {"layers", layers}});
  }
  return ToText({{"format", kProfileFormat},
                 {"key", profile.key},
                 {"parameter_bytes", profile.parameter_bytes},
                 {"micro_batches", sizes},
                 {"frozen", frozen},
                 {"optimizer_seconds_per_byte", profile.optimizer_seconds_per_byte},
                 {"transfer_latency_seconds", profile.transfer_latency_seconds},
                 {"transfer_bytes_per_second", profile.transfer_bytes_per_second},
                 {"rank_slowdown", profile.rank_slowdown}});
}

absl::StatusOr<Profile> ParseProfile(std::string_view json, std::string_view file_name) {
  ATOLL_ASSIGN_OR_RETURN(const nlohmann::json object, ParseSealedObject(json, file_name));
  JsonReader reader(object, file_name);
  int32_t format = 0;
  reader.Read("format", &format);
  ATOLL_RETURN_IF_ERROR(reader.status());
  ATOLL_RETURN_IF_ERROR(CheckFormat(format, kProfileFormat, file_name));
  Profile profile;
  reader.Read("key", &profile.key);
  reader.Read("parameter_bytes", &profile.parameter_bytes);
  ReadMicroBatches(&reader, &profile);
  ReadFrozen(&reader, &profile);
  reader.Read("optimizer_seconds_per_byte", &profile.optimizer_seconds_per_byte);
  reader.Read("transfer_latency_seconds", &profile.transfer_latency_seconds);
  reader.Read("transfer_bytes_per_second", &profile.transfer_bytes_per_second);
  reader.Read("rank_slowdown", &profile.rank_slowdown);
  ATOLL_RETURN_IF_ERROR(reader.status());
  if (const absl::Status checked = planner::CheckProfile(profile); !checked.ok()) {
    return MakeError(absl::StatusCode::kDataLoss, "FILE_MALFORMED",
                     fmt::format("{}: {}", file_name, std::string(checked.message())));
  }
  return profile;
}

}  // namespace atl::storage
