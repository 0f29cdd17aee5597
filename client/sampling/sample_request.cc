#include "client/sampling/sample_request.h"

#include <algorithm>
#include <charconv>
#include <numeric>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/spec/nearest_name.h"
#include "fmt/format.h"

namespace atl::client {
namespace {

using atlpb::sample::v1::GetSamplerInfoResponse;
using atlpb::sample::v1::SampleRequest;

// Limit per command: the labels are in memory, as are the images until they are written.
constexpr int64_t kMostImages = 10'000'000;

absl::Status UnknownClass(std::string_view flag, std::string_view text, const GetSamplerInfoResponse& info) {
  const std::vector<std::string> names(info.class_names().begin(), info.class_names().end());
  // Every text is near to a number or a letter, so short texts get no suggestion.
  const std::string nearest = text.size() < 3 ? "" : spec::NearestName(text, names);
  const std::string known = info.classes() == 0
                                ? "none: the model has no classes"
                                : fmt::format("classes 0 to {}{}", info.classes() - 1,
                                              names.empty() ? "" : fmt::format(" or names such as '{}'", names[0]));
  return MakeError(absl::StatusCode::kInvalidArgument, "UNKNOWN_CLASS",
                   fmt::format("{}: expected {}, found '{}'{}", flag, known, text,
                               nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest)));
}

// -1 where the text is neither a name nor the number of a class.
int32_t FindClass(std::string_view text, const GetSamplerInfoResponse& info) {
  const auto named = std::find(info.class_names().begin(), info.class_names().end(), text);
  if (named != info.class_names().end()) return static_cast<int32_t>(named - info.class_names().begin());
  int32_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() && value < info.classes() ? std::max(value, -1) : -1;
}

// "3", "cat" or "0-4"; empty where it is none of them.
std::vector<int32_t> FindClasses(std::string_view text, const GetSamplerInfoResponse& info) {
  if (const int32_t label = FindClass(text, info); label >= 0) return {label};
  const size_t dash = text.find('-');
  if (dash == std::string_view::npos) return {};
  const int32_t first = FindClass(text.substr(0, dash), info);
  const int32_t last = FindClass(text.substr(dash + 1), info);
  if (first < 0 || last < first) return {};
  std::vector<int32_t> labels(static_cast<size_t>(last - first) + 1);
  std::iota(labels.begin(), labels.end(), first);
  return labels;
}

absl::StatusOr<std::vector<int32_t>> ExpandClasses(const std::string& text, const GetSamplerInfoResponse& info) {
  if (text == "none" || (text == "all" && info.classes() == 0)) return std::vector<int32_t>{-1};
  std::vector<int32_t> labels;
  if (text == "all") {
    labels.resize(static_cast<size_t>(info.classes()));
    std::iota(labels.begin(), labels.end(), 0);
    return labels;
  }
  // A name may have a comma in it.
  if (labels = FindClasses(text, info); !labels.empty()) return labels;
  for (size_t at = 0, end = 0; at <= text.size(); at = end + 1) {
    end = std::min(text.find(',', at), text.size());
    const std::string_view part = std::string_view(text).substr(at, end - at);
    const std::vector<int32_t> found = FindClasses(part, info);
    if (found.empty()) return UnknownClass("--class", part, info);
    labels.insert(labels.end(), found.begin(), found.end());
  }
  return labels;
}

SampleRequest::Mode ModeOf(const std::string& mode) {
  if (mode == "top1") return SampleRequest::MODE_TOP_1;
  if (mode == "topk") return SampleRequest::MODE_TOP_K;
  if (mode == "threshold") return SampleRequest::MODE_THRESHOLD;
  if (mode == "nucleus") return SampleRequest::MODE_NUCLEUS;
  if (mode == "full") return SampleRequest::MODE_FULL;
  return mode == "oracle" ? SampleRequest::MODE_ORACLE : SampleRequest::MODE_UNSPECIFIED;
}

SampleRequest::Solver SolverOf(const SampleFlags& flags) {
  if (flags.solver == "euler") return SampleRequest::SOLVER_EULER;
  if (flags.solver == "heun") return SampleRequest::SOLVER_HEUN;
  if (flags.solver == "multistep") return SampleRequest::SOLVER_MULTISTEP;
  return SampleRequest::SOLVER_UNSPECIFIED;
}

// The mode that the router takes for a request that names none, by its own fields; UNSPECIFIED: the version's.
SampleRequest::Mode ImpliedMode(const SampleRequest& request) {
  if (request.top_k() > 0) return SampleRequest::MODE_TOP_K;
  if (request.threshold() > 0) return SampleRequest::MODE_THRESHOLD;
  if (request.has_oracle_expert()) return SampleRequest::MODE_ORACLE;
  return request.nucleus_p() > 0 ? SampleRequest::MODE_NUCLEUS : SampleRequest::MODE_UNSPECIFIED;
}

// The flag that fills a field of SampleRequest; "" where none does.
std::string FlagOf(std::string_view field) {
  if (field == "classes") return "--class";
  if (field == "seeds") return "--seed";
  if (field == "oracle_expert") return "--expert";
  if (field == "init_images") return "--init";
  if (field == "version") return "--model-version";
  if (field == "format") return "--raw";
  if (SampleRequest::descriptor()->FindFieldByName(std::string(field)) == nullptr) return "";
  std::string flag = fmt::format("--{}", field);
  std::replace(flag.begin(), flag.end(), '_', '-');
  return flag;
}

// All but the images themselves. What was not asked for stays unset, so that the router's defaults hold.
void SetSettings(const SampleFlags& flags, SampleRequest* request) {
  request->set_model(flags.model);
  request->set_version(flags.version);
  request->set_mode(ModeOf(flags.mode));
  request->set_top_k(flags.top_k);
  request->set_threshold(flags.threshold);
  request->set_nucleus_p(flags.nucleus_p);
  request->set_temperature(flags.temperature);
  if (flags.expert) request->set_oracle_expert(*flags.expert);
  request->set_solver(SolverOf(flags));
  request->set_steps(flags.steps);
  request->mutable_times()->Add(flags.times.begin(), flags.times.end());
  if (flags.guidance) request->set_guidance(*flags.guidance);
  request->set_guidance_from(flags.guidance_from);
  if (flags.guidance_to) request->set_guidance_to(*flags.guidance_to);
  if (flags.strength) request->set_strength(*flags.strength);
  request->set_reproducible(flags.reproducible);
  request->set_allow_expert_loss(flags.allow_expert_loss);
  if (flags.priority) request->set_priority(*flags.priority);
  if (!flags.preview.empty()) request->set_preview_every(flags.preview_every);
  request->set_format(flags.raw ? SampleRequest::FORMAT_RAW : SampleRequest::FORMAT_PNG);
}

}  // namespace

absl::StatusOr<Labels> FindLabels(const SampleFlags& flags, int count, const GetSamplerInfoResponse& info) {
  // A router's word, which "all" would take memory for.
  if (info.classes() < 0 || info.classes() > kMostImages) {
    return MakeError(
        absl::StatusCode::kInternal, "CLASSES_OUT_OF_RANGE",
        fmt::format("the router says that its model has {} classes: expected 0 to {}", info.classes(), kMostImages));
  }
  ATOLL_ASSIGN_OR_RETURN(const std::vector<int32_t> classes, ExpandClasses(flags.classes, info));
  if (const int64_t images = static_cast<int64_t>(classes.size()) * count; images > kMostImages) {
    return MakeError(absl::StatusCode::kInvalidArgument, "TOO_MANY_IMAGES",
                     fmt::format("--class: expected at most {} images, found {} classes of {} images each", kMostImages,
                                 classes.size(), count));
  }
  Labels labels;
  for (const int32_t label : classes) labels.images.insert(labels.images.end(), static_cast<size_t>(count), label);
  if (flags.negative_class.empty()) return labels;
  labels.negative = FindClass(flags.negative_class, info);
  if (*labels.negative < 0) return UnknownClass("--negative-class", flags.negative_class, info);
  return labels;
}

absl::Status CheckOut(const SampleFlags& flags) {
  if (!flags.preview.empty() && (flags.raw || !flags.preview.ends_with(".png"))) {
    return MakeError(absl::StatusCode::kInvalidArgument, "USAGE",
                     fmt::format("--preview: expected FILE.png, and no --raw beside it, found '{}'", flags.preview));
  }
  for (const std::string& out : flags.out) {
    if (out.ends_with(".png")) {
      if (!flags.raw) continue;
      return MakeError(absl::StatusCode::kInvalidArgument, "USAGE",
                       fmt::format("--raw: expected a folder for --out, found '{}'", out));
    }
    for (const char* ending : {".PNG", ".jpg", ".jpeg", ".gif", ".bmp", ".webp", ".tif", ".tiff"}) {
      if (!out.ends_with(ending)) continue;
      return MakeError(absl::StatusCode::kInvalidArgument, "USAGE",
                       fmt::format("--out: expected FILE.png or a folder, found '{}'", out));
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<SampleRequest>> MakeRequests(const SampleFlags& flags, const Labels& labels, int32_t most,
                                                        const std::vector<std::string>& init_images) {
  const std::vector<int32_t>& classes = labels.images;
  if (init_images.size() > 1 && init_images.size() != classes.size()) {
    return MakeError(absl::StatusCode::kInvalidArgument, "INIT_COUNT",
                     fmt::format("--init: expected one image, or one for each of the {} images to draw, found {}",
                                 classes.size(), init_images.size()));
  }
  std::vector<SampleRequest> requests;
  const size_t step = static_cast<size_t>(std::max(most, 1));
  for (size_t first = 0; first < classes.size(); first += step) {
    SampleRequest request;
    SetSettings(flags, &request);
    if (labels.negative) request.set_negative_class(*labels.negative);
    for (size_t i = first; i < std::min(first + step, classes.size()); ++i) {
      request.add_classes(classes[i]);
      request.add_seeds(flags.seed + i);
      if (init_images.size() > 1) request.add_init_images(init_images[i]);
    }
    if (init_images.size() == 1) request.add_init_images(init_images[0]);
    requests.push_back(std::move(request));
  }
  return requests;
}

SampleRequest SettingsOf(const SampleRequest& request, const GetSamplerInfoResponse& info) {
  SampleRequest settings = request;
  settings.clear_classes();
  settings.clear_seeds();
  settings.clear_init_images();
  settings.clear_priority();
  settings.clear_preview_every();
  if (settings.mode() == SampleRequest::MODE_UNSPECIFIED) settings.set_mode(ImpliedMode(settings));
  if (!settings.version().empty() && settings.version() != info.version()) return settings;
  const auto& defaults = info.defaults();
  if (settings.mode() == SampleRequest::MODE_UNSPECIFIED) {
    settings.set_mode(defaults.mode());
    settings.set_top_k(defaults.top_k());
    settings.set_threshold(defaults.threshold());
    settings.set_nucleus_p(defaults.nucleus_p());
    if (settings.temperature() == 0) settings.set_temperature(defaults.temperature());
  }
  if (settings.solver() == SampleRequest::SOLVER_UNSPECIFIED) settings.set_solver(defaults.solver());
  if (settings.steps() == 0 && settings.times().empty()) settings.set_steps(defaults.steps());
  if (!settings.has_guidance()) settings.set_guidance(defaults.guidance());
  return settings;
}

absl::Status InFlags(const absl::Status& status) {
  const std::string field = ErrorField(status);
  const std::string flag = FlagOf(field.substr(0, field.find('[')));
  const std::string message(status.message());
  const std::string start = field + ": ";
  if (flag.empty() || !message.starts_with(start)) return status;
  std::string text = flag + ": ";
  const std::string_view rest = std::string_view(message).substr(start.size());
  const auto is_name = [](char letter) { return (letter >= 'a' && letter <= 'z') || letter == '_'; };
  for (size_t at = 0; at < rest.size();) {
    const size_t end = std::find_if_not(rest.begin() + at, rest.end(), is_name) - rest.begin();
    const std::string_view name = rest.substr(at, std::max(end - at, size_t{1}));
    // A word of the language may be a field too ("steps"); with a line in it it is none.
    const std::string other = name.find('_') == std::string_view::npos ? "" : FlagOf(name);
    text += other.empty() ? name : other;
    at += name.size();
  }
  return MakeErrorWithField(status.code(), ErrorReason(status), field, text);
}

}  // namespace atl::client
