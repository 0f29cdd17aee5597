#include "common/http/http_server.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <algorithm>
#include <set>
#include <thread>

#include "boost/asio/executor_work_guard.hpp"
#include "common/base/address.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/http/http_session.h"
#include "common/http/tls_folder.h"
#include "fmt/format.h"

namespace atl::http {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;
using Error = boost::system::error_code;

// Pause after an accept that found no room or no free descriptor.
constexpr auto kAcceptPause = std::chrono::milliseconds(50);

class AsioServer : public HttpServer, private SessionOwner {
 public:
  AsioServer(const HttpServerOptions& options, HttpService* service)
      : options_(options),
        handlers_(kHandlerThreads),
        threads_(std::make_shared<HttpThreads>(&io_, &handlers_)),
        context_{.service = service,
                 .access = &options_.security.access,
                 .limits = &options_.limits,
                 .threads = threads_,
                 .owner = this} {}

  absl::Status Open() {
    const std::string& tls_dir = options_.security.tls_dir;
    if (!tls_dir.empty()) {
      ATOLL_ASSIGN_OR_RETURN(
          tls_, TlsFolder::Open(
                    {.folder = tls_dir, .require_client_certificate = options_.security.require_client_certificate}));
    }
    const size_t colon = options_.listen.rfind(':');
    std::string host = options_.listen.substr(0, colon);
    if (Error error = Bind(host); error) {
      return MakeError(absl::StatusCode::kUnavailable, "CANNOT_LISTEN",
                       fmt::format("cannot serve {} at {}: {}", options_.what, options_.listen, error.message()));
    }
    address_ = fmt::format("{}:{}", host, port());
    Accept();
    thread_ = std::thread([this] { io_.run(); });
    return absl::OkStatus();
  }

  ~AsioServer() override {
    if (thread_.joinable()) {
      threads_->Post([this] { Stop(); });
      thread_.join();
    }
    threads_->Close();
    handlers_.join();
  }

  int port() const override { return port_; }
  const std::string& address() const override { return address_; }

 private:
  Error Bind(std::string_view host) {
    if (host.size() > 1 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
    const std::string port = options_.listen.substr(options_.listen.rfind(':') + 1);
    Error error;
    const auto found = tcp::resolver(io_).resolve(std::string(host), port, tcp::resolver::passive, error);
    if (error) return error;
    // "localhost" is 127.0.0.1 first.
    auto chosen =
        std::find_if(found.begin(), found.end(), [](const auto& at) { return at.endpoint().address().is_v4(); });
    if (chosen == found.end()) chosen = found.begin();
    const tcp::endpoint endpoint = chosen->endpoint();
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(SOMAXCONN, error);
    if (!error) acceptor_.non_blocking(true, error);
    if (error) return error;
    fcntl(acceptor_.native_handle(), F_SETFD, FD_CLOEXEC);
    port_ = acceptor_.local_endpoint(error).port();
    return error;
  }

  void Accept() {
    acceptor_.async_wait(tcp::acceptor::wait_read, [this](const Error& error) {
      if (error) return;
      if (MakeRoom() && TakeOne()) return Accept();
      accept_again_.expires_after(kAcceptPause);
      accept_again_.async_wait([this](const Error& stopped) {
        if (!stopped) Accept();
      });
    });
  }

  // Whether there is room for one more connection. Closes the oldest that may be closed where there was none.
  bool MakeRoom() {
    if (sessions_.size() < static_cast<size_t>(options_.max_connections)) return true;
    const auto oldest = std::min_element(sessions_.begin(), sessions_.end(), [](const auto& a, const auto& b) {
      return a->spare_from() < b->spare_from();
    });
    if ((*oldest)->spare_from() > std::chrono::steady_clock::now()) return false;
    std::shared_ptr<Session>(*oldest)->Close();
    return true;
  }

  // Accepts one connection. Does not use Asio, whose descriptors child processes would inherit.
  bool TakeOne() {
    const int descriptor = accept4(acceptor_.native_handle(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (descriptor < 0) return false;
    Error error;
    tcp::socket socket(io_);
    socket.assign(acceptor_.local_endpoint(error).protocol(), descriptor, error);
    const std::shared_ptr<SSL_CTX> context = tls_ == nullptr ? nullptr : tls_->Current();
    auto session = std::make_shared<Session>(context_, std::move(socket), context.get());
    sessions_.insert(session);
    session->Start();
    return true;
  }

  void Stop() {
    Error ignored;
    acceptor_.close(ignored);
    accept_again_.cancel();
    stopping_ = true;
    for (const std::shared_ptr<Session>& session : std::set(sessions_)) session->Stop();
    if (sessions_.empty()) work_.reset();
  }

  void OnClosed(Session* session) override {
    sessions_.erase(session->shared_from_this());
    if (stopping_ && sessions_.empty()) work_.reset();
  }

  const HttpServerOptions options_;
  asio::io_context io_{1};
  asio::thread_pool handlers_;
  const std::shared_ptr<HttpThreads> threads_;
  const Session::Context context_;
  std::unique_ptr<TlsFolder> tls_;
  tcp::acceptor acceptor_{io_};
  asio::steady_timer accept_again_{io_};
  asio::executor_work_guard<asio::io_context::executor_type> work_{io_.get_executor()};
  std::set<std::shared_ptr<Session>> sessions_;  // that are open
  bool stopping_ = false;
  int port_ = 0;
  std::string address_;
  std::thread thread_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HttpServerOptions& options, HttpService* service) {
  const std::string& listen = options.listen;
  if (!HasListenPort(listen) || listen.starts_with(':') || listen.find(',') != std::string::npos) {
    return MakeError(
        absl::StatusCode::kInvalidArgument, "INVALID_ADDRESS",
        fmt::format("expected host:port for {}, with a port from 0 to 65535, found '{}'", options.what, listen));
  }
  if (options.security.tls_dir.empty() && !options.security.allow_clear && !IsLoopback(listen)) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "TLS_REQUIRED",
                     fmt::format("{} at {} could be read by everybody on the network: give --tls-dir DIR to serve it "
                                 "over TLS, an address of this machine's loopback, or {} to serve it in the clear",
                                 options.what, listen, options.open_flag));
  }
  auto server = std::make_unique<AsioServer>(options, service);
  ATOLL_RETURN_IF_ERROR(server->Open());
  return server;
}

}  // namespace atl::http
