// One connection of an HttpServer. Only sources of this folder include this header: it drags in Asio.
#pragma once

// Beast 1.74 asserts that more than four bytes of an empty chunked body have come, which a slow caller disproves.
#define BOOST_DISABLE_ASSERTS

#include <utility>  // Asio 1.74's awaitable.hpp needs it and does not include it

#include <array>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "boost/asio/io_context.hpp"
#include "boost/asio/ip/tcp.hpp"
#include "boost/asio/ssl/stream.hpp"
#include "boost/asio/steady_timer.hpp"
#include "boost/asio/thread_pool.hpp"
#include "boost/beast/http/parser.hpp"
#include "boost/beast/http/string_body.hpp"
#include "common/http/http_server.h"

namespace atl::http {

// The threads of a server, for exchanges that outlive it. Thread-safe.
class HttpThreads {
 public:
  HttpThreads(boost::asio::io_context* io, boost::asio::thread_pool* handlers) : io_(io), handlers_(handlers) {}

  // Runs `work` on the server's thread (Post) or on a handler thread (Run); drops it after Close.
  void Post(std::function<void()> work);
  void Run(std::function<void()> work);
  void Close();

 private:
  absl::Mutex mutex_;
  boost::asio::io_context* io_ ABSL_GUARDED_BY(mutex_);
  boost::asio::thread_pool* handlers_ ABSL_GUARDED_BY(mutex_);
};

// The server's side of a session. Used on the server's thread alone.
class SessionOwner {
 public:
  virtual ~SessionOwner() = default;
  virtual void OnClosed(class Session* session) = 0;
};

// Reads requests one after the other. Reads on while one is handled, to detect that the caller hangs up.
//   kStart -> kBody -> kHandling <-> kWriting -> kIdle -> kStart
// Each of the first four goes to kWriting for a refusal; kWriting to kClosing where the connection is not kept; all to
// kClosed. Used on the server's thread alone.
class Session : public std::enable_shared_from_this<Session> {
 public:
  struct Context {
    HttpService* service = nullptr;
    const HttpAccess* access = nullptr;
    const HttpLimits* limits = nullptr;
    std::shared_ptr<HttpThreads> threads;
    SessionOwner* owner = nullptr;
  };
  using Time = std::chrono::steady_clock::time_point;

  // Speaks in the clear without a TLS context.
  Session(const Context& context, boost::asio::ip::tcp::socket socket, SSL_CTX* tls);

  void Start();
  // Ends the session; waits only for an answer that is being written.
  void Stop();
  // Time from which the session may be closed to make room for others.
  Time spare_from() const;
  void Close();

 private:
  class Exchange;
  using Error = boost::system::error_code;
  using Done = std::function<void(const Error&, size_t)>;
  using Parser = boost::beast::http::request_parser<boost::beast::http::string_body>;
  enum class Phase { kStart, kBody, kHandling, kWriting, kIdle, kClosing, kClosed };

  // Every phase but kHandling has a deadline, counted from its begin.
  void Enter(Phase phase, absl::Duration deadline);
  void OnDeadline();

  void OnHandshake(const Error& error);
  void ReadMore();
  void OnRead(const Error& error);
  // Parses as much of a request as has come.
  void Parse();
  void NewParser();
  void OnHead();
  // Fills request_ from the head, or returns the error in it.
  absl::Status ReadHead();
  void ParseBody();
  void Handle();

  void Refuse(int code, const absl::Status& status);
  void RefuseLargeBody();
  void Respond(HttpResponse response);
  void StartStream(const std::string& type, const std::function<void()>& sent);
  std::string Framed(std::string_view piece) const;
  void AwaitPiece(const std::function<void()>& sent);
  // The head of an answer. `framing` is the header line that says where the body ends.
  std::string HeadOf(const HttpResponse& response, std::string_view framing);
  void Write(std::string head, std::string body, std::function<void()> then);
  // Writes head_out_ and body_out_. `then` is not called if that fails.
  void WriteOut(std::function<void()> then);
  // Called when the answer is written.
  void Finish();
  // Drops the exchange after it ended or failed.
  void Forget();
  void BeginClose();
  void TellGone(const absl::Status& why);

  const Context context_;
  boost::asio::ip::tcp::socket socket_;
  std::optional<boost::asio::ssl::stream<boost::asio::ip::tcp::socket&>> tls_;  // over socket_
  boost::asio::steady_timer timer_;
  Phase phase_ = Phase::kStart;
  Time since_;  // of phase_
  bool handshaken_ = false;
  bool stopping_ = false;

  std::array<char, size_t{16} << 10> piece_;  // read buffer
  bool reading_ = false;
  bool writing_ = false;
  bool ended_ = false;  // the caller sends no more
  std::string buffer_;  // received and not yet parsed
  size_t head_bytes_ = 0;
  std::optional<Parser> parser_;
  size_t max_body_bytes_ = 0;

  HttpCaller caller_;
  HttpRequest request_;
  bool keep_ = false;
  bool chunked_ = false;  // the stream that is written
  int code_ = 0;          // of the answer that is written; 0: none yet
  Time head_came_;
  std::shared_ptr<Exchange> exchange_;
  std::function<void(const absl::Status&)> gone_;
  absl::Status why_gone_;
  std::string head_out_;
  std::string body_out_;
};

}  // namespace atl::http
