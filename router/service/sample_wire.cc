#include "router/service/sample_wire.h"

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/rpc/channel.h"
#include "common/wire/status.h"
#include "common/wire/time_wire.h"
#include "fmt/format.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/support/error_details.h"
#include "router/engine/init_image.h"
#include "router/policy/admission.h"

namespace atl::router {
namespace {

namespace sample_pb = atlpb::sample::v1;

using Mode = sample_pb::SampleRequest::Mode;

// Checks a value of an enum whose values are 0 to `most`, because a message may have others.
absl::Status CheckKnown(std::string_view field, std::string_view reason, int value, int most) {
  if (value >= 0 && value <= most) return absl::OkStatus();
  return FieldError(field, reason, fmt::format("expected 0 to {}, found {}", most, value));
}

// The mode asked for, by name or by the one field that only it has.
absl::StatusOr<Mode> ModeOf(const sample_pb::SampleRequest& proto) {
  struct OwnField {
    const char* name;
    Mode mode;
    bool set;
  };
  // A top_k of 1 is what top1 says too.
  const bool top_k =
      proto.top_k() != 0 && !(proto.mode() == sample_pb::SampleRequest::MODE_TOP_1 && proto.top_k() == 1);
  const OwnField fields[] = {{"top_k", sample_pb::SampleRequest::MODE_TOP_K, top_k},
                             {"threshold", sample_pb::SampleRequest::MODE_THRESHOLD, proto.threshold() != 0},
                             {"oracle_expert", sample_pb::SampleRequest::MODE_ORACLE, proto.has_oracle_expert()},
                             {"nucleus_p", sample_pb::SampleRequest::MODE_NUCLEUS, proto.nucleus_p() != 0}};
  Mode mode = proto.mode();
  for (const OwnField& field : fields) {
    if (!field.set) continue;
    if (mode == sample_pb::SampleRequest::MODE_UNSPECIFIED) mode = field.mode;
    if (mode == field.mode) continue;
    return FieldError(
        field.name, "MODE_MISMATCH",
        fmt::format("expected mode {} beside it, found mode {}", kModeNames[field.mode], kModeNames[mode]));
  }
  if (mode == sample_pb::SampleRequest::MODE_ORACLE && proto.temperature() != 0) {
    return FieldError(
        "temperature", "MODE_MISMATCH",
        fmt::format("expected none with mode oracle, which asks no posterior, found {}", proto.temperature()));
  }
  if (mode == sample_pb::SampleRequest::MODE_ORACLE && !proto.has_oracle_expert()) {
    return FieldError("oracle_expert", "UNKNOWN_EXPERT", "expected the expert that mode oracle is to ask, found none");
  }
  return mode;
}

RoutingRule RoutingFromProto(const sample_pb::SampleRequest& proto, Mode mode) {
  RoutingRule rule{.top_k = proto.top_k(),
                   .threshold = proto.threshold(),
                   .oracle_expert = proto.oracle_expert(),
                   .nucleus_p = proto.nucleus_p(),
                   .temperature = proto.temperature() == 0 ? 1.0 : proto.temperature()};
  switch (mode) {
    case sample_pb::SampleRequest::MODE_UNSPECIFIED:  // the version's default stands in its place (default_routing)
    case sample_pb::SampleRequest::MODE_TOP_K:
      rule.mode = RoutingMode::kTopK;
      return rule;
    case sample_pb::SampleRequest::MODE_TOP_1:
      rule.top_k = 1;
      rule.mode = RoutingMode::kTopK;
      return rule;
    case sample_pb::SampleRequest::MODE_NUCLEUS:
      rule.mode = RoutingMode::kNucleus;
      return rule;
    case sample_pb::SampleRequest::MODE_THRESHOLD:
      rule.mode = RoutingMode::kThreshold;
      return rule;
    case sample_pb::SampleRequest::MODE_FULL:
      rule.mode = RoutingMode::kFull;
      return rule;
    default:
      rule.mode = RoutingMode::kOracle;
      return rule;
  }
}

Solver SolverFromProto(sample_pb::SampleRequest::Solver solver) {
  switch (solver) {
    case sample_pb::SampleRequest::SOLVER_HEUN:
      return Solver::kHeun;
    case sample_pb::SampleRequest::SOLVER_MULTISTEP:
      return Solver::kMultistep;
    default:
      return Solver::kEuler;
  }
}

sample_pb::SamplingDefaults ToProto(const SamplingDefaults& defaults, const SamplerLimits& limits) {
  sample_pb::SamplingDefaults proto;
  const RoutingRule& rule = defaults.routing;
  switch (rule.mode) {
    case RoutingMode::kTopK:
      proto.set_mode(sample_pb::SampleRequest::MODE_TOP_K);
      proto.set_top_k(std::max(rule.top_k, 1));
      break;
    case RoutingMode::kThreshold:
      proto.set_mode(sample_pb::SampleRequest::MODE_THRESHOLD);
      proto.set_threshold(rule.threshold);
      break;
    case RoutingMode::kNucleus:
      proto.set_mode(sample_pb::SampleRequest::MODE_NUCLEUS);
      proto.set_nucleus_p(rule.nucleus_p);
      break;
    case RoutingMode::kFull:
    case RoutingMode::kOracle:  // oracle is no version's default: a request must name the expert
      proto.set_mode(sample_pb::SampleRequest::MODE_FULL);
      break;
  }
  proto.set_temperature(rule.temperature);
  switch (defaults.solver) {
    case Solver::kEuler:
      proto.set_solver(sample_pb::SampleRequest::SOLVER_EULER);
      break;
    case Solver::kHeun:
      proto.set_solver(sample_pb::SampleRequest::SOLVER_HEUN);
      break;
    case Solver::kMultistep:
      proto.set_solver(sample_pb::SampleRequest::SOLVER_MULTISTEP);
      break;
  }
  proto.set_steps(std::min(defaults.steps, limits.max_steps));
  proto.set_guidance(defaults.guidance);
  return proto;
}

// Together, decoded: what a message may hold of raw values.
constexpr int64_t kMaxInitValues = rpc::kMaxMessageBytes / sizeof(float);

absl::Status InitImagesFromProto(const sample_pb::SampleRequest& proto, SampleRequest* request) {
  ATOLL_RETURN_IF_ERROR(CheckInitCount(proto.init_images_size(), proto.classes_size()));
  int64_t left = kMaxInitValues;
  for (int i = 0; i < proto.init_images_size(); ++i) {
    ATOLL_ASSIGN_OR_RETURN(InitImage init, DecodeInitImage(proto.init_images(i), request->format, left,
                                                           fmt::format("init_images[{}]", i)));
    left -= static_cast<int64_t>(init.pixels->size());
    request->init_images.push_back(std::move(init));
  }
  if (proto.has_strength()) request->strength = proto.strength();
  return absl::OkStatus();
}

sample_pb::RouterVersion::State StateOf(const FollowedVersion& version) {
  switch (version.state) {
    case VersionState::kLoading:
      return sample_pb::RouterVersion::STATE_LOADING;
    case VersionState::kReady:
      return sample_pb::RouterVersion::STATE_WAITING;
    case VersionState::kServing:
      return sample_pb::RouterVersion::STATE_SERVING;
    case VersionState::kOffered:
      return sample_pb::RouterVersion::STATE_OFFERED;
    case VersionState::kDraining:
      return sample_pb::RouterVersion::STATE_DRAINING;
    case VersionState::kFailed:
      return sample_pb::RouterVersion::STATE_FAILED;
  }
  return sample_pb::RouterVersion::STATE_UNSPECIFIED;
}

}  // namespace

absl::StatusOr<SampleRequest> FromProto(const sample_pb::SampleRequest& proto, const SamplerLimits& limits) {
  ATOLL_RETURN_IF_ERROR(CheckCounts(proto.classes_size(), proto.seeds_size(), limits));
  ATOLL_RETURN_IF_ERROR(CheckTimesCount(proto.times_size(), limits));
  SampleRequest request{.model = proto.model(), .version = proto.version()};
  request.classes.assign(proto.classes().begin(), proto.classes().end());
  request.seeds.assign(proto.seeds().begin(), proto.seeds().end());
  ATOLL_RETURN_IF_ERROR(CheckKnown("mode", "UNKNOWN_MODE", proto.mode(), sample_pb::SampleRequest::Mode_MAX));
  ATOLL_RETURN_IF_ERROR(CheckKnown("solver", "UNKNOWN_SOLVER", proto.solver(), sample_pb::SampleRequest::Solver_MAX));
  ATOLL_RETURN_IF_ERROR(CheckKnown("format", "UNKNOWN_FORMAT", proto.format(), sample_pb::SampleRequest::Format_MAX));
  ATOLL_ASSIGN_OR_RETURN(const Mode mode, ModeOf(proto));
  request.routing = RoutingFromProto(proto, mode);
  request.solver = SolverFromProto(proto.solver());
  if (proto.format() == sample_pb::SampleRequest::FORMAT_RAW) request.format = ImageFormat::kRaw;
  request.default_routing = mode == sample_pb::SampleRequest::MODE_UNSPECIFIED;
  request.default_solver = proto.solver() == sample_pb::SampleRequest::SOLVER_UNSPECIFIED;
  request.steps = proto.steps();
  request.allow_expert_loss = proto.allow_expert_loss();
  if (proto.has_guidance()) request.guidance = proto.guidance();
  request.times.assign(proto.times().begin(), proto.times().end());
  request.guidance_from = proto.guidance_from();
  if (proto.has_guidance_to()) request.guidance_to = proto.guidance_to();
  if (proto.has_negative_class()) request.negative_class = proto.negative_class();
  ATOLL_RETURN_IF_ERROR(InitImagesFromProto(proto, &request));
  if (proto.has_priority()) request.priority = proto.priority();
  request.preview_every = proto.preview_every();
  request.reproducible = proto.reproducible();
  return request;
}

sample_pb::GetSamplerInfoResponse ToProto(const SamplerInfo& info, const SamplerLimits& limits) {
  sample_pb::GetSamplerInfoResponse proto;
  proto.set_model(info.model);
  proto.set_version(info.version);
  proto.set_experts(info.experts);
  proto.set_classes(info.classes);
  proto.set_channels(info.channels);
  proto.set_height(info.height);
  proto.set_width(info.width);
  proto.set_max_steps(limits.max_steps);
  proto.set_max_images_per_request(limits.max_images);
  proto.mutable_class_names()->Add(info.class_names.begin(), info.class_names.end());
  *proto.mutable_defaults() = ToProto(info.defaults, limits);
  return proto;
}

void AddVersions(const RouterVersions& versions, sample_pb::GetSamplerInfoResponse* response) {
  response->set_memory_budget_bytes(versions.memory_budget_bytes);
  for (const FollowedVersion& version : versions.versions) {
    if (version.model != response->model()) continue;
    sample_pb::RouterVersion* const proto = response->add_states();
    proto->set_version(version.version);
    proto->set_state(StateOf(version));
    proto->set_wanted(version.wanted);
    proto->set_requests(version.requests);
    proto->set_weight_bytes(version.weight_bytes);
    proto->set_own_weight_bytes(version.own_weight_bytes);
    proto->set_waits_for(version.waits_for);
  }
}

sample_pb::Image ToProto(SampledImage image) {
  sample_pb::Image proto;
  proto.set_index(image.index);
  proto.set_data(std::move(image.data));
  proto.set_channels(image.channels);
  proto.set_height(image.height);
  proto.set_width(image.width);
  proto.set_class_label(image.order.class_label);
  proto.set_seed(image.order.seed);
  return proto;
}

sample_pb::Done ToProto(const SampleReport& report) {
  sample_pb::Done proto;
  sample_pb::RoutingReport* routing = proto.mutable_routing();
  routing->mutable_chosen()->Add(report.routing.chosen.begin(), report.routing.chosen.end());
  routing->mutable_weight()->Add(report.routing.weight.begin(), report.routing.weight.end());
  routing->set_image_steps(report.routing.image_steps);
  routing->set_switches(report.routing.switches);
  routing->set_close_calls(report.routing.close_calls);
  routing->set_renormalised_image_steps(report.routing.renormalised_image_steps);
  routing->mutable_lost_experts()->Add(report.routing.lost_experts.begin(), report.routing.lost_experts.end());
  routing->set_failovers(report.routing.failovers);
  routing->set_mean_entropy(report.routing.mean_entropy());
  *proto.mutable_queue_time() = wire::ToProto(report.queue_time);
  *proto.mutable_sample_time() = wire::ToProto(report.sample_time);
  proto.set_version(report.version);
  *proto.mutable_first_image_time() = wire::ToProto(report.first_image_time);
  proto.set_fingerprint(report.fingerprint);
  return proto;
}

grpc::Status ToGrpcWithRetry(const absl::Status& status) {
  grpc::Status base = rpc::ToGrpc(status);
  const absl::Duration delay = RetryDelayOf(status);
  google::rpc::Status details;
  if (delay <= absl::ZeroDuration() || !grpc::ExtractErrorDetails(base, &details).ok()) return base;
  google::rpc::RetryInfo retry;
  *retry.mutable_retry_delay() = wire::ToProto(delay);
  details.add_details()->PackFrom(retry);
  grpc::Status result;
  grpc::SetErrorDetails(details, &result);
  return result;
}

}  // namespace atl::router
