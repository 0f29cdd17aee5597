#include "common/http/tls_front.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <functional>

#include "absl/cleanup/cleanup.h"
#include "common/base/errors.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/tls_client.h"

namespace atl::http {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using testing::TlsClient;
using testing::TlsClientOptions;

constexpr std::string_view kQuestion = "GET / HTTP/1.1\r\n\r\n";

// The server behind: the test takes its connections one by one.
class Behind {
 public:
  Behind() : listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    const timeval patience{.tv_sec = 20, .tv_usec = 0};
    setsockopt(listener_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    const bool listens = bind(listener_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0 &&
                         listen(listener_, 16) == 0 &&
                         getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) == 0;
    port_ = listens ? ntohs(address.sin_port) : 0;
  }
  ~Behind() {
    if (connection_ >= 0) close(connection_);
    close(listener_);
  }

  int port() const { return port_; }

  // Takes the next connection; the port of its other end, or 0 where none comes.
  int Take() {
    if (connection_ >= 0) close(connection_);
    sockaddr_in address{};
    socklen_t size = sizeof(address);
    connection_ = accept(listener_, reinterpret_cast<sockaddr*>(&address), &size);
    const timeval patience{.tv_sec = 20, .tv_usec = 0};
    setsockopt(connection_, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
    setsockopt(connection_, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
    return connection_ < 0 ? 0 : ntohs(address.sin_port);
  }
  bool AnyWaits() {
    timeval none{.tv_sec = 0, .tv_usec = 0};
    fd_set set;
    FD_ZERO(&set);
    FD_SET(listener_, &set);
    return select(listener_ + 1, &set, nullptr, nullptr, &none) == 1;
  }
  std::string Read(size_t size) {
    std::string bytes(size, '\0');
    const ssize_t read = recv(connection_, bytes.data(), size, MSG_WAITALL);
    bytes.resize(std::max<ssize_t>(read, 0));
    return bytes;
  }
  bool Write(std::string_view bytes) {
    return send(connection_, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
  }
  void Close() {
    close(connection_);
    connection_ = -1;
  }

 private:
  const int listener_;
  int connection_ = -1;
  int port_ = 0;
};

class TlsFrontTest : public ::testing::Test {
 protected:
  TlsFrontTest() {
    folder_ = std::filesystem::path(::testing::TempDir()) / ("tls_front_test." + std::to_string(getpid()));
    std::filesystem::remove_all(folder_);
    testing::WriteTlsFolder(folder_, authority_.IssueServer("server"), authority_.certificate());
    options_.listen = "127.0.0.1:0";
    options_.tls = {.folder = folder_, .max_age = absl::ZeroDuration()};
  }

  void Start() {
    auto front = TlsFront::Open(options_);
    ASSERT_TRUE(front.ok()) << front.status();
    front_ = *std::move(front);
    front_->Serve(behind_.port());
  }
  std::unique_ptr<TlsClient> Connect(const testing::Certificate& certificate = {}) {
    return TlsClient::Connect(
        {.port = front_->port(), .authority = authority_.certificate(), .certificate = certificate});
  }

  const testing::CertificateAuthority authority_;
  std::filesystem::path folder_;
  TlsFrontOptions options_;
  Behind behind_;
  std::unique_ptr<TlsFront> front_;
};

TEST_F(TlsFrontTest, BytesPassBothWays) {
  Start();
  const auto client = Connect();
  ASSERT_NE(client, nullptr);
  ASSERT_TRUE(client->Write(kQuestion));
  ASSERT_NE(behind_.Take(), 0);
  EXPECT_EQ(behind_.Read(kQuestion.size()), kQuestion);
  ASSERT_TRUE(behind_.Write("answer"));
  behind_.Close();
  EXPECT_EQ(client->ReadToEnd(), "answer");
}

TEST_F(TlsFrontTest, MoreThanAnyBufferHoldsPassesWhole) {
  Start();
  const auto client = Connect();
  ASSERT_NE(client, nullptr);
  std::string bytes(16 << 20, '\0');
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<char>(i * 2654435761u >> 13);
  std::string there;
  std::thread behind([&] {
    behind_.Take();
    there = behind_.Read(bytes.size());
    behind_.Write(there);
    behind_.Close();
  });
  EXPECT_TRUE(client->Write(bytes));
  const std::string back = client->ReadToEnd();
  behind.join();
  EXPECT_TRUE(there == bytes);
  EXPECT_TRUE(back == bytes);
}

TEST_F(TlsFrontTest, WhoHasNoMoreToSayStillGetsTheAnswer) {
  Start();
  const auto client = Connect();
  ASSERT_NE(client, nullptr);
  ASSERT_TRUE(client->Write(kQuestion));
  client->EndWriting();
  ASSERT_NE(behind_.Take(), 0);
  EXPECT_EQ(behind_.Read(100), kQuestion) << "and the end";
  ASSERT_TRUE(behind_.Write("answer"));
  behind_.Close();
  EXPECT_EQ(client->ReadToEnd(), "answer");
}

TEST_F(TlsFrontTest, WhoHangsUpIsGoneBehind) {
  Start();
  auto client = Connect();
  ASSERT_NE(client, nullptr);
  ASSERT_TRUE(client->Write(kQuestion));
  ASSERT_NE(behind_.Take(), 0);
  EXPECT_EQ(behind_.Read(kQuestion.size()), kQuestion);
  client.reset();
  EXPECT_EQ(behind_.Read(1), "");
}

TEST_F(TlsFrontTest, KnowsWhoIsBehindAConnectionAndWhoIsNot) {
  Start();
  const auto client = Connect(authority_.IssueClient("prometheus"));
  ASSERT_NE(client, nullptr);
  ASSERT_TRUE(client->Write(kQuestion));
  const int port = behind_.Take();
  const std::optional<TlsPeer> peer = front_->PeerOf("127.0.0.1", port);
  ASSERT_TRUE(peer.has_value());
  EXPECT_THAT(peer->names, ElementsAre("prometheus"));
  EXPECT_THAT(peer->address, HasSubstr("127.0.0.1:"));
  EXPECT_FALSE(front_->PeerOf("127.0.0.2", port).has_value()) << "another connection has the port there";

  const auto other = Connect();
  ASSERT_NE(other, nullptr);
  ASSERT_TRUE(other->Write(kQuestion));
  const std::optional<TlsPeer> without = front_->PeerOf("127.0.0.1", behind_.Take());
  ASSERT_TRUE(without.has_value());
  EXPECT_THAT(without->names, IsEmpty());

  const int around = testing::ConnectTo(behind_.port());
  EXPECT_FALSE(front_->PeerOf("127.0.0.1", behind_.Take()).has_value()) << "it did not come through the front";
  close(around);
}

TEST_F(TlsFrontTest, OnlyCertificatesOfTheAuthorityMayCall) {
  options_.tls.require_client_certificate = true;
  Start();
  const testing::CertificateAuthority other;
  struct Case {
    const char* name;
    testing::Certificate certificate;
    bool may;
  };
  const std::vector<Case> cases = {{"none", {}, false},
                                   {"another authority's", other.IssueClient("a"), false},
                                   {"expired", authority_.IssueExpired("a"), false},
                                   {"right", authority_.IssueClient("a"), true}};
  for (const Case& test : cases) {
    const auto client = Connect(test.certificate);
    if (!test.may) {
      if (client == nullptr) continue;
      client->Write(kQuestion);
      EXPECT_EQ(client->Read(1), "") << test.name;
      EXPECT_FALSE(behind_.AnyWaits()) << test.name;
      continue;
    }
    ASSERT_NE(client, nullptr) << test.name;
    EXPECT_TRUE(client->Write(kQuestion));
    EXPECT_NE(behind_.Take(), 0) << test.name;
  }
}

TEST_F(TlsFrontTest, ACertificateThatIsShownIsCheckedWhereNoneIsNeeded) {
  Start();
  const testing::CertificateAuthority other;
  if (const auto client = Connect(other.IssueClient("a")); client != nullptr) {
    client->Write(kQuestion);
    EXPECT_EQ(client->Read(1), "");
  }
  EXPECT_FALSE(behind_.AnyWaits());
}

TEST_F(TlsFrontTest, AReplacedCertificateIsUsedWithoutARestart) {
  Start();
  const auto before = Connect();
  ASSERT_NE(before, nullptr);
  EXPECT_EQ(before->server_name(), "server");
  testing::WriteTlsFolder(folder_, authority_.IssueServer("renewed"), authority_.certificate());
  const auto after = Connect();
  ASSERT_NE(after, nullptr);
  EXPECT_EQ(after->server_name(), "renewed");
  // What was open goes on.
  ASSERT_TRUE(before->Write(kQuestion));
  ASSERT_NE(behind_.Take(), 0);
  EXPECT_EQ(behind_.Read(kQuestion.size()), kQuestion);
}

TEST_F(TlsFrontTest, PlainHttpIsToldToUseTls) {
  Start();
  const std::string answer = testing::Get({.port = front_->port()}, "/metrics");
  EXPECT_THAT(answer, HasSubstr("HTTP/1.1 400"));
  EXPECT_THAT(answer, HasSubstr("use https, not http.\n"));
}

TEST_F(TlsFrontTest, WhoStaysSilentIsCutOff) {
  options_.limits.max_start_time = absl::Milliseconds(50);
  Start();
  const int silent = testing::ConnectTo(front_->port());
  char byte;
  EXPECT_EQ(recv(silent, &byte, 1, 0), 0) << "without a handshake";
  close(silent);
  const auto client = Connect();
  if (client != nullptr) EXPECT_EQ(client->Read(1), "") << "without a request";
  EXPECT_FALSE(behind_.AnyWaits());
}

TEST_F(TlsFrontTest, AHeadThatDoesNotEndIsNotHandedOnAndCutOff) {
  options_.limits.max_start_time = absl::Milliseconds(200);
  Start();
  for (const std::string part : {"GET / HTTP/1.1\r\n\r", "\r\n\r\n", "GET /\n\r\n"}) {
    // On a busy machine it is cut off earlier, even in its handshake.
    if (const auto client = Connect(); client != nullptr) {
      for (const char byte : part) client->Write({&byte, 1});
      EXPECT_EQ(client->Read(1), "") << part;
    }
    EXPECT_FALSE(behind_.AnyWaits()) << part;
  }
}

TEST_F(TlsFrontTest, HeadsEndWithAnEmptyLineWhereverTheyWereCut) {
  Start();
  for (const std::string head :
       {"GET / HTTP/1.1\r\n\r\n", "GET / HTTP/1.1\nA: b\n\n", "\r\n\r\nGET / HTTP/1.1\r\n\r\n"}) {
    const auto client = Connect();
    ASSERT_NE(client, nullptr);
    for (const char byte : head) ASSERT_TRUE(client->Write({&byte, 1}));
    ASSERT_NE(behind_.Take(), 0) << head;
    EXPECT_EQ(behind_.Read(head.size()), head);
  }
}

TEST_F(TlsFrontTest, OfOneRequestPerConnectionNoneTakesForEver) {
  options_.limits.max_answer_time = absl::Milliseconds(50);
  Start();
  const auto client = Connect();
  ASSERT_NE(client, nullptr);
  ASSERT_TRUE(client->Write(kQuestion));
  ASSERT_NE(behind_.Take(), 0);
  EXPECT_EQ(client->Read(1), "");
  EXPECT_EQ(behind_.Read(kQuestion.size() + 1), kQuestion) << "and the end";
}

TEST_F(TlsFrontTest, WhoHasNotAskedYetMakesRoomForOthersAndWhoHasDoesNot) {
  options_.max_connections = 3;
  options_.limits.max_start_time = absl::InfiniteDuration();
  options_.limits.max_crowded_start_time = absl::Milliseconds(50);
  Start();
  const auto asked = Connect();
  ASSERT_NE(asked, nullptr);
  ASSERT_TRUE(asked->Write(kQuestion));
  ASSERT_NE(behind_.Take(), 0);
  std::vector<std::unique_ptr<TlsClient>> slow;
  for (int i = 0; i < 6; ++i) {
    slow.push_back(Connect());
    ASSERT_NE(slow.back(), nullptr) << i;
    slow.back()->Write("GET /");
  }
  for (int i = 0; i < 4; ++i) EXPECT_EQ(slow[i]->Read(1), "") << i << ": longest here, first cut off";
  const auto late = Connect();
  ASSERT_NE(late, nullptr);
  ASSERT_TRUE(behind_.Write("answer"));
  behind_.Close();
  EXPECT_EQ(asked->ReadToEnd(), "answer");
  ASSERT_TRUE(late->Write(kQuestion));
  EXPECT_NE(behind_.Take(), 0);
}

TEST_F(TlsFrontTest, InTheClearTheSameHoldsWithoutTls) {
  options_.tls.folder.clear();
  options_.max_connections = 2;
  options_.limits.max_crowded_start_time = absl::Milliseconds(50);
  Start();
  std::vector<int> slow;
  for (int i = 0; i < 4; ++i) {
    slow.push_back(testing::ConnectTo(front_->port()));
    ASSERT_EQ(send(slow.back(), "GET /", 5, MSG_NOSIGNAL), 5);
  }
  const int asks = testing::ConnectTo(front_->port());
  ASSERT_EQ(send(asks, kQuestion.data(), kQuestion.size(), MSG_NOSIGNAL), static_cast<ssize_t>(kQuestion.size()));
  const int port = behind_.Take();
  ASSERT_NE(port, 0);
  const std::optional<TlsPeer> peer = front_->PeerOf("127.0.0.1", port);
  ASSERT_TRUE(peer.has_value());
  EXPECT_THAT(peer->names, IsEmpty());
  EXPECT_EQ(behind_.Read(kQuestion.size()), kQuestion);
  // More than the buffers on the way hold, and the end.
  const std::string answer(4 << 20, 'x');
  std::thread answering([&] {
    EXPECT_TRUE(behind_.Write(answer));
    behind_.Close();
  });
  std::string found(answer.size() + 1, '\0');
  const ssize_t read = recv(asks, found.data(), found.size(), MSG_WAITALL);
  answering.join();
  EXPECT_EQ(read, static_cast<ssize_t>(answer.size()));
  for (const int descriptor : slow) close(descriptor);
  close(asks);
}

TEST_F(TlsFrontTest, WhoDoesNotReadIsCutOff) {
  options_.limits.max_unread_time = absl::Milliseconds(50);
  Start();
  const auto client =
      TlsClient::Connect({.port = front_->port(), .authority = authority_.certificate(), .receive_buffer = 4096});
  ASSERT_NE(client, nullptr);
  ASSERT_TRUE(client->Write(kQuestion));
  ASSERT_NE(behind_.Take(), 0);
  const std::string piece(1 << 20, 'x');
  int pieces = 0;
  // Without the limit it would block when the buffers on the way are full, and fail by its time-out after 20 s.
  const absl::Time start = absl::Now();
  while (pieces < 1024 && behind_.Write(piece)) ++pieces;
  EXPECT_LT(pieces, 1024);
  EXPECT_LT(absl::Now() - start, absl::Seconds(19));
}

TEST_F(TlsFrontTest, ConnectionsBeyondTheLimitWaitForTheirTurn) {
  options_.max_connections = 1;
  Start();
  auto first = Connect();
  ASSERT_NE(first, nullptr);
  std::unique_ptr<TlsClient> second;
  std::thread waiting([&] { second = Connect(); });
  ASSERT_TRUE(first->Write(kQuestion));
  ASSERT_NE(behind_.Take(), 0);
  EXPECT_EQ(behind_.Read(kQuestion.size()), kQuestion);
  first.reset();
  waiting.join();
  EXPECT_NE(second, nullptr);
}

TEST_F(TlsFrontTest, WhatWasAnsweredIsGivenOutBeforeItEnds) {
  Start();
  const auto client = Connect();
  ASSERT_NE(client, nullptr);
  ASSERT_TRUE(client->Write(kQuestion));
  ASSERT_NE(behind_.Take(), 0);
  ASSERT_TRUE(behind_.Write("answer"));
  behind_.Close();
  std::string answer;
  std::thread reader([&] { answer = client->ReadToEnd(); });
  front_.reset();
  reader.join();
  EXPECT_EQ(answer, "answer");
}

TEST_F(TlsFrontTest, AnAddressThatIsTakenIsAnError) {
  Start();
  options_.listen = "127.0.0.1:" + std::to_string(front_->port());
  const auto again = TlsFront::Open(options_);
  EXPECT_EQ(ErrorReason(again.status()), "CANNOT_LISTEN");
}

}  // namespace
}  // namespace atl::http
