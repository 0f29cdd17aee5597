#include "router/rest/rest_wire.h"

#include <algorithm>
#include <charconv>
#include <limits>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/storage/json_reader.h"
#include "common/wire/status.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "router/service/sample_wire.h"

namespace atl::router {
namespace {

namespace pb = atlpb::sample::v1;
using nlohmann::json;
using nlohmann::ordered_json;

constexpr int32_t kMost = std::numeric_limits<int32_t>::max();
constexpr double kLongestTimeoutSeconds = 86'400;
constexpr int32_t kMostPartialImages = 3;

std::string Shown(const json& value) {
  constexpr size_t kLongest = 60;
  if (value.is_object()) return "an object";
  if (value.is_array()) return "a list";
  std::string text = value.dump(-1, ' ', /*ensure_ascii=*/true, json::error_handler_t::replace);
  return text.size() <= kLongest ? text : text.substr(0, kLongest) + "...";
}

// Takes fields out of one JSON object; what is left at the end was not known. A null field is as if it was not there.
// Keeps the first error.
class BodyReader {
 public:
  explicit BodyReader(json* body) : body_(*body) {}

  bool Take(const char* name, std::string* out) { return TakeAs(name, "a text", &json::is_string, out); }
  bool Take(const char* name, bool* out) { return TakeAs(name, "true or false", &json::is_boolean, out); }
  bool Take(const char* name, double* out) { return TakeAs(name, "a number", &json::is_number, out); }
  bool Take(const char* name, uint64_t* out) {
    return TakeAs(name, "a whole number from 0 to 2^64 - 1", &json::is_number_unsigned, out);
  }
  bool Take(const char* name, int32_t* out, int32_t least = std::numeric_limits<int32_t>::min(), int32_t most = kMost) {
    const std::optional<json> value = TakeValue(name);
    if (!value) return false;
    // An unsigned number above the largest int64_t would turn negative.
    const bool fits = value->is_number_integer() &&
                      !(value->is_number_unsigned() && value->get<uint64_t>() > static_cast<uint64_t>(kMost)) &&
                      value->get<int64_t>() >= least && value->get<int64_t>() <= most;
    if (!fits) {
      const std::string expected = fmt::format("a whole number from {} to {}", least, most);
      return Fail(name, expected, *value, value->is_number() ? "VALUE_OUT_OF_RANGE" : "WRONG_TYPE");
    }
    *out = value->get<int32_t>();
    return true;
  }
  template <typename F>
  void TakeList(const char* name, std::string_view expected, F take_element) {
    const std::optional<json> value = TakeValue(name);
    if (!value) return;
    if (!value->is_array()) {
      Fail(name, "a list", *value);
      return;
    }
    for (size_t i = 0; i < value->size() && status_.ok(); ++i) {
      if (!take_element((*value)[i])) Fail(fmt::format("{}[{}]", name, i), expected, (*value)[i]);
    }
  }
  // A text out of a few; the index of the one found, or of the first when the field is absent.
  size_t TakeChoice(const char* name, std::span<const std::string_view> choices, std::string_view reason) {
    std::string value;
    if (!Take(name, &value)) return 0;
    const auto found = std::find(choices.begin(), choices.end(), value);
    if (found != choices.end()) return found - choices.begin();
    SetError(FieldError(name, reason, fmt::format("expected {}, found {}", fmt::join(choices, ", "), Shown(value))));
    return 0;
  }
  // Checks that what would change nothing here at least is a text.
  void Ignore(const char* name) {
    std::string ignored;
    Take(name, &ignored);
  }
  // Returns OK, the first error, or an error that names a field that was not read.
  absl::Status Finish() const {
    if (!status_.ok() || body_.empty()) return status_;
    const std::string name = Shown(json(body_.begin().key()));
    return MakeErrorWithField(absl::StatusCode::kInvalidArgument, "UNKNOWN_FIELD", body_.begin().key().substr(0, 64),
                              fmt::format("expected fields of docs/rest.md alone, found {}", name));
  }
  bool Fail(const std::string& name, std::string_view expected, const json& found,
            std::string_view reason = "WRONG_TYPE") {
    SetError(FieldError(name, reason, fmt::format("expected {}, found {}", expected, Shown(found))));
    return false;
  }
  void SetError(absl::Status status) {
    if (status_.ok()) status_ = std::move(status);
  }

 private:
  template <typename T>
  bool TakeAs(const char* name, std::string_view expected, bool (json::*fits)() const noexcept, T* out) {
    const std::optional<json> value = TakeValue(name);
    if (!value) return false;
    if (!((*value).*fits)()) return Fail(name, expected, *value);
    *out = value->get<T>();
    return true;
  }
  std::optional<json> TakeValue(const char* name) {
    const auto found = body_.find(name);
    if (found == body_.end() || !status_.ok()) return std::nullopt;
    json value = std::move(*found);
    body_.erase(found);
    if (value.is_null()) return std::nullopt;
    return value;
  }

  json& body_;
  absl::Status status_;
};

// The names of SampleRequest.Solver, by number.
constexpr std::string_view kSolvers[] = {"default", "euler", "heun", "multistep"};
constexpr std::string_view kFormats[] = {"png", "raw"};
constexpr std::string_view kResponseFormats[] = {"b64_json"};
constexpr std::string_view kBackgrounds[] = {"auto", "opaque"};

// Takes the fields of OpenAI's endpoint that tools send always.
void TakeStandardFields(BodyReader* reader, int32_t max_images, ImagesRequest* request) {
  std::string model;
  if (reader->Take("model", &model)) request->sample.set_model(model);
  reader->Take("n", &request->images, 1, max_images);
  if (reader->Take("size", &request->size) && request->size == "auto") request->size.clear();
  reader->TakeChoice("response_format", kResponseFormats, "UNKNOWN_FORMAT");
  const bool raw = reader->TakeChoice("output_format", kFormats, "UNKNOWN_FORMAT") == 1;
  request->sample.set_format(raw ? pb::SampleRequest::FORMAT_RAW : pb::SampleRequest::FORMAT_PNG);
  reader->TakeChoice("background", kBackgrounds, "VALUE_UNKNOWN");
  reader->Take("stream", &request->stream);
  if (reader->Take("partial_images", &request->partial_images, 0, kMostPartialImages) && !request->stream &&
      request->partial_images > 0) {
    reader->SetError(FieldError("partial_images", "FIELD_NOT_SUPPORTED",
                                fmt::format("expected 0 without stream, found {}", request->partial_images)));
  }
  for (const char* name : {"quality", "style", "moderation", "user"}) reader->Ignore(name);
}

void TakeRoutingFields(BodyReader* reader, pb::SampleRequest* sample) {
  sample->set_mode(static_cast<pb::SampleRequest::Mode>(reader->TakeChoice("mode", kModeNames, "UNKNOWN_MODE")));
  int32_t number = 0;
  if (reader->Take("top_k", &number)) sample->set_top_k(number);
  if (reader->Take("oracle_expert", &number)) sample->set_oracle_expert(number);
  double real = 0;
  if (reader->Take("threshold", &real)) sample->set_threshold(real);
  if (reader->Take("nucleus_p", &real)) sample->set_nucleus_p(real);
  if (reader->Take("temperature", &real)) sample->set_temperature(real);
}

void TakeSolverFields(BodyReader* reader, pb::SampleRequest* sample) {
  sample->set_solver(static_cast<pb::SampleRequest::Solver>(reader->TakeChoice("solver", kSolvers, "UNKNOWN_SOLVER")));
  int32_t number = 0;
  if (reader->Take("steps", &number)) sample->set_steps(number);
  if (reader->Take("negative_class", &number)) sample->set_negative_class(number);
  double real = 0;
  if (reader->Take("guidance", &real)) sample->set_guidance(real);
  if (reader->Take("guidance_from", &real)) sample->set_guidance_from(real);
  if (reader->Take("guidance_to", &real)) sample->set_guidance_to(real);
  if (reader->Take("strength", &real)) sample->set_strength(real);
  reader->TakeList("times", "a number", [sample](const json& value) {
    if (!value.is_number()) return false;
    sample->add_times(value.get<double>());
    return true;
  });
  reader->TakeList("init_images", "a file in base64", [sample](const json& value) {
    return value.is_string() && absl::Base64Unescape(value.get_ref<const std::string&>(), sample->add_init_images());
  });
}

void TakeServingFields(BodyReader* reader, ImagesRequest* request) {
  std::string version;
  if (reader->Take("version", &version)) request->sample.set_version(version);
  int32_t number = 0;
  if (reader->Take("priority", &number)) request->sample.set_priority(number);
  bool flag = false;
  if (reader->Take("reproducible", &flag)) request->sample.set_reproducible(flag);
  if (reader->Take("allow_expert_loss", &flag)) request->sample.set_allow_expert_loss(flag);
  uint64_t seed = 0;
  if (reader->Take("seed", &seed)) request->seed = seed;
  double seconds = 0;
  if (!reader->Take("timeout", &seconds)) return;
  if (!(seconds > 0 && seconds <= kLongestTimeoutSeconds)) {
    reader->Fail("timeout", fmt::format("seconds above 0 and at most {}", kLongestTimeoutSeconds), json(seconds),
                 "VALUE_OUT_OF_RANGE");
    return;
  }
  request->timeout = absl::Seconds(seconds);
}

absl::StatusOr<int32_t> ClassOf(const std::string& prompt, const SamplerInfo& info) {
  if (prompt == "none") return kNoClass;
  const auto named = std::find(info.class_names.begin(), info.class_names.end(), prompt);
  if (named != info.class_names.end()) return static_cast<int32_t>(named - info.class_names.begin());
  int32_t number = kNoClass;
  const auto [end, error] = std::from_chars(prompt.data(), prompt.data() + prompt.size(), number);
  if (error == std::errc() && end == prompt.data() + prompt.size() && number >= 0 && number < info.classes) {
    return number;
  }
  const std::string known = info.classes == 0
                                ? std::string("'none' (the model has no classes)")
                                : fmt::format("a class name, its number from 0 to {}, or 'none'", info.classes - 1);
  return FieldError("prompt", "UNKNOWN_CLASS",
                    fmt::format("expected a class of model '{}', {}, found {}", info.model, known, Shown(prompt)));
}

// So many steps apart that there are at most `previews` before the last step.
int32_t PreviewEvery(const pb::SampleRequest& sample, const SamplerInfo& info, int32_t previews) {
  const int32_t asked = sample.times_size() > 0 ? sample.times_size() - 1 : sample.steps();
  const int64_t steps = asked > 0 ? asked : info.defaults.steps;
  return static_cast<int32_t>(std::max<int64_t>(1, (steps + previews) / (previews + 1)));
}

// The field of a body that a field of SampleRequest came from.
std::string ParamOf(const absl::Status& status) {
  const std::string field = ErrorField(status);
  if (absl::StartsWith(field, "classes[")) return "prompt";
  if (field == "classes") return "n";
  if (field == "seeds") return "seed";
  return field == "format" ? "output_format" : field;
}

std::string_view ErrorType(int code) {
  if (code == 401) return "authentication_error";
  if (code == 403) return "permission_error";
  if (code == 429) return "rate_limit_error";
  return code < 500 ? "invalid_request_error" : "server_error";
}

// Safe for any bytes: what is no UTF-8 is replaced.
std::string Text(const ordered_json& value) {
  return value.dump(-1, ' ', /*ensure_ascii=*/true, ordered_json::error_handler_t::replace) + "\n";
}

ordered_json ModelJson(const SamplerInfo& info) {
  return {{"id", info.model},
          {"object", "model"},
          {"created", 0},
          {"owned_by", "atoll"},
          {"version", info.version},
          {"experts", info.experts},
          {"classes", info.classes},
          {"class_names", info.class_names},
          {"channels", info.channels},
          {"height", info.height},
          {"width", info.width},
          {"latent", info.latent}};
}

ordered_json ErrorJson(const absl::Status& status) {
  const std::string param = ParamOf(status);
  std::string reason = ErrorReason(status);
  if (reason.empty()) reason = rpc::DefaultReason(status.code());
  return {{"error",
           {{"message", std::string(status.message())},
            {"type", ErrorType(HttpCode(status.code()))},
            {"param", param.empty() ? ordered_json(nullptr) : ordered_json(param)},
            {"code", reason}}}};
}

ordered_json ImageJson(const SampledImage& image) {
  ordered_json entry = {{"b64_json", absl::Base64Escape(image.data)}, {"seed", image.order.seed}};
  if (image.order.class_label != kNoClass) entry["class"] = image.order.class_label;
  return entry;
}

ordered_json FormatJson(const SamplerInfo& info, ImageFormat format) {
  return {{"background", "opaque"},
          {"output_format", format == ImageFormat::kPng ? "png" : "raw"},
          {"size", fmt::format("{}x{}", info.width, info.height)}};
}

ordered_json ReportJson(const SamplerInfo& info, const SampleReport& report) {
  return {{"model", info.model},
          {"version", report.version},
          {"routing",
           {{"chosen", report.routing.chosen},
            {"weight", report.routing.weight},
            {"image_steps", report.routing.image_steps},
            {"mean_entropy", report.routing.mean_entropy()},
            {"switches", report.routing.switches},
            {"close_calls", report.routing.close_calls}}},
          {"timings",
           {{"queue_seconds", absl::ToDoubleSeconds(report.queue_time)},
            {"sample_seconds", absl::ToDoubleSeconds(report.sample_time)},
            {"first_image_seconds", absl::ToDoubleSeconds(report.first_image_time)}}}};
}

ordered_json ImageEventJson(absl::Time created, const SamplerInfo& info, ImageFormat format,
                            const SampledImage& image) {
  ordered_json fields = ImageJson(image);
  fields["index"] = image.index;
  fields["created_at"] = absl::ToUnixSeconds(created);
  fields.update(FormatJson(info, format));
  return fields;
}

// Text is one line, as an event's data must be.
std::string Event(std::string_view type, const ordered_json& fields) {
  ordered_json data = {{"type", type}};
  data.update(fields);
  return fmt::format("event: {}\ndata: {}\n", type, Text(data));
}

}  // namespace

absl::StatusOr<ImagesRequest> ParseImagesRequest(std::string_view body, int32_t max_images) {
  absl::StatusOr<json> parsed = storage::ParseJsonObject(body, "body");
  if (!parsed.ok()) {
    return MakeError(absl::StatusCode::kInvalidArgument, "BODY_MALFORMED", std::string(parsed.status().message()));
  }
  ImagesRequest request;
  BodyReader reader(&*parsed);
  if (const auto prompt = parsed->find("prompt"); prompt != parsed->end() && prompt->is_number_integer()) {
    *prompt = prompt->dump();
  }
  if (!reader.Take("prompt", &request.prompt)) {
    reader.SetError(
        FieldError("prompt", "PROMPT_REQUIRED", "expected a class name, a class number or 'none', found none"));
  }
  TakeStandardFields(&reader, max_images, &request);
  TakeRoutingFields(&reader, &request.sample);
  TakeSolverFields(&reader, &request.sample);
  TakeServingFields(&reader, &request);
  ATOLL_RETURN_IF_ERROR(reader.Finish());
  return request;
}

absl::StatusOr<pb::SampleRequest> CompleteRequest(const ImagesRequest& request, const SamplerInfo& info,
                                                  uint64_t fresh_seed) {
  ATOLL_ASSIGN_OR_RETURN(const int32_t label, ClassOf(request.prompt, info));
  const std::string own_size = fmt::format("{}x{}", info.width, info.height);
  if (!request.size.empty() && request.size != own_size) {
    return FieldError("size", "SIZE_NOT_AVAILABLE",
                      fmt::format("expected 'auto' or '{}', the size of model '{}', found {}", own_size, info.model,
                                  Shown(request.size)));
  }
  pb::SampleRequest sample = request.sample;
  sample.set_model(info.model);
  sample.mutable_classes()->Resize(request.images, label);
  sample.add_seeds(request.seed.value_or(fresh_seed));
  if (request.partial_images > 0) sample.set_preview_every(PreviewEvery(sample, info, request.partial_images));
  return sample;
}

std::string ImagesBody(absl::Time created, const SamplerInfo& info, ImageFormat format,
                       std::vector<SampledImage> images, const SampleReport& report) {
  std::sort(images.begin(), images.end(),
            [](const SampledImage& a, const SampledImage& b) { return a.index < b.index; });
  ordered_json data = ordered_json::array();
  for (SampledImage& image : images) {
    data.push_back(ImageJson(image));
    image.data.clear();
  }
  ordered_json body = {{"created", absl::ToUnixSeconds(created)}, {"data", std::move(data)}};
  body.update(FormatJson(info, format));
  body.update(ReportJson(info, report));
  return Text(body);
}

std::string PartialImageEvent(absl::Time created, const SamplerInfo& info, ImageFormat format, int32_t partial,
                              const SampledImage& preview) {
  ordered_json fields = ImageEventJson(created, info, format, preview);
  fields["partial_image_index"] = partial;
  return Event("image_generation.partial_image", fields);
}

std::string CompletedImageEvent(absl::Time created, const SamplerInfo& info, ImageFormat format,
                                const SampledImage& image) {
  return Event("image_generation.completed", ImageEventJson(created, info, format, image));
}

std::string DoneEvent(const SamplerInfo& info, const SampleReport& report) {
  return Event("image_generation.done", ReportJson(info, report));
}

std::string ErrorEvent(const absl::Status& status) {
  return Event("error", ErrorJson(status));
}

std::string ModelsBody(std::span<const SamplerInfo> models) {
  ordered_json data = ordered_json::array();
  for (const SamplerInfo& model : models) data.push_back(ModelJson(model));
  return Text({{"object", "list"}, {"data", std::move(data)}});
}

std::string ModelBody(const SamplerInfo& model) {
  return Text(ModelJson(model));
}

std::string ErrorBody(const absl::Status& status) {
  return Text(ErrorJson(status));
}

int HttpCode(absl::StatusCode code) {
  switch (code) {
    case absl::StatusCode::kOk:
      return 200;
    case absl::StatusCode::kInvalidArgument:
    case absl::StatusCode::kOutOfRange:
      return 400;
    case absl::StatusCode::kUnauthenticated:
      return 401;
    case absl::StatusCode::kPermissionDenied:
      return 403;
    case absl::StatusCode::kNotFound:
      return 404;
    case absl::StatusCode::kResourceExhausted:
      return 429;
    case absl::StatusCode::kCancelled:
      return 499;
    case absl::StatusCode::kUnimplemented:
      return 501;
    case absl::StatusCode::kFailedPrecondition:
    case absl::StatusCode::kUnavailable:
      return 503;
    case absl::StatusCode::kDeadlineExceeded:
      return 504;
    default:
      return 500;
  }
}

}  // namespace atl::router
