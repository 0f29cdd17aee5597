#include "tests/multiproc/one_way_proxy.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "absl/time/clock.h"
#include "fmt/format.h"

namespace atl::testing_cluster {
namespace {

constexpr size_t kMostWaiting = 256 << 10;

int Checked(int result, const char* what) {
  if (result >= 0) return result;
  std::perror(what);
  std::abort();
}

sockaddr_in AddressOf(const std::string& ip, int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  Checked(inet_pton(AF_INET, ip.c_str(), &address.sin_addr) == 1 ? 0 : -1, "proxy: address");
  return address;
}

void SendAtOnce(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

}  // namespace

OneWayProxy::OneWayProxy(const std::string& listen, const std::string& server_address, int server_port)
    : server_address_(server_address), server_port_(server_port) {
  listener_ = Checked(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), "proxy: socket");
  const std::string ip = listen.substr(0, listen.rfind(':'));
  sockaddr_in address = AddressOf(ip, std::stoi(listen.substr(listen.rfind(':') + 1)));
  socklen_t size = sizeof(address);
  Checked(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), "proxy: bind");
  Checked(::listen(listener_, 16), "proxy: listen");
  Checked(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), "proxy: getsockname");
  address_ = fmt::format("{}:{}", ip, ntohs(address.sin_port));
  wake_ = Checked(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "proxy: eventfd");
  loop_ = std::thread([this] { Loop(); });
}

OneWayProxy::~OneWayProxy() {
  stop_ = true;
  Wake();
  loop_.join();
  for (const Connection& connection : connections_) {
    close(connection.to_server.from);
    close(connection.to_server.to);
  }
  close(listener_);
  close(wake_);
}

void OneWayProxy::Cut(Direction direction) {
  (direction == Direction::kToServer ? cut_to_server_ : cut_to_client_) = true;
  Wake();
}

void OneWayProxy::Delay(absl::Duration delay) {
  delay_ms_ = absl::ToInt64Milliseconds(delay);
}

void OneWayProxy::Heal() {
  cut_to_server_ = false;
  cut_to_client_ = false;
  delay_ms_ = 0;
  Wake();
}

void OneWayProxy::Wake() {
  const uint64_t one = 1;
  (void)!write(wake_, &one, sizeof(one));
}

bool OneWayProxy::IsCut(const Pipe& pipe) const {
  return pipe.direction == Direction::kToServer ? cut_to_server_ : cut_to_client_;
}

void OneWayProxy::Accept() {
  const int client = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (client < 0) return;
  const int server = Checked(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), "proxy: socket");
  const sockaddr_in address = AddressOf(server_address_, server_port_);
  if (connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0 && errno != EINPROGRESS) {
    close(server);
    close(client);
    return;
  }
  SendAtOnce(client);
  SendAtOnce(server);
  connections_.push_back({.to_server = {.from = client, .to = server, .direction = Direction::kToServer},
                          .to_client = {.from = server, .to = client, .direction = Direction::kToClient}});
}

void OneWayProxy::Read(Pipe* pipe) {
  char bytes[64 << 10];
  const ssize_t count = read(pipe->from, bytes, sizeof(bytes));
  if (count > 0) {
    absl::Time due = absl::Now() + absl::Milliseconds(delay_ms_.load());
    if (!pipe->waiting.empty()) due = std::max(due, pipe->waiting.back().due);
    pipe->waiting.push_back({due, std::vector<char>(bytes, bytes + count)});
    pipe->waiting_bytes += static_cast<size_t>(count);
  } else if (count == 0) {
    pipe->ended = true;
  } else if (errno != EAGAIN && errno != EINTR) {
    pipe->broken = true;
  }
}

void OneWayProxy::Write(Pipe* pipe) {
  std::vector<char>& bytes = pipe->waiting.front().bytes;
  const ssize_t count = send(pipe->to, bytes.data(), bytes.size(), MSG_NOSIGNAL);
  if (count > 0) {
    bytes.erase(bytes.begin(), bytes.begin() + count);
    pipe->waiting_bytes -= static_cast<size_t>(count);
    if (bytes.empty()) pipe->waiting.pop_front();
  } else if (count < 0 && errno != EAGAIN && errno != EINTR) {
    pipe->broken = true;
  }
}

int OneWayProxy::NextDue(absl::Time now) const {
  absl::Duration next = absl::InfiniteDuration();
  for (const Connection& connection : connections_) {
    for (const Pipe* pipe : {&connection.to_server, &connection.to_client}) {
      if (IsCut(*pipe) || pipe->waiting.empty() || pipe->waiting.front().due <= now) continue;
      next = std::min(next, pipe->waiting.front().due - now);
    }
  }
  return next == absl::InfiniteDuration() ? -1 : static_cast<int>(absl::ToInt64Milliseconds(next)) + 1;
}

void OneWayProxy::Loop() {
  while (!stop_) {
    const absl::Time now = absl::Now();
    std::vector<pollfd> polled{{.fd = wake_, .events = POLLIN}, {.fd = listener_, .events = POLLIN}};
    std::vector<std::pair<Pipe*, bool>> meaning;  // of those behind the first two: the pipe, and whether it reads
    for (Connection& connection : connections_) {
      for (Pipe* pipe : {&connection.to_server, &connection.to_client}) {
        if (IsCut(*pipe)) continue;
        if (!pipe->ended && pipe->waiting_bytes < kMostWaiting) {
          polled.push_back({.fd = pipe->from, .events = POLLIN});
          meaning.emplace_back(pipe, true);
        }
        if (!pipe->waiting.empty() && pipe->waiting.front().due <= now) {
          polled.push_back({.fd = pipe->to, .events = POLLOUT});
          meaning.emplace_back(pipe, false);
        }
      }
    }
    if (poll(polled.data(), polled.size(), NextDue(now)) < 0 && errno != EINTR) Checked(-1, "proxy: poll");
    uint64_t ignored = 0;
    if (polled[0].revents != 0) (void)!read(wake_, &ignored, sizeof(ignored));
    for (size_t i = 0; i < meaning.size(); ++i) {
      const auto [pipe, reads] = meaning[i];
      // Cut since poll was asked: what arrived since must not get through.
      if (polled[i + 2].revents == 0 || IsCut(*pipe)) continue;
      reads ? Read(pipe) : Write(pipe);
    }
    if (polled[1].revents != 0) Accept();
    // If one side is closed, so is the other: a dead server is noticed through the proxy too.
    std::erase_if(connections_, [](const Connection& connection) {
      const bool done = connection.to_server.broken || connection.to_client.broken ||
                        (connection.to_server.ended && connection.to_server.waiting.empty()) ||
                        (connection.to_client.ended && connection.to_client.waiting.empty());
      if (!done) return false;
      close(connection.to_server.from);
      close(connection.to_server.to);
      return true;
    });
  }
}

}  // namespace atl::testing_cluster
