#include "client/sampling/sample_set.h"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <iterator>
#include <string_view>
#include <vector>

#include "common/base/errors.h"
#include "common/base/files.h"
#include "common/base/status_macros.h"
#include "common/dataset/image_codec.h"
#include "common/storage/safetensors.h"
#include "fmt/format.h"
#include "google/protobuf/util/json_util.h"

namespace atl::client {
namespace {

constexpr int kSampleSetFormat = 1;
constexpr char kIndexFile[] = "samples.json";
constexpr char kTensorFile[] = "samples.safetensors";

std::string ImageFile(size_t index, const DrawnImage& image) {
  return image.label < 0 ? fmt::format("{:05}.png", index) : fmt::format("{:05}-class{}.png", index, image.label);
}

absl::Status Malformed(const std::string& path, std::string_view what) {
  return MakeError(absl::StatusCode::kDataLoss, "SAMPLES_MALFORMED", fmt::format("{}: {}", path, what));
}

// By its name: "00012.png", "00012-class3.png", the tensors, or the index.
bool IsOfASet(std::string_view name) {
  if (name == kIndexFile || name == kTensorFile) return true;
  const auto skip_digits = [&name] {
    const size_t digits = std::min(name.find_first_not_of("0123456789"), name.size());
    name.remove_prefix(digits);
    return digits;
  };
  if (skip_digits() < 5) return false;
  constexpr std::string_view kClass = "-class";
  if (name.starts_with(kClass)) {
    name.remove_prefix(kClass.size());
    if (skip_digits() == 0) return false;
  }
  return name == ".png";
}

// Deletes the set's files and keeps all others; deletes the folder if it is then empty.
void RemoveSet(const std::string& folder) {
  std::error_code error;
  std::vector<std::filesystem::path> files;
  for (std::filesystem::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    if (IsOfASet(entry->path().filename().string())) files.push_back(entry->path());
  }
  for (const std::filesystem::path& file : files) std::filesystem::remove(file, error);
  rmdir(folder.c_str());  // refuses one that is not empty, and a link to one
}

bool HasSet(const std::string& folder) {
  std::error_code error;
  return std::filesystem::exists(folder + "/" + kIndexFile, error);
}

// Calls `visit` with every figure of a routing and its name in JSON.
template <typename RoutingType, typename Visit>
void VisitFields(RoutingType& routing, Visit visit) {
  visit("chosen", routing.chosen);
  visit("weight", routing.weight);
  visit("image_steps", routing.image_steps);
  visit("mean_entropy", routing.mean_entropy);
  visit("switches", routing.switches);
  visit("close_calls", routing.close_calls);
  visit("renormalised_image_steps", routing.renormalised_image_steps);
  visit("lost_experts", routing.lost_experts);
  visit("failovers", routing.failovers);
}

std::string SettingsJson(const SampleSet& set) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  std::string json;
  return google::protobuf::util::MessageToJsonString(set.settings, &json, options).ok() ? json : "{}";
}

nlohmann::ordered_json IndexOf(const SampleSet& set) {
  nlohmann::ordered_json json = {{"format", kSampleSetFormat}};
  json.update(SummaryJson(set));
  json["raw"] = set.raw;
  if (!set.init.empty()) json["init"] = set.init;
  json["routing"] = RoutingJson(set.routing);
  json["images"] = nlohmann::ordered_json::array();
  for (size_t i = 0; i < set.images.size(); ++i) {
    const DrawnImage& image = set.images[i];
    nlohmann::ordered_json entry = {{"class", image.label},
                                    {"seed", image.seed},
                                    {"channels", image.channels},
                                    {"height", image.height},
                                    {"width", image.width}};
    if (!set.raw) entry["file"] = ImageFile(i, image);
    json["images"].push_back(std::move(entry));
  }
  return json;
}

absl::Status WriteTensors(const std::string& folder, const SampleSet& set) {
  std::string bytes;
  for (const DrawnImage& image : set.images) bytes += image.bytes;
  std::vector<storage::TensorView> tensors;
  if (!set.images.empty()) {
    const DrawnImage& first = set.images.front();
    tensors.push_back({.name = "images",
                       .dtype = "F32",
                       .shape = {static_cast<int64_t>(set.images.size()), first.channels, first.height, first.width},
                       .bytes = bytes});
  }
  ATOLL_ASSIGN_OR_RETURN(const std::string file,
                         storage::SerializeSafetensors(std::move(tensors), {{"range", "-1,1"}}));
  return WriteFile(folder + "/" + kTensorFile, file);
}

absl::Status WriteFiles(const std::string& folder, const SampleSet& set) {
  if (set.raw) {
    ATOLL_RETURN_IF_ERROR(WriteTensors(folder, set));
  } else {
    for (size_t i = 0; i < set.images.size(); ++i) {
      ATOLL_RETURN_IF_ERROR(WriteFile(folder + "/" + ImageFile(i, set.images[i]), set.images[i].bytes));
    }
  }
  return WriteFile(folder + "/" + kIndexFile, IndexOf(set).dump(1) + "\n");
}

absl::Status ReadTensors(const std::string& folder, SampleSet* set) {
  const std::string path = folder + "/" + kTensorFile;
  ATOLL_ASSIGN_OR_RETURN(const std::string bytes, ReadFile(path));
  ATOLL_ASSIGN_OR_RETURN(const storage::Safetensors file, storage::ParseSafetensors(bytes, path));
  ATOLL_ASSIGN_OR_RETURN(const storage::TensorView images, file.Find("images"));
  const size_t each = set->images.empty() ? 0 : images.bytes.size() / set->images.size();
  for (size_t i = 0; i < set->images.size(); ++i) set->images[i].bytes = images.bytes.substr(i * each, each);
  return absl::OkStatus();
}

void Parse(const nlohmann::json& json, SampleSet* set, std::vector<std::string>* files) {
  set->model = json.at("model");
  set->version = json.at("version");
  set->mode = json.at("mode");
  set->raw = json.at("raw");
  set->sample_seconds = json.at("sample_seconds");
  set->queue_seconds = json.at("queue_seconds");
  set->first_image_seconds = json.at("first_image_seconds");
  set->fingerprint = json.at("fingerprint");
  VisitFields(set->routing, [&](const char* name, auto& value) { json.at("routing").at(name).get_to(value); });
  for (const nlohmann::json& entry : json.at("images")) {
    set->images.push_back({.label = entry.at("class"),
                           .seed = entry.at("seed"),
                           .channels = entry.at("channels"),
                           .height = entry.at("height"),
                           .width = entry.at("width")});
    if (!set->raw) files->push_back(entry.at("file"));
  }
}

}  // namespace

void Merge(const Routing& more, Routing* routing) {
  routing->chosen.resize(std::max(routing->chosen.size(), more.chosen.size()));
  routing->weight.resize(std::max(routing->weight.size(), more.weight.size()));
  for (size_t i = 0; i < more.chosen.size(); ++i) routing->chosen[i] += more.chosen[i];
  for (size_t i = 0; i < more.weight.size(); ++i) routing->weight[i] += more.weight[i];
  const int64_t steps = routing->image_steps + more.image_steps;
  if (steps > 0) {
    routing->mean_entropy = (routing->mean_entropy * static_cast<double>(routing->image_steps) +
                             more.mean_entropy * static_cast<double>(more.image_steps)) /
                            static_cast<double>(steps);
  }
  routing->image_steps = steps;
  routing->switches += more.switches;
  routing->close_calls += more.close_calls;
  routing->renormalised_image_steps += more.renormalised_image_steps;
  routing->failovers += more.failovers;
  std::vector<int32_t> lost;
  std::set_union(routing->lost_experts.begin(), routing->lost_experts.end(), more.lost_experts.begin(),
                 more.lost_experts.end(), std::back_inserter(lost));
  routing->lost_experts = std::move(lost);
}

nlohmann::ordered_json RoutingJson(const Routing& routing) {
  nlohmann::ordered_json json;
  VisitFields(routing, [&](const char* name, const auto& value) { json[name] = value; });
  return json;
}

nlohmann::ordered_json SummaryJson(const SampleSet& set) {
  return {{"model", set.model},
          {"version", set.version},
          {"mode", set.mode},
          {"settings", nlohmann::ordered_json::parse(SettingsJson(set))},
          {"sample_seconds", set.sample_seconds},
          {"queue_seconds", set.queue_seconds},
          {"first_image_seconds", set.first_image_seconds},
          {"fingerprint", set.fingerprint}};
}

absl::Status CheckSampleFolder(const std::string& folder) {
  std::error_code error;
  if (HasSet(folder) || !std::filesystem::exists(folder, error) || std::filesystem::is_empty(folder, error)) {
    return absl::OkStatus();
  }
  return MakeError(
      absl::StatusCode::kFailedPrecondition, "FOLDER_NOT_EMPTY",
      fmt::format("expected an empty folder or one with earlier samples, found {} with other files", folder));
}

absl::Status WriteSampleSet(const std::string& folder, const SampleSet& set) {
  ATOLL_RETURN_IF_ERROR(CheckSampleFolder(folder));
  if (HasSet(folder)) RemoveSet(folder);
  ATOLL_RETURN_IF_ERROR(MakeFolders(folder));
  const absl::Status written = WriteFiles(folder, set);
  if (!written.ok()) RemoveSet(folder);
  return written;
}

absl::StatusOr<SampleSet> ReadSampleSet(const std::string& folder) {
  const std::string path = folder + "/" + kIndexFile;
  ATOLL_ASSIGN_OR_RETURN(const std::string text, ReadFile(path));
  SampleSet set;
  std::vector<std::string> files;
  try {
    Parse(nlohmann::json::parse(text), &set, &files);
  } catch (const nlohmann::json::exception& error) {
    return Malformed(path, fmt::format("expected the index of samples: {}", error.what()));
  }
  if (set.raw) {
    ATOLL_RETURN_IF_ERROR(ReadTensors(folder, &set));
    return set;
  }
  for (size_t i = 0; i < files.size(); ++i) {
    if (files[i].find('/') != std::string::npos)
      return Malformed(path, fmt::format("expected a file name, found '{}'", files[i]));
    ATOLL_ASSIGN_OR_RETURN(set.images[i].bytes, ReadFile(folder + "/" + files[i]));
  }
  return set;
}

absl::StatusOr<std::vector<float>> ScaledPixels(const SampleSet& set) {
  std::vector<float> values;
  for (size_t i = 0; i < set.images.size(); ++i) {
    const DrawnImage& image = set.images[i];
    const size_t before = values.size();
    const size_t plane = static_cast<size_t>(image.height) * static_cast<size_t>(image.width);
    const size_t count = plane * static_cast<size_t>(image.channels);
    if (set.raw) {
      if (image.bytes.size() != count * sizeof(float)) {
        return Malformed(kTensorFile, fmt::format("image {}: expected {} numbers, found {}", i, count,
                                                  image.bytes.size() / sizeof(float)));
      }
      std::vector<float> planes(count);
      std::memcpy(planes.data(), image.bytes.data(), image.bytes.size());
      for (size_t p = 0; p < plane; ++p) {
        for (size_t c = 0; c < static_cast<size_t>(image.channels); ++c) values.push_back(planes[c * plane + p]);
      }
    } else {
      ATOLL_ASSIGN_OR_RETURN(const dataset::Image decoded,
                             dataset::DecodeImage(image.bytes, fmt::format("image {}", i)));
      dataset::AppendScaled(decoded, &values);
    }
    if (i > 0 && values.size() - before != values.size() / (i + 1)) {
      return MakeError(absl::StatusCode::kInvalidArgument, "SHAPES_DIFFER",
                       fmt::format("image {} has another size than those before", i));
    }
  }
  return values;
}

}  // namespace atl::client
