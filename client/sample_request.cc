#include "client/sample_request.h"

#include <algorithm>
#include <charconv>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"

namespace atl::client {
namespace {

using atlpb::sample::v1::SampleRequest;

absl::Status UnknownClass(const std::string& text, int32_t classes) {
  return MakeError(absl::StatusCode::kInvalidArgument, "UNKNOWN_CLASS",
                   fmt::format("--class: expected {}, found '{}'",
                               classes > 0 ? fmt::format("a list like 3, 0-4 or all, with classes 0 to {}", classes - 1)
                                           : "none: the model has no classes",
                               text));
}

absl::StatusOr<int32_t> ParseClass(std::string_view text, const std::string& whole, int32_t classes) {
  int32_t value = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0 || value >= classes) {
    return UnknownClass(whole, classes);
  }
  return value;
}

absl::StatusOr<SampleRequest::Mode> ModeOf(const SampleFlags& flags) {
  std::string mode = flags.mode;
  if (mode.empty()) {
    mode = flags.top_k > 0       ? "topk"
           : flags.threshold > 0 ? "threshold"
           : flags.nucleus_p > 0 ? "nucleus"
           : flags.expert >= 0   ? "oracle"
                                 : "";
  }
  if (mode.empty()) return SampleRequest::MODE_UNSPECIFIED;
  if (mode == "top1") return SampleRequest::MODE_TOP_1;
  if (mode == "topk") return SampleRequest::MODE_TOP_K;
  if (mode == "threshold") return SampleRequest::MODE_THRESHOLD;
  if (mode == "nucleus") return SampleRequest::MODE_NUCLEUS;
  if (mode == "full") return SampleRequest::MODE_FULL;
  if (mode == "oracle" && flags.expert >= 0) return SampleRequest::MODE_ORACLE;
  return MakeError(absl::StatusCode::kInvalidArgument, "USAGE",
                   fmt::format("--mode {}: expected --expert K beside it, found none", mode));
}

SampleRequest::Solver SolverOf(const SampleFlags& flags) {
  if (flags.solver == "euler") return SampleRequest::SOLVER_EULER;
  if (flags.solver == "heun") return SampleRequest::SOLVER_HEUN;
  if (flags.solver == "multistep") return SampleRequest::SOLVER_MULTISTEP;
  return SampleRequest::SOLVER_UNSPECIFIED;
}

// All but the images themselves. What was not asked for stays unset, so that the router's defaults hold.
void SetSettings(const SampleFlags& flags, SampleRequest* request) {
  request->set_model(flags.model);
  request->set_version(flags.version);
  request->set_top_k(flags.top_k);
  request->set_threshold(flags.threshold);
  request->set_nucleus_p(flags.nucleus_p);
  request->set_temperature(flags.temperature);
  request->set_oracle_expert(std::max(flags.expert, 0));
  request->set_solver(SolverOf(flags));
  request->set_steps(flags.steps);
  request->mutable_times()->Add(flags.times.begin(), flags.times.end());
  if (!(flags.guidance < 0)) request->set_guidance(flags.guidance);  // NaN too: the router refuses it
  request->set_guidance_from(flags.guidance_from);
  if (flags.guidance_to) request->set_guidance_to(*flags.guidance_to);
  if (flags.negative_class >= 0) request->set_negative_class(flags.negative_class);
  if (flags.strength) request->set_strength(*flags.strength);
  request->set_reproducible(flags.reproducible);
  request->set_allow_expert_loss(flags.allow_expert_loss);
  if (flags.priority) request->set_priority(*flags.priority);
  if (!flags.preview.empty()) request->set_preview_every(flags.preview_every);
  request->set_format(flags.raw ? SampleRequest::FORMAT_RAW : SampleRequest::FORMAT_PNG);
}

}  // namespace

absl::StatusOr<std::vector<int32_t>> ExpandClasses(const std::string& text, int count, int32_t classes) {
  std::vector<int32_t> labels;
  if (text == "none" || (text == "all" && classes == 0)) {
    labels.push_back(-1);
  } else if (text == "all") {
    for (int32_t label = 0; label < classes; ++label) labels.push_back(label);
  } else {
    for (size_t at = 0; at <= text.size();) {
      const size_t end = std::min(text.find(',', at), text.size());
      const std::string_view part = std::string_view(text).substr(at, end - at);
      const size_t dash = part.find('-');
      ATOLL_ASSIGN_OR_RETURN(const int32_t first, ParseClass(part.substr(0, dash), text, classes));
      int32_t last = first;
      if (dash != std::string_view::npos) {
        ATOLL_ASSIGN_OR_RETURN(last, ParseClass(part.substr(dash + 1), text, classes));
      }
      if (last < first) return UnknownClass(text, classes);
      for (int32_t label = first; label <= last; ++label) labels.push_back(label);
      at = end + 1;
    }
  }
  std::vector<int32_t> all;
  for (const int32_t label : labels) all.insert(all.end(), static_cast<size_t>(count), label);
  return all;
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

absl::StatusOr<std::vector<SampleRequest>> MakeRequests(const SampleFlags& flags, const std::vector<int32_t>& classes,
                                                        int32_t most, const std::vector<std::string>& init_images) {
  ATOLL_ASSIGN_OR_RETURN(const SampleRequest::Mode mode, ModeOf(flags));
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
    request.set_mode(mode);
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

}  // namespace atl::client
