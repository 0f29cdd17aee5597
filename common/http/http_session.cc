#include "common/http/http_session.h"

#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/strip.h"
#include "boost/asio/post.hpp"
#include "boost/asio/write.hpp"
#include "common/base/errors.h"
#include "common/http/tls_folder.h"
#include "fmt/format.h"
#include "openssl/err.h"
#include "openssl/ssl.h"

namespace atl::http {
namespace {

namespace asio = boost::asio;
namespace bhttp = boost::beast::http;

// Bytes that a session reads ahead of its parser. It reads no more from a caller that sends on before its answer.
constexpr size_t kMaxBuffered = size_t{64} << 10;

constexpr std::string_view kNotTls =
    "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: 43\r\nConnection: close\r\n\r\n"
    "this port speaks TLS: use https, not http.\n";
constexpr absl::string_view kBearer = "Bearer ";

absl::string_view View(boost::beast::string_view text) {
  return {text.data(), text.size()};
}

absl::Status Malformed(std::string_view what) {
  return MakeError(absl::StatusCode::kInvalidArgument, "REQUEST_MALFORMED", what);
}

// The path of a request's target: without its query, its escapes replaced. Empty for what is none.
std::string PathOf(absl::string_view target) {
  target = target.substr(0, target.find('?'));
  std::string path;
  for (size_t i = 0; i < target.size(); ++i) {
    if (target[i] != '%') {
      path += target[i];
      continue;
    }
    if (i + 2 >= target.size() || !absl::ascii_isxdigit(target[i + 1]) || !absl::ascii_isxdigit(target[i + 2])) {
      return "";
    }
    path += static_cast<char>(std::stoi(std::string(target.substr(i + 1, 2)), nullptr, 16));
    i += 2;
  }
  return path.starts_with('/') && path.find('\0') == std::string::npos ? path : "";
}

std::string ReasonPhrase(int code) {
  if (code == 499) return "Client Closed Request";
  return std::string(View(bhttp::obsolete_reason(bhttp::int_to_status(code))));
}

}  // namespace

void HttpThreads::Post(std::function<void()> work) {
  absl::MutexLock lock(&mutex_);
  if (io_ != nullptr) asio::post(*io_, std::move(work));
}

void HttpThreads::Run(std::function<void()> work) {
  absl::MutexLock lock(&mutex_);
  if (handlers_ != nullptr) asio::post(*handlers_, std::move(work));
}

void HttpThreads::Close() {
  absl::MutexLock lock(&mutex_);
  io_ = nullptr;
  handlers_ = nullptr;
}

class Session::Exchange : public HttpExchange, public std::enable_shared_from_this<Exchange> {
 public:
  Exchange(const std::shared_ptr<Session>& session, HttpRequest request)
      : session_(session), threads_(session->context_.threads), request_(std::move(request)) {}

  const HttpRequest& request() const override { return request_; }
  void Answer(HttpResponse response) override {
    Post([response = std::move(response)](Session& session) mutable { session.Respond(std::move(response)); });
  }
  void StartStream(std::string type, std::function<void()> sent) override {
    Post([type = std::move(type), sent = std::move(sent)](Session& session) { session.StartStream(type, sent); });
  }
  void Send(std::string piece, std::function<void()> sent) override {
    Post([piece = std::move(piece), sent = std::move(sent)](Session& session) {
      session.Write("", session.Framed(piece), [&session, sent] { session.AwaitPiece(sent); });
    });
  }
  void EndStream(std::string piece) override {
    Post([piece = std::move(piece)](Session& session) {
      session.Write("", session.Framed(piece) + (session.chunked_ ? "0\r\n\r\n" : ""),
                    [&session] { session.Finish(); });
    });
  }
  void OnGone(std::function<void(const absl::Status&)> gone) override {
    Post([gone = std::move(gone)](Session& session) mutable {
      session.gone_ = std::move(gone);
      if (!session.why_gone_.ok()) session.gone_(session.why_gone_);
    });
  }
  void Run(std::function<void()> work) override { threads_->Run(std::move(work)); }

 private:
  // Runs `act` on the server's thread, if the session is still at this exchange.
  void Post(std::function<void(Session&)> act) {
    threads_->Post([exchange = shared_from_this(), act = std::move(act)] {
      const std::shared_ptr<Session> session = exchange->session_.lock();
      if (session != nullptr && session->exchange_ == exchange) act(*session);
    });
  }

  const std::weak_ptr<Session> session_;
  const std::shared_ptr<HttpThreads> threads_;
  const HttpRequest request_;
};

Session::Session(const Context& context, asio::ip::tcp::socket socket, SSL_CTX* tls)
    : context_(context), socket_(std::move(socket)), timer_(socket_.get_executor()) {
  Error error;
  const asio::ip::tcp::endpoint peer = socket_.remote_endpoint(error);
  const std::string host = peer.address().to_string();
  caller_.address = fmt::format("{}:{}", peer.address().is_v6() ? "[" + host + "]" : host, peer.port());
  // The last piece of an answer would wait for the caller's acknowledgement of the one before.
  socket_.set_option(asio::ip::tcp::no_delay(true), error);
  if (tls == nullptr) return;
  SSL_CTX_up_ref(tls);
  asio::ssl::context shared(tls);  // takes the reference
  tls_.emplace(socket_, shared);
}

void Session::Start() {
  NewParser();
  Enter(Phase::kStart, context_.limits->start_time);
  if (!tls_) return ReadMore();
  tls_->async_handshake(asio::ssl::stream_base::server,
                        [self = shared_from_this()](const Error& error) { self->OnHandshake(error); });
}

void Session::OnHandshake(const Error& error) {
  if (phase_ == Phase::kClosed) return;
  if (!error) {
    handshaken_ = true;
    caller_.certificate_names = NamesOf(SSL_get0_peer_certificate(tls_->native_handle()));
    return ReadMore();
  }
  if (ERR_GET_REASON(static_cast<unsigned long>(error.value())) != SSL_R_HTTP_REQUEST) return Close();
  asio::async_write(socket_, asio::buffer(kNotTls.data(), kNotTls.size()),
                    [self = shared_from_this()](const Error&, size_t) { self->BeginClose(); });
}

void Session::Stop() {
  stopping_ = true;
  if (phase_ == Phase::kStart || phase_ == Phase::kBody || phase_ == Phase::kIdle) return Close();
  TellGone(MakeError(absl::StatusCode::kUnavailable, "DRAINING",
                     "the server is shutting down; send the request to another"));
}

Session::Time Session::spare_from() const {
  if (phase_ == Phase::kIdle) return since_ - std::chrono::hours(1);  // before all others
  // If the service accepted no body, the answer was cheap.
  const bool cheap_answer = phase_ == Phase::kWriting && max_body_bytes_ == 0;
  if (phase_ != Phase::kStart && phase_ != Phase::kBody && !cheap_answer) return Time::max();
  return since_ + absl::ToChronoMilliseconds(context_.limits->crowded_time);
}

void Session::Enter(Phase phase, absl::Duration deadline) {
  phase_ = phase;
  since_ = std::chrono::steady_clock::now();
  timer_.expires_at(deadline == absl::InfiniteDuration() ? Time::max() : since_ + absl::ToChronoNanoseconds(deadline));
  timer_.async_wait([self = shared_from_this()](const Error& error) {
    if (!error && self->timer_.expiry() <= std::chrono::steady_clock::now()) self->OnDeadline();
  });
}

void Session::OnDeadline() {
  if (phase_ != Phase::kBody || writing_) return Close();
  Refuse(408, MakeError(absl::StatusCode::kInvalidArgument, "BODY_TOO_SLOW", "the body did not come in time"));
  // A caller that is slow to send may be slow to read.
  Enter(phase_, context_.limits->close_time);
}

void Session::ReadMore() {
  if (reading_ || ended_ || phase_ == Phase::kClosed) return;
  if (phase_ != Phase::kClosing && buffer_.size() >= kMaxBuffered) return;
  reading_ = true;
  Done done = [self = shared_from_this()](const Error& error, size_t size) {
    self->reading_ = false;
    self->buffer_.append(self->piece_.data(), size);
    self->OnRead(error);
  };
  // A closing connection discards bytes without decrypting them.
  if (handshaken_ && phase_ != Phase::kClosing) {
    tls_->async_read_some(asio::buffer(piece_), std::move(done));
  } else {
    socket_.async_read_some(asio::buffer(piece_), std::move(done));
  }
}

void Session::OnRead(const Error& error) {
  ended_ = static_cast<bool>(error);
  switch (phase_) {
    case Phase::kStart:
    case Phase::kIdle:
      return ended_ ? Close() : Parse();
    case Phase::kBody:
      if (!ended_) return Parse();
      if (writing_) return Close();
      return Refuse(400, MakeError(absl::StatusCode::kInvalidArgument, "BODY_TRUNCATED",
                                   fmt::format("expected the end of the body, found the end of the connection after "
                                               "{} bytes of it",
                                               parser_->get().body().size())));
    case Phase::kHandling:
    case Phase::kWriting:
      if (!ended_) return ReadMore();
      return TellGone(MakeError(absl::StatusCode::kCancelled, "REQUEST_CANCELLED", "the caller hung up"));
    case Phase::kClosing:
      buffer_.clear();
      return ended_ ? Close() : ReadMore();
    case Phase::kClosed:
      return;
  }
}

void Session::NewParser() {
  parser_.emplace();
  parser_->header_limit(kMaxHeadBytes);
  parser_->body_limit(std::numeric_limits<uint64_t>::max());  // until the head is known
  head_bytes_ = 0;
  max_body_bytes_ = 0;
}

void Session::Parse() {
  if (writing_) return;  // continues after the write
  if (phase_ == Phase::kBody) return ParseBody();
  if (head_bytes_ == 0) {
    // Clients may end a request with an empty line.
    buffer_.erase(0, std::min(buffer_.find_first_not_of("\r\n"), buffer_.size()));
    if (buffer_.empty()) return ReadMore();
    if (phase_ == Phase::kIdle) Enter(Phase::kStart, context_.limits->start_time);
  }
  Error error;
  const size_t parsed = parser_->put(asio::buffer(buffer_), error);
  buffer_.erase(0, parsed);
  head_bytes_ += parsed;
  const bool more = error == bhttp::error::need_more;
  if (head_bytes_ > kMaxHeadBytes || error == bhttp::error::header_limit ||
      (more && head_bytes_ + buffer_.size() >= kMaxHeadBytes)) {
    return Refuse(431, MakeError(absl::StatusCode::kInvalidArgument, "HEAD_TOO_LARGE",
                                 fmt::format("expected a head of at most {} bytes", kMaxHeadBytes)));
  }
  if (error && !more) {
    return Refuse(400,
                  Malformed(fmt::format("expected an HTTP/1.1 request, found something else: {}", error.message())));
  }
  return parser_->is_header_done() ? OnHead() : ReadMore();
}

void Session::OnHead() {
  head_came_ = std::chrono::steady_clock::now();
  if (const absl::Status read = ReadHead(); !read.ok()) {
    request_ = {};
    return Refuse(400, read);
  }
  const bool has_body = !parser_->is_done();
  keep_ = parser_->keep_alive() && !has_body;
  if (*context_.access && context_.service->IsGuarded(request_.path)) {
    absl::StatusOr<HttpSubject> subject = (*context_.access)(request_.caller, request_.path);
    if (!subject.ok()) {
      const bool unknown = subject.status().code() == absl::StatusCode::kUnauthenticated;
      HttpResponse response = context_.service->ErrorResponse(unknown ? 401 : 403, subject.status());
      if (unknown) response.headers.emplace_back("WWW-Authenticate", "Bearer");
      return Respond(std::move(response));
    }
    request_.subject = *std::move(subject);
  }
  size_t most = 0;
  if (std::optional<HttpResponse> refusal = context_.service->CheckHead(request_, &most)) {
    return Respond(*std::move(refusal));
  }
  if (!has_body || most == 0) return Handle();
  max_body_bytes_ = most;
  if (parser_->content_length().value_or(0) > most) return RefuseLargeBody();
  keep_ = parser_->keep_alive();
  parser_->body_limit(most);
  parser_->eager(true);
  Enter(Phase::kBody, context_.limits->body_time);
  const bool asks = parser_->get().version() == 11 && absl::EqualsIgnoreCase(request_.header("expect"), "100-continue");
  if (!asks) return Parse();
  head_out_ = "HTTP/1.1 100 Continue\r\n\r\n";
  WriteOut([this] { Parse(); });
}

absl::Status Session::ReadHead() {
  const auto& head = parser_->get();
  if (head.version() != 10 && head.version() != 11) {
    return Malformed("expected HTTP/1.1 or HTTP/1.0, found another version");
  }
  // Programs that disagree on where a body ends would take part of it for a request.
  const size_t lengths = head.count(bhttp::field::content_length);
  const size_t encodings = head.count(bhttp::field::transfer_encoding);
  if (lengths + encodings > 1) {
    return Malformed("expected one Content-Length or one Transfer-Encoding, found several");
  }
  const absl::string_view length = View(head[bhttp::field::content_length]);
  if (lengths > 0 && length.find_first_not_of("0123456789") != absl::string_view::npos) {
    return Malformed("Content-Length: expected a plain number, found another text");
  }
  const bool chunked = absl::EqualsIgnoreCase(View(head[bhttp::field::transfer_encoding]), "chunked");
  if (encodings > 0 && (!chunked || head.version() != 11)) {
    return Malformed("Transfer-Encoding: expected chunked, of HTTP/1.1");
  }
  request_ = {
      .method = std::string(View(head.method_string())), .path = PathOf(View(head.target())), .caller = caller_};
  for (const auto& field : head) {
    request_.headers.emplace(absl::AsciiStrToLower(View(field.name_string())), View(field.value()));
  }
  if (request_.path.empty()) return Malformed("expected a path that begins with /, found another target");
  const std::string authorization = request_.header("authorization");
  if (absl::StartsWithIgnoreCase(authorization, kBearer)) {
    request_.caller.bearer =
        std::string(absl::StripAsciiWhitespace(absl::string_view(authorization).substr(kBearer.size())));
  }
  return absl::OkStatus();
}

void Session::ParseBody() {
  if (buffer_.empty()) return ReadMore();
  Error error;
  buffer_.erase(0, parser_->put(asio::buffer(buffer_), error));
  if (error == bhttp::error::body_limit) return RefuseLargeBody();
  const bool more = error == bhttp::error::need_more && buffer_.size() < kMaxHeadBytes;
  if (error && !more) {
    return Refuse(400, Malformed(fmt::format("expected a body in chunks, found something else: {}", error.message())));
  }
  return parser_->is_done() ? Handle() : ReadMore();
}

void Session::Handle() {
  HttpRequest whole = request_;
  whole.body = std::move(parser_->get().body());
  exchange_ = std::make_shared<Exchange>(shared_from_this(), std::move(whole));
  Enter(Phase::kHandling, absl::InfiniteDuration());
  context_.threads->Run([service = context_.service, exchange = exchange_] { service->Handle(exchange); });
  ReadMore();
}

void Session::Refuse(int code, const absl::Status& status) {
  keep_ = false;
  Respond(context_.service->ErrorResponse(code, status));
}

void Session::RefuseLargeBody() {
  Refuse(413, MakeError(absl::StatusCode::kInvalidArgument, "BODY_TOO_LARGE",
                        fmt::format("expected a body of at most {} bytes", max_body_bytes_)));
}

std::string Session::HeadOf(const HttpResponse& response, std::string_view framing) {
  code_ = response.code;
  keep_ = keep_ && !ended_ && !stopping_;
  std::string head = fmt::format("HTTP/1.1 {} {}\r\n", code_, ReasonPhrase(code_));
  for (const auto& [name, value] : response.headers) head += fmt::format("{}: {}\r\n", name, value);
  return head + fmt::format("Content-Type: {}\r\n{}Cache-Control: no-store\r\nConnection: {}\r\n\r\n", response.type,
                            framing, keep_ ? "keep-alive" : "close");
}

void Session::Respond(HttpResponse response) {
  if (request_.path.empty()) head_came_ = std::chrono::steady_clock::now();
  std::string head = HeadOf(response, fmt::format("Content-Length: {}\r\n", response.body.size()));
  if (request_.method == "HEAD") response.body.clear();
  Write(std::move(head), std::move(response.body), [this] { Finish(); });
}

void Session::StartStream(const std::string& type, const std::function<void()>& sent) {
  chunked_ = parser_->get().version() == 11;
  keep_ = keep_ && chunked_;
  Write(HeadOf({.type = type}, chunked_ ? "Transfer-Encoding: chunked\r\n" : ""), "",
        [this, sent] { AwaitPiece(sent); });
}

std::string Session::Framed(std::string_view piece) const {
  return chunked_ && !piece.empty() ? fmt::format("{:x}\r\n{}\r\n", piece.size(), piece) : std::string(piece);
}

void Session::AwaitPiece(const std::function<void()>& sent) {
  Enter(Phase::kHandling, absl::InfiniteDuration());
  context_.threads->Run(sent);
}

void Session::Write(std::string head, std::string body, std::function<void()> then) {
  head_out_ = std::move(head);
  body_out_ = std::move(body);
  Enter(Phase::kWriting, context_.limits->answer_time);
  WriteOut(std::move(then));
}

void Session::WriteOut(std::function<void()> then) {
  writing_ = true;
  Done done = [self = shared_from_this(), then = std::move(then)](const Error& error, size_t) {
    self->writing_ = false;
    std::string().swap(self->body_out_);  // clear() would keep its memory for as long as the connection is open
    if (self->phase_ == Phase::kClosed) return;
    return error ? self->Close() : then();
  };
  const std::array<asio::const_buffer, 2> both = {asio::buffer(head_out_), asio::buffer(body_out_)};
  if (tls_) {
    asio::async_write(*tls_, both, std::move(done));
  } else {
    asio::async_write(socket_, both, std::move(done));
  }
}

void Session::Finish() {
  Forget();
  if (!keep_ || ended_ || stopping_) return BeginClose();
  NewParser();
  request_ = {};
  Enter(Phase::kIdle, context_.limits->idle_time);
  Parse();
}

void Session::Forget() {
  if (code_ != 0) {
    const auto took = std::chrono::steady_clock::now() - head_came_;
    context_.service->OnAnswered(request_, code_, absl::FromChrono(took));
  }
  code_ = 0;
  exchange_.reset();
  gone_ = nullptr;
  why_gone_ = absl::OkStatus();
}

// Closing a socket with unread bytes would take back what was sent last: what still comes is discarded for a while.
void Session::BeginClose() {
  if (phase_ == Phase::kClosed) return;
  Enter(Phase::kClosing, context_.limits->close_time);
  buffer_.clear();
  const auto discard = [self = shared_from_this()](bool over) {
    Error ignored;
    self->socket_.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
    return over || self->ended_ ? self->Close() : self->ReadMore();
  };
  if (!handshaken_) return discard(false);
  tls_->async_shutdown([discard](const Error& error) { discard(!error); });
}

void Session::Close() {
  if (phase_ == Phase::kClosed) return;
  phase_ = Phase::kClosed;
  timer_.cancel();
  Error ignored;
  socket_.close(ignored);
  Forget();
  context_.owner->OnClosed(this);
}

void Session::TellGone(const absl::Status& why) {
  if (!why_gone_.ok()) return;
  why_gone_ = why;
  if (gone_) gone_(why);
}

}  // namespace atl::http
