#include "tests/multiproc/one_way_proxy.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "fmt/format.h"

namespace atl::testing_cluster {
namespace {

constexpr size_t kMostWaiting = 256 << 10;

int Checked(int result, const char* what) {
  if (result >= 0) return result;
  std::perror(what);
  std::abort();
}

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  return address;
}

void SendAtOnce(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

}  // namespace

OneWayProxy::OneWayProxy(int port) : server_port_(port) {
  listener_ = Checked(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0), "proxy: socket");
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  Checked(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), "proxy: bind");
  Checked(listen(listener_, 16), "proxy: listen");
  Checked(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), "proxy: getsockname");
  port_ = ntohs(address.sin_port);
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

std::string OneWayProxy::address() const {
  return fmt::format("127.0.0.1:{}", port_);
}

void OneWayProxy::Cut(Direction direction) {
  (direction == Direction::kToServer ? cut_to_server_ : cut_to_client_) = true;
  Wake();
}

void OneWayProxy::Heal() {
  cut_to_server_ = false;
  cut_to_client_ = false;
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
  // To loopback it connects, or is refused, at once.
  const int server = Checked(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "proxy: socket");
  const sockaddr_in address = Loopback(server_port_);
  if (connect(server, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    close(server);
    close(client);
    return;
  }
  Checked(fcntl(server, F_SETFL, O_NONBLOCK), "proxy: fcntl");
  SendAtOnce(client);
  SendAtOnce(server);
  connections_.push_back({.to_server = {.from = client, .to = server, .direction = Direction::kToServer},
                          .to_client = {.from = server, .to = client, .direction = Direction::kToClient}});
}

void OneWayProxy::Read(Pipe* pipe) {
  char bytes[64 << 10];
  const ssize_t count = read(pipe->from, bytes, sizeof(bytes));
  if (count > 0) {
    pipe->waiting.insert(pipe->waiting.end(), bytes, bytes + count);
  } else if (count == 0) {
    pipe->ended = true;
  } else if (errno != EAGAIN && errno != EINTR) {
    pipe->broken = true;
  }
}

void OneWayProxy::Write(Pipe* pipe) {
  const ssize_t count = send(pipe->to, pipe->waiting.data(), pipe->waiting.size(), MSG_NOSIGNAL);
  if (count > 0) {
    pipe->waiting.erase(pipe->waiting.begin(), pipe->waiting.begin() + count);
  } else if (count < 0 && errno != EAGAIN && errno != EINTR) {
    pipe->broken = true;
  }
}

void OneWayProxy::Loop() {
  while (!stop_) {
    std::vector<pollfd> polled{{.fd = wake_, .events = POLLIN}, {.fd = listener_, .events = POLLIN}};
    std::vector<std::pair<Pipe*, bool>> meaning;  // of those behind the first two: the pipe, and whether it reads
    for (Connection& connection : connections_) {
      for (Pipe* pipe : {&connection.to_server, &connection.to_client}) {
        if (IsCut(*pipe)) continue;
        if (!pipe->ended && pipe->waiting.size() < kMostWaiting) {
          polled.push_back({.fd = pipe->from, .events = POLLIN});
          meaning.emplace_back(pipe, true);
        }
        if (!pipe->waiting.empty()) {
          polled.push_back({.fd = pipe->to, .events = POLLOUT});
          meaning.emplace_back(pipe, false);
        }
      }
    }
    if (poll(polled.data(), polled.size(), -1) < 0 && errno != EINTR) Checked(-1, "proxy: poll");
    uint64_t ignored = 0;
    if (polled[0].revents != 0) (void)!read(wake_, &ignored, sizeof(ignored));
    for (size_t i = 0; i < meaning.size(); ++i) {
      const auto [pipe, reads] = meaning[i];
      // Cut since poll was asked: what arrived since must not get through.
      if (polled[i + 2].revents == 0 || IsCut(*pipe)) continue;
      reads ? Read(pipe) : Write(pipe);
    }
    if (polled[1].revents != 0) Accept();
    // One side gone, the other is told: a server that dies is seen through the proxy too.
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
