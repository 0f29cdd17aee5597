#include <set>

#include "common/base/counter_random.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/dataset/dataset.h"
#include "common/formats/file_list.h"
#include "common/storage/json_reader.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace atl::dataset {
namespace {

using storage::JsonReader;

constexpr int64_t kMaxManifestBytes = int64_t{256} << 20;

void ReadShards(JsonReader* reader, std::vector<Shard>* shards) {
  std::set<std::string> uris;
  reader->ReadObjects("shards", shards, [&uris](JsonReader& element, Shard* shard) {
    element.Read("uri", &shard->uri);
    element.Read("split", &shard->split);
    element.Read("rows", &shard->rows, 1);
    element.Read("bytes", &shard->bytes);
    element.Read("sha256", &shard->sha256);
    if (!element.status().ok()) return;
    if (shard->split != "train" && shard->split != "held_out") {
      element.Fail("split", "\"train\" or \"held_out\"", shard->split);
    }
    if (!storage::IsSha256Hex(shard->sha256)) element.Fail("sha256", "64 lower-case hex digits", shard->sha256);
    if (!uris.insert(shard->uri).second) element.Fail("uri", "each shard once", shard->uri);
  });
}

}  // namespace

int64_t DatasetManifest::rows(std::string_view split) const {
  int64_t total = 0;
  for (const Shard& shard : shards) {
    if (shard.split == split) total += shard.rows;
  }
  return total;
}

std::vector<Shard> ShardsOf(const DatasetManifest& manifest, std::string_view split) {
  std::vector<Shard> shards;
  for (const Shard& shard : manifest.shards) {
    if (shard.split == split) shards.push_back(shard);
  }
  return shards;
}

uint64_t SampleId(const Image& image, int32_t label) {
  std::string bytes(image.pixels.begin(), image.pixels.end());
  for (int shift = 0; shift < 32; shift += 8) bytes.push_back(static_cast<char>(static_cast<uint32_t>(label) >> shift));
  return storage::Sha256Prefix64(bytes);
}

bool IsHeldOut(uint64_t sample_id, double held_out_fraction) {
  return CounterRandom(0, RandomPurpose::kHeldOut, 0, sample_id).Uniform() < held_out_fraction;
}

std::string DatasetManifestUri(const storage::BlobStore& store, std::string_view name) {
  return store.UriOf(fmt::format("datasets/{}/manifest.json", name));
}

std::string ToJson(const DatasetManifest& manifest) {
  using Json = nlohmann::ordered_json;
  Json shards = Json::array();
  for (const Shard& shard : manifest.shards) {
    shards.push_back({{"uri", shard.uri},
                      {"split", shard.split},
                      {"rows", shard.rows},
                      {"bytes", shard.bytes},
                      {"sha256", shard.sha256}});
  }
  Json skipped = Json::array();
  for (const Skipped& row : manifest.skipped) skipped.push_back({{"where", row.where}, {"reason", row.reason}});
  return storage::ToText({{"format", manifest.format},
                          {"name", manifest.name},
                          {"channels", manifest.channels},
                          {"height", manifest.height},
                          {"width", manifest.width},
                          {"classes", manifest.classes},
                          {"columns", manifest.columns},
                          {"held_out_fraction", manifest.held_out_fraction},
                          {"shards", shards},
                          {"skipped_count", manifest.skipped_count},
                          {"skipped", skipped},
                          {"source", manifest.source}});
}

absl::StatusOr<DatasetManifest> ParseDatasetManifest(std::string_view json, std::string_view file_name) {
  ATOLL_ASSIGN_OR_RETURN(const nlohmann::json object, storage::ParseSealedObject(json, file_name));
  JsonReader reader(object, file_name);
  DatasetManifest manifest;
  reader.Read("format", &manifest.format);
  ATOLL_RETURN_IF_ERROR(reader.status());
  ATOLL_RETURN_IF_ERROR(storage::CheckFormat(manifest.format, kDatasetFormat, file_name));
  reader.Read("name", &manifest.name);
  reader.Read("channels", &manifest.channels, 1);
  reader.Read("height", &manifest.height, 1);
  reader.Read("width", &manifest.width, 1);
  reader.Read("classes", &manifest.classes);
  reader.Read("columns", &manifest.columns);
  reader.Read("held_out_fraction", &manifest.held_out_fraction);
  ReadShards(&reader, &manifest.shards);
  reader.Read("skipped_count", &manifest.skipped_count);
  reader.ReadObjects("skipped", &manifest.skipped, [](JsonReader& element, Skipped* row) {
    element.Read("where", &row->where);
    element.Read("reason", &row->reason);
  });
  reader.Read("source", &manifest.source);
  ATOLL_RETURN_IF_ERROR(reader.status());
  if (!(manifest.held_out_fraction >= 0 && manifest.held_out_fraction < 1)) {
    reader.Fail("held_out_fraction", "a number from 0 to below 1", manifest.held_out_fraction);
  }
  int64_t rows = 0;
  for (const Shard& shard : manifest.shards) {
    if (__builtin_add_overflow(rows, shard.rows, &rows)) reader.Fail("shards", "fewer than 2^63 rows", shard.rows);
  }
  ATOLL_RETURN_IF_ERROR(reader.status());
  return manifest;
}

absl::StatusOr<DatasetManifest> ReadDatasetManifest(storage::BlobStore* store, std::string_view manifest_uri) {
  ATOLL_ASSIGN_OR_RETURN(const std::string text, store->Read(manifest_uri, kMaxManifestBytes));
  return ParseDatasetManifest(text, manifest_uri);
}

}  // namespace atl::dataset
