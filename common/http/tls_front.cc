#include "common/http/tls_front.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "common/base/address.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"

namespace atl::http {
namespace {

// After an accept that found no descriptor free.
constexpr absl::Duration kAcceptPause = absl::Milliseconds(100);

// From which it connects to the server behind.
constexpr std::string_view kOwnHost = "127.0.0.1";

absl::Status CannotListen(const std::string& listen, const char* why) {
  return MakeError(absl::StatusCode::kUnavailable, "CANNOT_LISTEN",
                   fmt::format("cannot listen at {}: {}", listen, why));
}

std::string AddressText(const sockaddr_storage& address, socklen_t size) {
  char host[NI_MAXHOST];
  char port[NI_MAXSERV];
  if (getnameinfo(reinterpret_cast<const sockaddr*>(&address), size, host, sizeof(host), port, sizeof(port),
                  NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "unknown";
  }
  return address.ss_family == AF_INET6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

int PortOf(int descriptor) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (getsockname(descriptor, reinterpret_cast<sockaddr*>(&address), &size) != 0) return 0;
  return ntohs(address.ss_family == AF_INET6 ? reinterpret_cast<sockaddr_in6&>(address).sin6_port
                                             : reinterpret_cast<sockaddr_in&>(address).sin_port);
}

}  // namespace

struct TlsFront::Connection {
  std::unique_ptr<TlsRelay> relay;
  std::string address;  // of the client
  int port = 0;         // of this side's end of the connection behind; 0: none
  bool has_event = false;
  bool is_broken = false;  // the client takes nothing any more
};

TlsFront::TlsFront(const TlsFrontOptions& options, Clock* clock) : options_(options), clock_(clock) {}

absl::StatusOr<std::unique_ptr<TlsFront>> TlsFront::Open(const TlsFrontOptions& options, Clock* clock) {
  std::unique_ptr<TlsFront> front(new TlsFront(options, clock));
  if (!options.tls.folder.empty()) {
    ATOLL_ASSIGN_OR_RETURN(front->folder_, TlsFolder::Open(options.tls, clock));
  }
  front->stop_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  ATOLL_RETURN_IF_ERROR(front->Bind());
  return front;
}

absl::Status TlsFront::Bind() {
  const std::string& listen_at = options_.listen;
  const size_t colon = listen_at.rfind(':');
  if (!HasListenPort(listen_at)) {
    return MakeError(
        absl::StatusCode::kInvalidArgument, "INVALID_ADDRESS",
        fmt::format("expected host:port to listen at, with a port from 0 to 65535, found '{}'", listen_at));
  }
  std::string host = listen_at.substr(0, colon);
  if (host.size() > 1 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_PASSIVE;
  addrinfo* found = nullptr;
  if (const int error =
          getaddrinfo(host.empty() ? nullptr : host.c_str(), listen_at.substr(colon + 1).c_str(), &hints, &found);
      error != 0) {
    return CannotListen(listen_at, gai_strerror(error));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owned(found, freeaddrinfo);
  // "localhost" is 127.0.0.1, as it is for the server behind.
  const addrinfo* chosen = found;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    if (chosen->ai_family != AF_INET && at->ai_family == AF_INET) chosen = at;
  }
  listener_ = socket(chosen->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  const int on = 1;
  setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  if (stop_ < 0 || listener_ < 0 || bind(listener_, chosen->ai_addr, chosen->ai_addrlen) != 0 ||
      listen(listener_, SOMAXCONN) != 0) {
    return CannotListen(listen_at, std::strerror(errno));
  }
  port_ = PortOf(listener_);
  return absl::OkStatus();
}

void TlsFront::Serve(int port) {
  behind_ = port;
  thread_ = std::thread([this] { Run(); });
}

TlsFront::~TlsFront() {
  if (thread_.joinable()) {
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t written = write(stop_, &one, sizeof(one));
    thread_.join();
  }
  if (listener_ >= 0) close(listener_);
  if (stop_ >= 0) close(stop_);
}

std::optional<TlsPeer> TlsFront::PeerOf(std::string_view host, int port) const {
  if (host != kOwnHost) return std::nullopt;
  absl::MutexLock lock(&mutex_);
  const auto found = peers_.find(port);
  return found == peers_.end() ? std::nullopt : std::optional(found->second);
}

void TlsFront::Run() {
  absl::Duration stop_by = absl::InfiniteDuration();
  while (true) {
    const bool stopping = Poll(stop_by);
    const absl::Duration now = clock_->Monotonic();
    if (stopping && stop_by == absl::InfiniteDuration()) {
      stop_by = now + options_.drain_time;
      // Whoever asks for something now is not served by anybody.
      std::erase_if(connections_, [](const auto& connection) { return connection->port == 0; });
    }
    if (!stopping) Accept();
    for (const auto& connection : connections_) Advance(connection.get());
    std::erase_if(connections_, [](const auto& connection) { return connection->relay == nullptr; });
    if (stopping && (connections_.empty() || now >= stop_by)) break;
  }
  {
    absl::MutexLock lock(&mutex_);
    peers_.clear();
  }
  connections_.clear();
}

bool TlsFront::Poll(absl::Duration stop_by) {
  const absl::Duration now = clock_->Monotonic();
  const bool stopping = stop_by != absl::InfiniteDuration();
  const bool full = static_cast<int>(connections_.size()) >= options_.max_connections;
  absl::Duration accept_from = stopping ? absl::InfiniteDuration() : accept_again_;
  if (full) accept_from = std::max(accept_from, SpareFrom());
  const bool accepts = now >= accept_from;
  absl::Duration wake = accepts ? stop_by : std::min(stop_by, accept_from);
  // Once set, the event stays: it need not be waited for.
  std::vector<pollfd> events = {{.fd = stopping ? -1 : stop_, .events = POLLIN, .revents = 0},
                                {.fd = accepts ? listener_ : -1, .events = POLLIN, .revents = 0}};
  for (const auto& connection : connections_) {
    const TlsRelay& relay = *connection->relay;
    wake = std::min(wake, relay.ready() ? now : relay.deadline());
    events.push_back({.fd = relay.client(), .events = relay.client_events(), .revents = 0});
    const short behind = relay.server_events();
    events.push_back({.fd = behind == 0 ? -1 : relay.server(), .events = behind, .revents = 0});
  }
  // Rounded up, so that a deadline has come when poll returns for it.
  const int64_t wait =
      wake == absl::InfiniteDuration() ? -1 : std::clamp<int64_t>(absl::ToInt64Milliseconds(wake - now) + 1, 0, 60'000);
  poll(events.data(), events.size(), wake <= now ? 0 : static_cast<int>(wait));
  const absl::Duration after = clock_->Monotonic();
  others_wait_ = accepts && events[1].revents != 0;
  for (size_t i = 0; i < connections_.size(); ++i) {
    const TlsRelay& relay = *connections_[i]->relay;
    // Said whether it was asked for or not: a connection that stayed would be reported at every turn.
    connections_[i]->is_broken = (events[2 + 2 * i].revents & (POLLERR | POLLHUP)) != 0;
    connections_[i]->has_event =
        events[2 + 2 * i].revents != 0 || events[3 + 2 * i].revents != 0 || relay.ready() || after >= relay.deadline();
  }
  return stopping || events[0].revents != 0;
}

absl::Duration TlsFront::SpareFrom() const {
  absl::Duration from = absl::InfiniteDuration();
  for (const auto& connection : connections_) from = std::min(from, connection->relay->crowded_deadline());
  return from;
}

void TlsFront::Accept() {
  if (others_wait_ && static_cast<int>(connections_.size()) >= options_.max_connections) {
    // The oldest, if its time is up: nothing behind knows of it yet.
    const absl::Duration from = SpareFrom();
    if (clock_->Monotonic() < from) return;
    connections_.erase(std::find_if(connections_.begin(), connections_.end(), [&](const auto& connection) {
      return connection->relay->crowded_deadline() == from;
    }));
  }
  bool announced = others_wait_;
  while (static_cast<int>(connections_.size()) < options_.max_connections) {
    sockaddr_storage address{};
    socklen_t size = sizeof(address);
    const int client = accept4(listener_, reinterpret_cast<sockaddr*>(&address), &size, SOCK_CLOEXEC | SOCK_NONBLOCK);
    const absl::Duration now = clock_->Monotonic();
    if (client < 0) {
      // None for one that poll announced: there was no descriptor for it, where accept4 is that of rpc/open_files.h.
      const bool lacks_descriptor = errno == EMFILE || errno == ENFILE || (errno == EAGAIN && announced);
      if (lacks_descriptor || errno == ENOBUFS || errno == ENOMEM) accept_again_ = now + kAcceptPause;
      if (errno != ECONNABORTED && errno != EINTR) return;
      continue;
    }
    announced = false;
    auto connection = std::make_unique<Connection>();
    connection->address = AddressText(address, size);
    connection->relay =
        std::make_unique<TlsRelay>(client, folder_ == nullptr ? nullptr : folder_->Current(), options_.limits, now);
    connections_.push_back(std::move(connection));
  }
}

void TlsFront::Advance(Connection* connection) {
  if (!connection->has_event) return;
  const auto connect = [&](const std::vector<std::string>& names) { return ConnectFor(connection, names); };
  if (!connection->is_broken && connection->relay->Advance(clock_->Monotonic(), connect)) return;
  if (connection->port != 0) {
    // Before the port is free for others.
    absl::MutexLock lock(&mutex_);
    peers_.erase(connection->port);
  }
  connection->relay.reset();
}

int TlsFront::ConnectFor(Connection* connection, const std::vector<std::string>& names) {
  const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (descriptor < 0) return -1;
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(behind_));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  // Held until the port is known here: the server behind asks for it as soon as it has the connection.
  absl::MutexLock lock(&mutex_);
  if (connect(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0 && errno != EINPROGRESS) {
    close(descriptor);
    return -1;
  }
  connection->port = PortOf(descriptor);
  peers_[connection->port] = {.address = connection->address, .names = names};
  return descriptor;
}

}  // namespace atl::http
