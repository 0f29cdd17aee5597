#include <cmath>
#include <string>

#include "common/base/errors.h"
#include "common/model/dit.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace atl::model {
namespace {

constexpr char kArchitecture[] = "AtollDit";

constexpr char kSelfConditioning[] = "self_conditioning";

// Calls v("key", field) for every field that is always there; ToJson and ParseDitConfig share it.
template <typename V, typename C>
void Visit(V&& v, C& config) {
  v("channels", config.channels);
  v("height", config.height);
  v("width_pixels", config.width_pixels);
  v("classes", config.classes);
  v("patch", config.patch);
  v("width", config.width);
  v("depth", config.depth);
  v("heads", config.heads);
  v("mlp_ratio", config.mlp_ratio);
  v("outputs", config.outputs);
  v("compute", config.compute);
}

struct Field {
  const char* name;
  int64_t value;
  int64_t least;
  int64_t most;
};

absl::Status Invalid(std::string_view field, std::string_view message) {
  return FieldError(field, "MODEL_CONFIG_INVALID", message);
}

}  // namespace

std::string ToJson(const DitConfig& config) {
  nlohmann::ordered_json json;
  json["architecture"] = kArchitecture;
  Visit([&json](const char* key, const auto& value) { json[key] = value; }, config);
  // Written only for self-conditioned models, so that the text of other models does not change.
  if (config.self_conditioning) json[kSelfConditioning] = true;
  return json.dump(2) + "\n";
}

absl::StatusOr<DitConfig> ParseDitConfig(std::string_view json_text, std::string_view file_name) {
  const auto damaged = [file_name](const std::string& message) {
    return MakeError(absl::StatusCode::kDataLoss, "MODEL_CONFIG_DAMAGED", fmt::format("{}: {}", file_name, message));
  };
  DitConfig config;
  try {
    const nlohmann::json json = nlohmann::json::parse(json_text);
    if (!json.is_object()) return damaged("expected a JSON object");
    if (json.value("architecture", "") != kArchitecture) {
      return damaged(fmt::format("expected architecture \"{}\"; found {}", kArchitecture,
                                 json.contains("architecture") ? json["architecture"].dump() : "none"));
    }
    Visit([&json](const char* key, auto& value) { json.at(key).get_to(value); }, config);
    if (json.contains(kSelfConditioning)) json.at(kSelfConditioning).get_to(config.self_conditioning);
  } catch (const nlohmann::json::exception& e) {
    return damaged(e.what());
  }
  if (const absl::Status valid = Validate(config); !valid.ok()) return damaged(std::string(valid.message()));
  return config;
}

absl::Status Validate(const DitConfig& config) {
  // The upper bounds keep sizes computed from a damaged file far from overflow.
  const Field fields[] = {{"channels", config.channels, 1, 4096},
                          {"height", config.height, 1, 65536},
                          {"width_pixels", config.width_pixels, 1, 65536},
                          {"classes", config.classes, 0, 10'000'000},
                          {"patch", config.patch, 1, 1024},
                          {"width", config.width, 4, 65536},
                          {"depth", config.depth, 1, 4096},
                          {"heads", config.heads, 1, 4096},
                          {"outputs", config.outputs, 0, 1'000'000}};
  for (const Field& field : fields) {
    if (field.value < field.least || field.value > field.most) {
      return Invalid(field.name, fmt::format("expected {} to {}; found {}", field.least, field.most, field.value));
    }
  }
  if (config.height % config.patch != 0 || config.width_pixels % config.patch != 0) {
    return Invalid("patch", fmt::format("expected a divisor of the image's {} x {}; found {}", config.height,
                                        config.width_pixels, config.patch));
  }
  if (config.width % 4 != 0) return Invalid("width", fmt::format("expected a multiple of 4; found {}", config.width));
  if (config.width % config.heads != 0) {
    return Invalid("heads", fmt::format("expected a divisor of the width {}; found {}", config.width, config.heads));
  }
  if (!(config.mlp_ratio > 0 && config.mlp_ratio <= 64) ||
      std::llround(config.mlp_ratio * static_cast<double>(config.width)) < 1) {
    return Invalid("mlp_ratio", fmt::format("expected above 0 and at most 64; found {}", config.mlp_ratio));
  }
  if (config.self_conditioning && config.outputs > 0) {
    return Invalid(kSelfConditioning, "expected a model that predicts a velocity; found one with outputs");
  }
  if (config.compute != "float32" && config.compute != "bfloat16") {
    return Invalid("compute", fmt::format("expected float32 or bfloat16; found '{}'", config.compute));
  }
  return absl::OkStatus();
}

}  // namespace atl::model
