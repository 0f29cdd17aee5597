#include "router/service/rest_server.h"

#include <array>
#include <atomic>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/synchronization/mutex.h"
#include "civetweb.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/metrics/http_listen.h"
#include "fmt/format.h"
#include "router/policy/admission.h"
#include "router/service/rest_call.h"
#include "router/service/rest_wire.h"
#include "router/service/sample_wire.h"

namespace atl::router {
namespace {

// Threads beside those that wait for images.
constexpr int kOtherThreads = 4;
// For a caller to notice that its body is not wanted.
constexpr absl::Duration kDrainTime = absl::Seconds(1);
constexpr char kImagesPath[] = "/v1/images/generations";
constexpr char kModelsPath[] = "/v1/models";
constexpr std::string_view kModelPrefix = "/v1/models/";
constexpr char kHealthPath[] = "/healthz";

struct Reply {
  int code = 200;
  std::string body;
  const char* type = "application/json";
  std::string extra_header;  // with its line end
  bool body_unread = false;
};

Reply ErrorReply(const absl::Status& status) {
  Reply reply{.code = HttpCode(status.code()), .body = ErrorBody(status)};
  const absl::Duration delay = RetryDelayOf(status);
  if (delay > absl::ZeroDuration()) {
    const int64_t seconds = absl::ToInt64Seconds(absl::Ceil(delay, absl::Seconds(1)));
    reply.extra_header = fmt::format("Retry-After: {}\r\n", seconds);
  }
  return reply;
}

Reply ErrorReply(int code, std::string_view reason, std::string_view message) {
  Reply reply = ErrorReply(MakeError(absl::StatusCode::kInvalidArgument, reason, message));
  reply.code = code;
  reply.body_unread = true;
  return reply;
}

Reply MethodReply(const mg_request_info& request, std::string_view allowed) {
  Reply reply = ErrorReply(405, "METHOD_NOT_ALLOWED",
                           fmt::format("expected {} for this path, found {}", allowed, request.request_method));
  reply.extra_header = fmt::format("Allow: {}\r\n", allowed);
  return reply;
}

std::string_view ReasonPhrase(int code) {
  switch (code) {
    case 200:
      return "OK";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 429:
      return "Too Many Requests";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    default:
      return code < 500 ? "Bad Request" : "Internal Server Error";
  }
}

uint64_t FreshSeed() {
  // 32 bits: a JSON reader that holds numbers as doubles gives it back unchanged.
  return std::random_device{}();
}

class CivetRestServer : public RestServer {
 public:
  CivetRestServer(RestOptions options, Engine* engine, Clock* clock, RestObserver observer)
      : options_(std::move(options)), engine_(engine), clock_(clock), observer_(std::move(observer)) {}

  absl::Status Open() {
    const std::string threads = fmt::format("{}", options_.max_requests + kOtherThreads);
    const std::string timeout = fmt::format("{}", absl::ToInt64Milliseconds(options_.max_transfer_time));
    const std::array<const char*, 13> settings = {"listening_ports", options_.listen.c_str(), "num_threads",
                                                  threads.c_str(), "request_timeout_ms", timeout.c_str(),
                                                  // An idle connection would hold a thread.
                                                  "enable_keep_alive", "no", "enable_directory_listing", "no",
                                                  "connection_queue", "64", nullptr};
    mg_callbacks callbacks{};
    callbacks.begin_request = [](mg_connection* connection) { return Of(connection)->Serve(connection); };
    callbacks.http_error = [](mg_connection* connection, int code, const char* message) {
      return Of(connection)->Malformed(connection, code, message);
    };
    context_ = mg_start(&callbacks, this, const_cast<const char**>(settings.data()));
    mg_server_port ports[1] = {};
    if (context_ == nullptr || mg_get_server_ports(context_, 1, ports) != 1) {
      return MakeError(
          absl::StatusCode::kUnavailable, "CANNOT_LISTEN",
          fmt::format("cannot serve REST at {}: the address is taken or not this machine's", options_.listen));
    }
    port_ = ports[0].port;
    address_ = fmt::format("{}:{}", options_.listen.substr(0, options_.listen.rfind(':')), port_);
    return absl::OkStatus();
  }

  ~CivetRestServer() override {
    stop_.Set();
    {
      // CivetWeb writes nothing once it stops: whoever waited for images gets an answer first.
      absl::MutexLock lock(&mutex_);
      const auto answered = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return serving_ == 0; };
      mutex_.AwaitWithTimeout(absl::Condition(&answered), options_.max_transfer_time);
    }
    if (context_ != nullptr) metrics::CloseListener(address_, [this] { mg_stop(context_); });
  }

  int port() const override { return port_; }
  const std::string& address() const override { return address_; }

 private:
  static CivetRestServer* Of(const mg_connection* connection) {
    return static_cast<CivetRestServer*>(mg_get_request_info(connection)->user_data);
  }

  // Answers one request; returns its code, as CivetWeb wants it.
  int Serve(mg_connection* connection) {
    AddServing(1);
    const absl::Cleanup served = [this] { AddServing(-1); };
    const absl::Duration start = clock_->Monotonic();
    const mg_request_info& request = *mg_get_request_info(connection);
    const std::string_view path = request.local_uri == nullptr ? "" : request.local_uri;
    const std::string_view method = request.request_method;
    std::string_view route = "other";
    Reply reply;
    // Holds its place in the engine until the answer is written.
    std::unique_ptr<SampleTicket> ticket;
    if (path == kImagesPath) {
      route = "images";
      reply = method == "POST" ? Images(connection, request, &ticket) : MethodReply(request, "POST");
    } else if (path == kModelsPath || path.starts_with(kModelPrefix)) {
      route = "models";
      reply = method == "GET" ? Models(path) : MethodReply(request, "GET");
    } else if (path == kHealthPath) {
      route = "healthz";
      reply = method == "GET" ? Health() : MethodReply(request, "GET");
    } else {
      reply =
          ErrorReply(404, "UNKNOWN_PATH", fmt::format("expected {}, {} or {}", kImagesPath, kModelsPath, kHealthPath));
    }
    Send(connection, reply);
    if (reply.body_unread && method != "GET") {
      // CivetWeb would read all of a body that is refused, however long, or cut the answer off by closing before it.
      mg_disable_connection_keep_alive(connection);
      DrainSocket(FindSocket(request.remote_addr, request.remote_port), kDrainTime);
    }
    if (observer_) observer_(route, reply.code, clock_->Monotonic() - start);
    return reply.code;
  }

  void AddServing(int by) {
    absl::MutexLock lock(&mutex_);
    serving_ += by;
  }

  // What CivetWeb could not read.
  int Malformed(mg_connection* connection, int code, const char* message) {
    Send(connection, ErrorReply(code, "REQUEST_MALFORMED", message));
    if (observer_) observer_("malformed", code, absl::ZeroDuration());
    return 0;
  }

  Reply Health() {
    const bool healthy = engine_->serves_any();
    return {.code = healthy ? 200 : 503, .body = healthy ? "ok\n" : "not ready\n", .type = "text/plain"};
  }

  Reply Models(std::string_view path) {
    const std::vector<SamplerInfo> served = engine_->Served();
    if (path == kModelsPath) return {.body = ModelsBody(served)};
    const absl::StatusOr<SamplerInfo> info = engine_->Info(std::string(path.substr(kModelPrefix.size())));
    return info.ok() ? Reply{.body = ModelBody(*info)} : ErrorReply(info.status());
  }

  Reply Images(mg_connection* connection, const mg_request_info& request, std::unique_ptr<SampleTicket>* ticket) {
    // A page of another site may send a browser's plain forms here, but no JSON unless this server agreed.
    const char* type = mg_get_header(connection, "Content-Type");
    if (type == nullptr || !absl::StartsWithIgnoreCase(type, "application/json")) {
      return ErrorReply(415, "CONTENT_TYPE_NOT_JSON", "Content-Type: expected application/json");
    }
    const int busy = busy_.fetch_add(1);
    const absl::Cleanup leave = [this] { busy_.fetch_sub(1); };
    if (busy >= options_.max_requests) {
      Reply reply = ErrorReply(429, "TOO_MANY_REQUESTS",
                               fmt::format("{} REST requests wait for images already; try again later", busy));
      reply.extra_header = "Retry-After: 1\r\n";
      return reply;
    }
    std::string body;
    if (const std::optional<Reply> refused = ReadBody(connection, request, &body)) return *refused;
    // CivetWeb's threads have 100 KB of stack; what reads and decodes the bytes of strangers gets a whole one.
    const int socket = FindSocket(request.remote_addr, request.remote_port);
    absl::StatusOr<Reply> reply = absl::InternalError("not run");
    std::thread([&] { reply = Sample(body, socket, ticket); }).join();
    return reply.ok() ? *std::move(reply) : ErrorReply(reply.status());
  }

  std::optional<Reply> ReadBody(mg_connection* connection, const mg_request_info& request, std::string* body) {
    // Small pieces: CivetWeb waits for each of them for the whole time, however slowly its bytes come.
    std::array<char, 4096> piece;
    const size_t most = options_.max_body_bytes;
    const absl::Duration end = clock_->Monotonic() + options_.max_transfer_time;
    bool too_large = request.content_length > static_cast<int64_t>(most);
    while (!too_large) {
      const int read = mg_read(connection, piece.data(), piece.size());
      if (read <= 0) break;
      body->append(piece.data(), read);
      too_large = body->size() > most;
      if (clock_->Monotonic() > end) return ErrorReply(408, "BODY_TOO_SLOW", "the body did not come in time");
    }
    if (too_large) {
      return ErrorReply(413, "BODY_TOO_LARGE", fmt::format("expected a body of at most {} bytes", most));
    }
    if (request.content_length >= 0 && body->size() < static_cast<size_t>(request.content_length)) {
      return ErrorReply(
          400, "BODY_TRUNCATED",
          fmt::format("expected {} bytes as Content-Length says, found {}", request.content_length, body->size()));
    }
    return std::nullopt;
  }

  absl::StatusOr<Reply> Sample(const std::string& body, int socket, std::unique_ptr<SampleTicket>* ticket) {
    const SamplerLimits& limits = engine_->options().limits;
    const int32_t max_images = std::min(options_.max_images, limits.max_images);
    ATOLL_ASSIGN_OR_RETURN(const ImagesRequest asked, ParseImagesRequest(body, max_images));
    ATOLL_ASSIGN_OR_RETURN(const SamplerInfo info, engine_->Info(asked.sample.model()));
    ATOLL_ASSIGN_OR_RETURN(const atlpb::sample::v1::SampleRequest complete, CompleteRequest(asked, info, FreshSeed()));
    ATOLL_ASSIGN_OR_RETURN(const SampleRequest sample, FromProto(complete, limits));
    const auto call = std::make_shared<RestCall>();
    ATOLL_ASSIGN_OR_RETURN(*ticket, engine_->Submit(sample, clock_->Monotonic() + asked.timeout, call));
    if (absl::Status status = call->Await(socket, stop_); !status.ok()) {
      ticket->reset();
      return status;
    }
    return Reply{.body = ImagesBody(clock_->Now(), info, sample.format, call->TakeImages(), call->report())};
  }

  void Send(mg_connection* connection, const Reply& reply) {
    const std::string head = fmt::format(
        "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n{}Connection: close\r\n"
        "\r\n",
        reply.code, ReasonPhrase(reply.code), reply.type, reply.body.size(), reply.extra_header);
    constexpr size_t kPiece = 65'536;
    const absl::Duration end = clock_->Monotonic() + options_.max_transfer_time;
    if (mg_write(connection, head.data(), head.size()) <= 0) return;
    for (size_t at = 0; at < reply.body.size() && clock_->Monotonic() < end; at += kPiece) {
      if (mg_write(connection, reply.body.data() + at, std::min(kPiece, reply.body.size() - at)) <= 0) return;
    }
  }

  const RestOptions options_;
  Engine* const engine_;
  Clock* const clock_;
  const RestObserver observer_;
  WakeUp stop_;
  std::atomic<int> busy_ = 0;  // requests for images
  absl::Mutex mutex_;
  int serving_ ABSL_GUARDED_BY(mutex_) = 0;  // requests of any kind
  mg_context* context_ = nullptr;
  int port_ = 0;
  std::string address_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RestServer>> RestServer::Start(const RestOptions& options, Engine* engine, Clock* clock,
                                                              RestObserver observer) {
  ATOLL_RETURN_IF_ERROR(metrics::CheckListenAddress(options.listen, "REST"));
  auto server = std::make_unique<CivetRestServer>(options, engine, clock, std::move(observer));
  ATOLL_RETURN_IF_ERROR(server->Open());
  return server;
}

}  // namespace atl::router
