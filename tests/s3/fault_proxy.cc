#include "tests/s3/fault_proxy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <string_view>
#include <utility>

#include <fmt/format.h>

namespace atl::testing_s3 {
namespace {

constexpr int kPollMs = 50;
constexpr std::string_view kContinue = "HTTP/1.1 100";

[[noreturn]] void Die(const std::string& message) {
  std::fprintf(stderr, "fault proxy: %s\n", message.c_str());
  std::abort();
}

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

bool Readable(int socket_fd) {
  pollfd waited{socket_fd, POLLIN, 0};
  return poll(&waited, 1, kPollMs) > 0;
}

bool SendAll(int socket_fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket_fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent <= 0) return false;
    bytes.remove_prefix(static_cast<size_t>(sent));
  }
  return true;
}

// Returns the available bytes, "" when the other end has closed.
std::string Receive(int socket_fd) {
  std::array<char, 65536> buffer;
  const ssize_t got = recv(socket_fd, buffer.data(), buffer.size(), 0);
  return got <= 0 ? "" : std::string(buffer.data(), static_cast<size_t>(got));
}

}  // namespace

FaultProxy::FaultProxy(int port) : server_port_(port), listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  if (bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 || listen(listener_, 64) != 0 ||
      getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    Die("cannot listen");
  }
  port_ = ntohs(address.sin_port);
  acceptor_ = std::thread([this] { Accept(); });
}

FaultProxy::~FaultProxy() {
  stop_ = true;
  acceptor_.join();
  std::vector<Connection> connections;
  {
    absl::MutexLock lock(&mutex_);
    connections.swap(connections_);
  }
  for (Connection& connection : connections) {
    connection.thread.join();
    close(connection.client);
  }
  close(listener_);
}

void FaultProxy::Add(Fault fault) {
  absl::MutexLock lock(&mutex_);
  faults_.push_back(std::move(fault));
}

void FaultProxy::Heal() {
  absl::MutexLock lock(&mutex_);
  faults_.clear();
}

int FaultProxy::Requests(const std::string& text) const {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(std::count_if(requests_.begin(), requests_.end(),
                                        [&](const std::string& head) { return head.find(text) != std::string::npos; }));
}

void FaultProxy::Accept() {
  while (!stop_) {
    if (!Readable(listener_)) continue;
    const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (client < 0) continue;
    absl::MutexLock lock(&mutex_);
    connections_.push_back({client, std::thread([this, client] { Serve(client); })});
  }
}

bool FaultProxy::Choose(const std::string& head, Fault* fault) {
  absl::MutexLock lock(&mutex_);
  requests_.push_back(head);
  const std::string first_line = head.substr(0, head.find("\r\n"));
  for (Fault& known : faults_) {
    if (known.times == 0 || !first_line.starts_with(known.method) ||
        first_line.find(known.target) == std::string::npos) {
      continue;
    }
    if (known.times > 0) --known.times;
    *fault = known;
    return true;
  }
  return false;
}

void FaultProxy::Serve(int client) {
  std::string head;
  while (!stop_ && head.find("\r\n\r\n") == std::string::npos) {
    if (!Readable(client)) continue;
    const std::string more = Receive(client);
    if (more.empty()) break;
    head += more;
  }
  if (head.find("\r\n\r\n") != std::string::npos) {
    Fault fault;
    const bool broken = Choose(head.substr(0, head.find("\r\n\r\n")), &fault);
    if (broken && fault.kind == Fault::Kind::kStatus) {
      const std::string error = fmt::format("<Error><Code>{}</Code><Message>as told</Message></Error>", fault.code);
      const std::string& body = fault.body.empty() ? error : fault.body;
      SendAll(client, fmt::format("HTTP/1.1 {} x\r\nConnection: close\r\nContent-Type: application/xml\r\n"
                                  "Content-Length: {}\r\n\r\n{}",
                                  fault.status, body.size(), head.starts_with("HEAD") ? "" : body));
      // An unread body would break the connection before the answer has arrived.
      shutdown(client, SHUT_WR);
      while (!stop_ && (!Readable(client) || !Receive(client).empty())) {
      }
    } else if (broken && fault.kind == Fault::Kind::kSilence) {
      while (!stop_ && (!Readable(client) || !Receive(client).empty())) {
      }
    } else {
      Relay(client, std::move(head), broken ? &fault : nullptr);
    }
  }
  // The number stays taken until the thread is joined; the other end learns of the end now.
  shutdown(client, SHUT_RDWR);
}

void FaultProxy::Relay(int client, std::string head, const Fault* fault) const {
  const bool cut_request = fault != nullptr && fault->kind == Fault::Kind::kCutRequest;
  const bool cut_answer = fault != nullptr && fault->kind == Fault::Kind::kCutAnswer;
  const int server = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = Loopback(server_port_);
  if (connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    close(server);
    return;
  }
  int64_t body = static_cast<int64_t>(head.size() - head.find("\r\n\r\n") - 4);
  int64_t answered = 0;
  bool open = SendAll(server, head);
  while (open && !stop_) {
    std::array<pollfd, 2> ends{pollfd{client, POLLIN, 0}, pollfd{server, POLLIN, 0}};
    if (poll(ends.data(), ends.size(), kPollMs) <= 0) continue;
    if (ends[0].revents != 0) {
      const std::string more = Receive(client);
      body += static_cast<int64_t>(more.size());
      open = !more.empty() && !(cut_request && body > fault->bytes) && SendAll(server, more);
    }
    if (open && ends[1].revents != 0) {
      std::string more = Receive(server);
      if (more.empty()) break;
      if (cut_answer && !more.starts_with(kContinue)) {
        const auto left = static_cast<size_t>(std::max<int64_t>(fault->bytes - answered, 0));
        answered += static_cast<int64_t>(more.size());
        open = more.size() <= left;
        more.resize(std::min(more.size(), left));
        // The server has done what it was asked to do by the time that it answers.
      }
      open = SendAll(client, more) && open;
    }
  }
  close(server);
}

}  // namespace atl::testing_s3
