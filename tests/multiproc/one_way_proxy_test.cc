#include "tests/multiproc/one_way_proxy.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>

#include <gtest/gtest.h>

#include "absl/time/clock.h"

namespace atl::testing_cluster {
namespace {

constexpr int kPatienceMs = 60'000;

// Both ends of one connection through a proxy, blocking sockets.
class OneWayProxyTest : public testing::Test {
 protected:
  OneWayProxyTest() {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address = Loopback(0);
    socklen_t size = sizeof(address);
    EXPECT_EQ(bind(listener_, reinterpret_cast<sockaddr*>(&address), size), 0);
    EXPECT_EQ(listen(listener_, 1), 0);
    EXPECT_EQ(getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size), 0);
    proxy_ = std::make_unique<OneWayProxy>(ntohs(address.sin_port));
    const std::string at = proxy_->address();
    const sockaddr_in front = Loopback(std::stoi(at.substr(at.rfind(':') + 1)));
    client_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    EXPECT_EQ(connect(client_, reinterpret_cast<const sockaddr*>(&front), sizeof(front)), 0);
    EXPECT_TRUE(Readable(listener_, kPatienceMs));
    server_ = accept(listener_, nullptr, nullptr);
  }
  ~OneWayProxyTest() override {
    for (const int fd : {client_, server_, listener_}) close(fd);
  }

  static sockaddr_in Loopback(int port) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_port = htons(static_cast<uint16_t>(port));
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    return address;
  }
  static bool Readable(int fd, int timeout_ms) {
    pollfd polled{.fd = fd, .events = POLLIN};
    return poll(&polled, 1, timeout_ms) == 1;
  }
  static void Send(int fd, const std::string& text) {
    EXPECT_EQ(send(fd, text.data(), text.size(), MSG_NOSIGNAL), static_cast<ssize_t>(text.size()));
  }
  // Empty at the end of the stream.
  static std::string Receive(int fd, size_t count) {
    std::string text;
    while (text.size() < count && Readable(fd, kPatienceMs)) {
      char bytes[1024];
      const ssize_t got = recv(fd, bytes, std::min(sizeof(bytes), count - text.size()), 0);
      if (got <= 0) break;
      text.append(bytes, got);
    }
    return text;
  }

  int listener_ = -1;
  int client_ = -1;
  int server_ = -1;
  std::unique_ptr<OneWayProxy> proxy_;
};

TEST_F(OneWayProxyTest, ForwardsBothWays) {
  Send(client_, "question");
  EXPECT_EQ(Receive(server_, 8), "question");
  Send(server_, "answer");
  EXPECT_EQ(Receive(client_, 6), "answer");
}

TEST_F(OneWayProxyTest, LosesOneDirectionAndKeepsTheOther) {
  proxy_->Cut(Direction::kToClient);
  Send(server_, "answer");
  // Three ways through the proxy later the answer would be there.
  for (int i = 0; i < 3; ++i) {
    Send(client_, "question");
    EXPECT_EQ(Receive(server_, 8), "question");
  }
  EXPECT_FALSE(Readable(client_, 0));
  proxy_->Heal();
  EXPECT_EQ(Receive(client_, 6), "answer") << "what was lost is sent again";
}

TEST_F(OneWayProxyTest, LosesTheOtherDirectionToo) {
  proxy_->Cut(Direction::kToServer);
  Send(client_, "question");
  for (int i = 0; i < 3; ++i) {
    Send(server_, "answer");
    EXPECT_EQ(Receive(client_, 6), "answer");
  }
  EXPECT_FALSE(Readable(server_, 0));
  proxy_->Heal();
  EXPECT_EQ(Receive(server_, 8), "question");
}

TEST_F(OneWayProxyTest, PassesOnLateAndInOrder) {
  const absl::Duration delay = absl::Milliseconds(100);
  proxy_->Delay(delay);
  const absl::Time start = absl::Now();
  Send(client_, "first");
  Send(client_, "then");
  EXPECT_EQ(Receive(server_, 9), "firstthen");
  EXPECT_GE(absl::Now() - start, delay);
  proxy_->Heal();
  Send(client_, "soon");
  EXPECT_EQ(Receive(server_, 4), "soon");
}

TEST_F(OneWayProxyTest, AnEndThatClosesIsSeenByTheOther) {
  shutdown(server_, SHUT_RDWR);
  EXPECT_EQ(Receive(client_, 1), "");
}

}  // namespace
}  // namespace atl::testing_cluster
