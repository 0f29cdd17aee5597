#include "router/rest/rest_server.h"

#include <algorithm>
#include <optional>
#include <random>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"
#include "router/policy/admission.h"
#include "router/rest/rest_call.h"
#include "router/rest/rest_wire.h"
#include "router/service/sample_wire.h"

namespace atl::router {
namespace {

constexpr std::string_view kApiPrefix = "/v1/";
constexpr std::string_view kImagesPath = "/v1/images/generations";
constexpr std::string_view kModelsPath = "/v1/models";
constexpr std::string_view kModelPrefix = "/v1/models/";
constexpr std::string_view kHealthPath = "/healthz";
// Bytes of a caller's text that a message repeats.
constexpr size_t kLongestShown = 100;

http::HttpResponse Refusal(int code, absl::StatusCode kind, std::string_view reason, std::string_view message) {
  return ErrorReply(code, MakeError(kind, reason, message));
}

bool IsModelPath(std::string_view path) {
  return path == kModelsPath || (path.starts_with(kModelPrefix) && path.size() > kModelPrefix.size() &&
                                 path.find('/', kModelPrefix.size()) == std::string_view::npos);
}

absl::string_view MediaType(absl::string_view content_type) {
  return absl::StripAsciiWhitespace(content_type.substr(0, content_type.find(';')));
}

uint64_t FreshSeed() {
  // 32 bits: a JSON reader that holds numbers as doubles gives it back unchanged.
  return std::random_device{}();
}

std::string_view RouteOf(const http::HttpRequest& request, int code) {
  if (request.path.empty()) return "malformed";
  if (code == 401 || code == 403) return "refused";
  if (request.path == kImagesPath) return "images";
  if (IsModelPath(request.path)) return "models";
  return request.path == kHealthPath ? "healthz" : "other";
}

class HttpRestServer : public RestServer, private http::HttpService {
 public:
  HttpRestServer(RestOptions options, Engine* engine, Clock* clock, RestObserver observer)
      : options_(std::move(options)), engine_(engine), clock_(clock), observer_(std::move(observer)) {}

  absl::Status Open() {
    ATOLL_ASSIGN_OR_RETURN(server_, http::HttpServer::Start({.listen = options_.listen,
                                                             .what = "REST",
                                                             .open_flag = "--insecure-network",
                                                             .security = options_.security,
                                                             .max_connections = options_.max_connections,
                                                             .limits = options_.limits},
                                                            this));
    return absl::OkStatus();
  }

  int port() const override { return server_->port(); }
  const std::string& address() const override { return server_->address(); }

 private:
  bool IsGuarded(std::string_view path) const override { return path.starts_with(kApiPrefix); }

  std::optional<http::HttpResponse> CheckHead(const http::HttpRequest& request, size_t* max_body_bytes) override {
    const bool images = request.path == kImagesPath;
    if (!images && !IsModelPath(request.path) && request.path != kHealthPath) {
      return Refusal(404, absl::StatusCode::kNotFound, "UNKNOWN_PATH",
                     fmt::format("expected {}, {} or {}, found {}", kImagesPath, kModelsPath, kHealthPath,
                                 request.path.substr(0, kLongestShown)));
    }
    const std::string_view allowed = images ? "POST" : "GET, HEAD";
    const bool reads = request.method == "GET" || request.method == "HEAD";
    if (images ? request.method != "POST" : !reads) {
      http::HttpResponse reply =
          Refusal(405, absl::StatusCode::kInvalidArgument, "METHOD_NOT_ALLOWED",
                  fmt::format("expected {} for this path, found {}", allowed, request.method.substr(0, kLongestShown)));
      reply.headers.emplace_back("Allow", allowed);
      return reply;
    }
    if (!images) return std::nullopt;
    // A page of another site may send a browser's plain forms here, but no JSON unless this server agreed.
    const std::string type = request.header("content-type");
    if (!absl::EqualsIgnoreCase(MediaType(type), "application/json")) {
      return Refusal(415, absl::StatusCode::kInvalidArgument, "CONTENT_TYPE_NOT_JSON",
                     fmt::format("Content-Type: expected application/json, found {}",
                                 type.empty() ? "none" : type.substr(0, kLongestShown)));
    }
    *max_body_bytes = options_.max_body_bytes;
    return std::nullopt;
  }

  void Handle(std::shared_ptr<http::HttpExchange> exchange) override {
    const std::string& path = exchange->request().path;
    if (path == kImagesPath) {
      if (const absl::Status status = Sample(exchange); !status.ok()) exchange->Answer(ErrorReply(status));
    } else if (path == kHealthPath) {
      const bool healthy = engine_->takes_requests();
      exchange->Answer({.code = healthy ? 200 : 503, .body = healthy ? "ok\n" : "not ready\n"});
    } else {
      exchange->Answer(Models(path));
    }
  }

  http::HttpResponse ErrorResponse(int code, const absl::Status& status) const override {
    return ErrorReply(code, status);
  }

  void OnAnswered(const http::HttpRequest& request, int code, absl::Duration duration) override {
    if (observer_) observer_(RouteOf(request, code), code, duration);
  }

  http::HttpResponse Models(std::string_view path) {
    constexpr char kJson[] = "application/json";
    if (path == kModelsPath) return {.body = ModelsBody(engine_->Served()), .type = kJson};
    const absl::StatusOr<SamplerInfo> info = engine_->Info(std::string(path.substr(kModelPrefix.size())));
    return info.ok() ? http::HttpResponse{.body = ModelBody(*info), .type = kJson} : ErrorReply(info.status());
  }

  // Hands the request to the engine. An error is the caller's to answer.
  absl::Status Sample(const std::shared_ptr<http::HttpExchange>& exchange) {
    const http::HttpRequest& request = exchange->request();
    const SamplerLimits& limits = engine_->options().limits;
    const int32_t max_images = std::min(options_.max_images, limits.max_images);
    ATOLL_ASSIGN_OR_RETURN(const ImagesRequest asked, ParseImagesRequest(request.body, max_images));
    ATOLL_ASSIGN_OR_RETURN(const SamplerInfo info, engine_->Info(asked.sample.model()));
    ATOLL_ASSIGN_OR_RETURN(const atlpb::sample::v1::SampleRequest complete, CompleteRequest(asked, info, FreshSeed()));
    ATOLL_ASSIGN_OR_RETURN(const SampleRequest sample, FromProto(complete, limits));
    CallerQuotas::Share share;
    const http::HttpSubject& caller = request.subject;
    const auto images = static_cast<int64_t>(sample.classes.size());
    const ImageQuota quota{.in_flight = caller.images_in_flight, .per_minute = caller.images_per_minute};
    if (options_.quotas != nullptr) {
      ATOLL_ASSIGN_OR_RETURN(share, options_.quotas->Take(caller.name, images, quota, clock_->Monotonic()));
    }
    const auto call = std::make_shared<RestCall>(exchange, info, sample.format, asked.stream, clock_);
    auto ticket = engine_->Submit(sample, clock_->Monotonic() + asked.timeout, call);
    if (!ticket.ok()) {
      if (options_.quotas != nullptr) options_.quotas->Refund(caller.name, images, quota);
      return ticket.status();
    }
    // Held until the answer is written or its caller is gone.
    struct Held {
      CallerQuotas::Share share;
      std::unique_ptr<SampleTicket> ticket;
    };
    const auto held = std::make_shared<Held>(Held{std::move(share), *std::move(ticket)});
    exchange->OnGone([held, call](const absl::Status& why) { call->OnError(why); });
    call->Begin();
    return absl::OkStatus();
  }

  const RestOptions options_;
  Engine* const engine_;
  Clock* const clock_;
  const RestObserver observer_;
  std::unique_ptr<http::HttpServer> server_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RestServer>> RestServer::Start(const RestOptions& options, Engine* engine, Clock* clock,
                                                              RestObserver observer) {
  auto server = std::make_unique<HttpRestServer>(options, engine, clock, std::move(observer));
  ATOLL_RETURN_IF_ERROR(server->Open());
  return server;
}

}  // namespace atl::router
