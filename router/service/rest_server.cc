#include "router/service/rest_server.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <optional>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "civetweb.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/http/http_listen.h"
#include "fmt/format.h"
#include "router/service/rest_call.h"
#include "router/service/rest_http.h"
#include "router/service/rest_wire.h"
#include "router/service/sample_wire.h"

namespace atl::router {
namespace {

// Connections beside those that wait for images.
constexpr int kOtherConnections = 4;
// For a caller to notice that its body is not wanted.
constexpr absl::Duration kDrainTime = absl::Seconds(1);
constexpr std::string_view kApiPrefix = "/v1/";
constexpr char kImagesPath[] = "/v1/images/generations";
constexpr char kModelsPath[] = "/v1/models";
constexpr std::string_view kModelPrefix = "/v1/models/";
constexpr char kHealthPath[] = "/healthz";
// Of what the caller sent, in messages.
constexpr size_t kLongestShown = 100;

Reply MethodReply(const mg_request_info& request, std::string_view allowed) {
  Reply reply = ErrorReply(405, "METHOD_NOT_ALLOWED",
                           fmt::format("expected {} for this path, found {}", allowed, request.request_method));
  reply.extra_header = fmt::format("Allow: {}\r\n", allowed);
  return reply;
}

absl::string_view MediaType(absl::string_view content_type) {
  return absl::StripAsciiWhitespace(content_type.substr(0, content_type.find(';')));
}

uint64_t FreshSeed() {
  // 32 bits: a JSON reader that holds numbers as doubles gives it back unchanged.
  return std::random_device{}();
}

// A request for images that the engine has taken.
struct Accepted {
  SamplerInfo info;
  ImageFormat format = ImageFormat::kPng;
  bool stream = false;
  std::shared_ptr<RestCall> call;
  QuotaShare share;
  // Holds its place in the engine until the answer is written.
  std::unique_ptr<SampleTicket> ticket;
};

// One request, as long as it is served.
struct Exchange {
  mg_connection* connection = nullptr;
  const mg_request_info* request = nullptr;
  bool malformed = false;  // nobody knows where it ends
  bool body_read = false;  // all of it
  bool keep = false;       // the connection, as the caller was told
  bool streamed = false;   // the answer is written already
  http::HttpSubject caller;
  std::optional<Accepted> accepted;

  std::string_view method() const { return request->request_method; }
  // Whether nothing of the request is left on the connection.
  bool read() const {
    const bool has_body = request->content_length > 0 || mg_get_header(connection, "Transfer-Encoding") != nullptr;
    return !malformed && (body_read || !has_body);
  }
};

class CivetRestServer : public RestServer {
 public:
  CivetRestServer(RestOptions options, Engine* engine, Clock* clock, RestObserver observer)
      : options_(std::move(options)), engine_(engine), clock_(clock), observer_(std::move(observer)) {}

  absl::Status Open() {
    ATOLL_ASSIGN_OR_RETURN(http_, http::HttpPort::Open({.listen = options_.listen,
                                                        .what = "REST",
                                                        .open_flag = "--insecure-network",
                                                        .security = options_.security,
                                                        .max_connections = options_.max_connections},
                                                       clock_));
    const std::string threads =
        fmt::format("{}", std::max(options_.max_connections, options_.max_requests + kOtherConnections));
    const std::string timeout = fmt::format("{}", absl::ToInt64Milliseconds(options_.max_idle_time));
    const std::string head = fmt::format("{}", kMaxHeadBytes);
    const std::array<const char*, 17> settings = {"listening_ports",
                                                  http_->civet_listen().c_str(),
                                                  "num_threads",
                                                  threads.c_str(),
                                                  "request_timeout_ms",
                                                  timeout.c_str(),
                                                  "enable_keep_alive",
                                                  "yes",
                                                  "keep_alive_timeout_ms",
                                                  timeout.c_str(),
                                                  "enable_directory_listing",
                                                  "no",
                                                  "max_request_size",
                                                  head.c_str(),
                                                  "connection_queue",
                                                  "64",
                                                  nullptr};
    mg_callbacks callbacks{};
    callbacks.begin_request = [](mg_connection* connection) { return Of(connection)->Serve(connection); };
    callbacks.http_error = [](mg_connection* connection, int code, const char* message) {
      return Of(connection)->Malformed(connection, code, message);
    };
    callbacks.connection_close = [](const mg_connection* connection) { Of(connection)->TakeBack(connection); };
    context_ = mg_start(&callbacks, this, const_cast<const char**>(settings.data()));
    mg_server_port ports[1] = {};
    if (context_ == nullptr || mg_get_server_ports(context_, 1, ports) != 1) {
      return MakeError(
          absl::StatusCode::kUnavailable, "CANNOT_LISTEN",
          fmt::format("cannot serve REST at {}: the address is taken or not this machine's", options_.listen));
    }
    const std::string& listen = http_->civet_listen();
    civet_address_ = fmt::format("{}:{}", listen.substr(0, listen.rfind(':')), ports[0].port);
    http_->Serve(ports[0].port);
    address_ = http_->address();
    return absl::OkStatus();
  }

  ~CivetRestServer() override {
    stop_.Set();
    {
      // CivetWeb writes nothing once it stops: whoever waited for images gets an answer first.
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
      const auto answered = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return serving_ == 0; };
      mutex_.AwaitWithTimeout(absl::Condition(&answered), options_.max_transfer_time);
    }
    if (context_ != nullptr) http::CloseListener(civet_address_, [this] { mg_stop(context_); });
  }

  int port() const override { return http_->port(); }
  const std::string& address() const override { return address_; }

 private:
  static CivetRestServer* Of(const mg_connection* connection) {
    return static_cast<CivetRestServer*>(mg_get_request_info(connection)->user_data);
  }

  // Answers one request; returns its code, as CivetWeb wants it.
  int Serve(mg_connection* connection) {
    TakeBack(connection);
    AddServing(1);
    const absl::Cleanup served = [this] { AddServing(-1); };
    const absl::Duration start = clock_->Monotonic();
    Exchange exchange{.connection = connection, .request = mg_get_request_info(connection)};
    std::string_view route = "other";
    const Reply reply = Route(&exchange, &route);
    if (!exchange.streamed) {
      Keep(&exchange);
      if (!WriterOf(exchange).Write(reply, exchange.method() == "HEAD")) Close(&exchange);
    }
    if (!exchange.read()) {
      // CivetWeb would read all of a body that is refused, however long, or cut the answer off by closing before it.
      DrainSocket(SocketOf(exchange), kDrainTime);
    }
    if (observer_) observer_(route, reply.code, clock_->Monotonic() - start);
    return reply.code;
  }

  Reply Route(Exchange* exchange, std::string_view* route) {
    const mg_request_info& request = *exchange->request;
    const std::string_view path = request.local_uri == nullptr ? "" : request.local_uri;
    const std::string_view method = exchange->method();
    const bool reads = method == "GET" || method == "HEAD";
    if (std::optional<Reply> refused = RefuseHead(request)) {
      *route = "malformed";
      exchange->malformed = true;
      return *std::move(refused);
    }
    if (path.starts_with(kApiPrefix)) {
      absl::StatusOr<http::HttpSubject> caller = http_->Admit(exchange->connection, path);
      if (!caller.ok()) {
        *route = "refused";
        return ErrorReply(caller.status());
      }
      exchange->caller = *std::move(caller);
    }
    if (path == kImagesPath) {
      *route = "images";
      return method == "POST" ? Images(exchange) : MethodReply(request, "POST");
    }
    if (path == kModelsPath || (path.starts_with(kModelPrefix) && path.size() > kModelPrefix.size())) {
      *route = "models";
      return reads ? Models(path) : MethodReply(request, "GET, HEAD");
    }
    if (path == kHealthPath) {
      *route = "healthz";
      return reads ? Health() : MethodReply(request, "GET, HEAD");
    }
    return ErrorReply(404, "UNKNOWN_PATH",
                      fmt::format("expected {}, {} or {}, found {}", kImagesPath, kModelsPath, kHealthPath,
                                  path.substr(0, kLongestShown)));
  }

  void AddServing(int by) {
    absl::MutexLock lock(&mutex_);
    serving_ += by;
  }

  // Decides whether the connection stays open behind the answer. A kept one holds a thread while it is idle: too many
  // of them would leave none to others.
  void Keep(Exchange* exchange) {
    const bool wanted = AllowsKeepAlive(*exchange->request) && exchange->read();
    {
      absl::MutexLock lock(&mutex_);
      exchange->keep = wanted && !stopping_ && kept_ < options_.max_connections / 2;
      if (exchange->keep) ++kept_;
    }
    if (!exchange->keep) return mg_disable_connection_keep_alive(exchange->connection);
    mg_set_user_connection_data(exchange->connection, this);
  }
  void Close(Exchange* exchange) {
    exchange->keep = false;
    TakeBack(exchange->connection);
    mg_disable_connection_keep_alive(exchange->connection);
  }
  // A connection that was kept is used again, or closed.
  void TakeBack(const mg_connection* connection) {
    if (mg_get_user_connection_data(connection) == nullptr) return;
    mg_set_user_connection_data(connection, nullptr);
    absl::MutexLock lock(&mutex_);
    --kept_;
  }

  AnswerWriter WriterOf(const Exchange& exchange) {
    return AnswerWriter(exchange.connection, clock_, options_.max_transfer_time, exchange.keep);
  }
  static int SocketOf(const Exchange& exchange) {
    const mg_request_info& request = *exchange.request;
    return FindSocket(request.remote_addr, request.remote_port, request.server_port);
  }

  // What CivetWeb could not read: it closes the connection.
  int Malformed(mg_connection* connection, int code, const char* message) {
    const Reply reply = UnreadableReply(code, message);
    AnswerWriter(connection, clock_, options_.max_transfer_time, /*keep_alive=*/false).Write(reply);
    if (observer_) observer_("malformed", reply.code, absl::ZeroDuration());
    return 0;
  }

  Reply Health() {
    const bool healthy = engine_->takes_requests();
    return {.code = healthy ? 200 : 503, .body = healthy ? "ok\n" : "not ready\n", .type = "text/plain"};
  }

  Reply Models(std::string_view path) {
    const std::vector<SamplerInfo> served = engine_->Served();
    if (path == kModelsPath) return {.body = ModelsBody(served)};
    const absl::StatusOr<SamplerInfo> info = engine_->Info(std::string(path.substr(kModelPrefix.size())));
    return info.ok() ? Reply{.body = ModelBody(*info)} : ErrorReply(info.status());
  }

  Reply Images(Exchange* exchange) {
    // A page of another site may send a browser's plain forms here, but no JSON unless this server agreed.
    const char* type = mg_get_header(exchange->connection, "Content-Type");
    const absl::string_view found = type == nullptr ? "none" : type;
    if (!absl::EqualsIgnoreCase(MediaType(found), "application/json")) {
      return ErrorReply(415, "CONTENT_TYPE_NOT_JSON",
                        fmt::format("Content-Type: expected application/json, found {}",
                                    std::string(found.substr(0, kLongestShown))));
    }
    const int busy = busy_.fetch_add(1);
    const absl::Cleanup leave = [this] { busy_.fetch_sub(1); };
    if (busy >= options_.max_requests) {
      Reply reply = ErrorReply(
          429, "TOO_MANY_REQUESTS",
          fmt::format("{} REST requests wait for images already (--rest-max-requests); try again later", busy));
      reply.extra_header = "Retry-After: 1\r\n";
      return reply;
    }
    std::string body;
    if (const std::optional<Reply> refused = ReadBody(exchange, &body)) return *refused;
    // CivetWeb's threads have 100 KB of stack; what reads and decodes the bytes of strangers gets a whole one.
    absl::StatusOr<Reply> reply = absl::InternalError("not run");
    std::thread([&] { reply = Sample(body, exchange); }).join();
    return reply.ok() ? *std::move(reply) : ErrorReply(reply.status());
  }

  std::optional<Reply> ReadBody(Exchange* exchange, std::string* body) {
    // Small pieces: CivetWeb waits for each of them for the whole time, however slowly its bytes come.
    std::array<char, 4096> piece;
    const size_t most = options_.max_body_bytes;
    const int64_t length = exchange->request->content_length;
    const absl::Duration end = clock_->Monotonic() + options_.max_transfer_time;
    bool too_large = length > static_cast<int64_t>(most);
    if (const char* expect = mg_get_header(exchange->connection, "Expect"); expect != nullptr && !too_large) {
      constexpr std::string_view kContinue = "HTTP/1.1 100 Continue\r\n\r\n";
      mg_write(exchange->connection, kContinue.data(), kContinue.size());
    }
    while (!too_large) {
      const int read = mg_read(exchange->connection, piece.data(), piece.size());
      if (read <= 0) break;
      body->append(piece.data(), read);
      too_large = body->size() > most;
      if (clock_->Monotonic() > end) return ErrorReply(408, "BODY_TOO_SLOW", "the body did not come in time");
    }
    if (too_large) {
      return ErrorReply(413, "BODY_TOO_LARGE", fmt::format("expected a body of at most {} bytes", most));
    }
    if (length >= 0 && body->size() < static_cast<size_t>(length)) {
      return ErrorReply(400, "BODY_TRUNCATED",
                        fmt::format("expected {} bytes as Content-Length says, found {}", length, body->size()));
    }
    exchange->body_read = true;
    return std::nullopt;
  }

  absl::StatusOr<Reply> Sample(const std::string& body, Exchange* exchange) {
    // First: the socket of a caller that has hung up and was written to since has no peer by which it could be found.
    const int socket = SocketOf(*exchange);
    ATOLL_ASSIGN_OR_RETURN(exchange->accepted, Submit(body, exchange->caller));
    Accepted& accepted = *exchange->accepted;
    if (accepted.stream) {
      Stream(exchange, socket);
      return Reply{};
    }
    if (absl::Status status = accepted.call->Await(socket, stop_); !status.ok()) {
      accepted.ticket.reset();
      return status;
    }
    return Reply{.body = ImagesBody(clock_->Now(), accepted.info, accepted.format, accepted.call->TakeImages(),
                                    accepted.call->report())};
  }

  absl::StatusOr<Accepted> Submit(const std::string& body, const http::HttpSubject& caller) {
    const SamplerLimits& limits = engine_->options().limits;
    const int32_t max_images = std::min(options_.max_images, limits.max_images);
    ATOLL_ASSIGN_OR_RETURN(const ImagesRequest asked, ParseImagesRequest(body, max_images));
    Accepted accepted{.stream = asked.stream, .call = std::make_shared<RestCall>()};
    ATOLL_ASSIGN_OR_RETURN(accepted.info, engine_->Info(asked.sample.model()));
    ATOLL_ASSIGN_OR_RETURN(const atlpb::sample::v1::SampleRequest complete,
                           CompleteRequest(asked, accepted.info, FreshSeed()));
    ATOLL_ASSIGN_OR_RETURN(const SampleRequest sample, FromProto(complete, limits));
    accepted.format = sample.format;
    if (options_.quotas != nullptr) {
      const auto images = static_cast<int64_t>(sample.classes.size());
      const ImageQuota quota{.in_flight = caller.images_in_flight, .per_minute = caller.images_per_minute};
      ATOLL_ASSIGN_OR_RETURN(accepted.share, options_.quotas->Take(caller.name, images, quota, clock_->Monotonic()));
    }
    auto ticket = engine_->Submit(sample, clock_->Monotonic() + asked.timeout, accepted.call);
    if (!ticket.ok()) {
      accepted.share.Refund();
      return ticket.status();
    }
    accepted.ticket = *std::move(ticket);
    return accepted;
  }

  // Writes what comes of the request as it comes. Its place is given back as soon as its caller is gone.
  void Stream(Exchange* exchange, int socket) {
    Keep(exchange);
    exchange->streamed = true;
    AnswerWriter writer = WriterOf(*exchange);
    const bool chunked = std::string_view(exchange->request->http_version) == "1.1";
    if (writer.BeginStream("text/event-stream", chunked) && WriteEvents(*exchange, socket, &writer) &&
        writer.EndStream()) {
      return;
    }
    exchange->accepted->ticket.reset();
    Close(exchange);
  }

  // False when the caller is gone, or too slow.
  bool WriteEvents(const Exchange& exchange, int socket, AnswerWriter* writer) {
    const Accepted& accepted = *exchange.accepted;
    std::map<int32_t, int32_t> partials;  // by image: how many were sent
    while (true) {
      const absl::StatusOr<RestCall::News> news = accepted.call->AwaitNews(socket, stop_);
      if (!news.ok()) return writer->WritePiece(ErrorEvent(news.status()));
      const absl::Time now = clock_->Now();
      for (const SampledImage& preview : news->previews) {
        const int32_t number = partials[preview.index]++;
        if (!writer->WritePiece(PartialImageEvent(now, accepted.info, accepted.format, number, preview))) return false;
      }
      for (const SampledImage& image : news->images) {
        if (!writer->WritePiece(CompletedImageEvent(now, accepted.info, accepted.format, image))) return false;
      }
      if (news->over) return writer->WritePiece(DoneEvent(accepted.info, accepted.call->report()));
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
  int kept_ ABSL_GUARDED_BY(mutex_) = 0;     // connections that wait for another request
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<http::HttpPort> http_;
  mg_context* context_ = nullptr;
  std::string civet_address_;
  std::string address_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<RestServer>> RestServer::Start(const RestOptions& options, Engine* engine, Clock* clock,
                                                              RestObserver observer) {
  auto server = std::make_unique<CivetRestServer>(options, engine, clock, std::move(observer));
  ATOLL_RETURN_IF_ERROR(server->Open());
  return server;
}

}  // namespace atl::router
