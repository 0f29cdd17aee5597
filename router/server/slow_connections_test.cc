// A whole router with 64 callers that send a byte now and then: each is cut off at its deadline, and a caller that
// behaves gets all of its images meanwhile.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <filesystem>
#include <thread>
#include <vector>

#include "absl/time/clock.h"
#include "common/storage/testing.h"
#include "fmt/format.h"
#include "gtest/gtest.h"
#include "inference/testing/published_tiny_model.h"
#include "nlohmann/json.hpp"
#include "router/server/router_server.h"
#include "tests/tls_client.h"

namespace atl::router {
namespace {

using testing::TlsClient;

// Shorter than a router's own, so that the test ends soon.
constexpr absl::Duration kHeadTime = absl::Seconds(2);
constexpr absl::Duration kBodyTime = absl::Seconds(3);
constexpr absl::Duration kTolerance = absl::Seconds(1);
// A caller that is not cut off by then never is, as far as this test goes.
constexpr absl::Duration kPatience = absl::Seconds(20);
constexpr absl::Duration kBytePause = absl::Milliseconds(200);

struct Kind {
  const char* name;
  const char* start;  // sent at once
  const char* drip;   // sent again and again, byte by byte
  absl::Duration deadline;
};

constexpr char kPost[] = "POST /v1/images/generations HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n";
const Kind kKinds[] = {
    {"head", "", "POST /v1/images/generations HTTP/1.1\r\nX: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
     kHeadTime},
    {"plain body", "Content-Length: 1000\r\n\r\n", " ", kBodyTime},
    {"chunked body", "Transfer-Encoding: chunked\r\n\r\n", "1\r\n \r\n", kBodyTime},
};

// One slow caller. Not thread-safe.
class SlowCaller {
 public:
  SlowCaller(int port, const testing::CertificateAuthority* tls, const Kind& kind) : kind_(kind) {
    start_ = absl::Now();
    if (tls != nullptr) {
      client_ = TlsClient::Connect({.port = port, .authority = tls->certificate()});
      descriptor_ = client_ == nullptr ? -1 : client_->descriptor();
    } else {
      descriptor_ = testing::ConnectTo(port);
    }
    if (kind.start[0] != '\0') Send(std::string(kPost) + kind.start);
  }
  ~SlowCaller() {
    if (client_ == nullptr && descriptor_ >= 0) close(descriptor_);
  }

  // Sends the next byte, or notes that the server has ended the connection.
  void Go() {
    if (cut_after_) return;
    pollfd event{.fd = descriptor_, .events = POLLIN | POLLRDHUP, .revents = 0};
    if (descriptor_ < 0 || poll(&event, 1, 0) != 0) {
      cut_after_ = absl::Now() - start_;
      return;
    }
    const std::string_view drip = kind_.drip;
    Send(drip.substr(sent_++ % drip.size(), 1));
  }
  std::optional<absl::Duration> cut_after() const { return cut_after_; }
  const Kind& kind() const { return kind_; }

 private:
  void Send(std::string_view bytes) {
    if (client_ != nullptr) {
      client_->Write(bytes);
    } else {
      send(descriptor_, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    }
  }

  const Kind kind_;
  absl::Time start_;
  std::unique_ptr<TlsClient> client_;
  int descriptor_ = -1;
  size_t sent_ = 0;
  std::optional<absl::Duration> cut_after_;
};

class SlowConnectionsTest : public ::testing::TestWithParam<bool> {
 protected:
  SlowConnectionsTest() {
    PublishTinyModel(store_.get(), store_->UriOf("model"));
    options_.model_dir = store_.PathOf(store_->UriOf("model"));
    options_.rest.listen = "127.0.0.1:0";
    options_.rest.limits.start_time = kHeadTime;
    options_.rest.limits.body_time = kBodyTime;
    if (!GetParam()) return;
    // The router itself shows a certificate; callers need none.
    const std::string folder = store_.folder() + "/tls";
    testing::WriteTlsFolder(folder, authority_.IssueServer("router"), authority_.certificate());
    const auto security = rpc::Security::Make({.tls_dir = folder, .insecure_network = true});
    EXPECT_TRUE(security.ok()) << security.status();
    options_.security = *security;
  }

  int PortOf(const RouterServer& router) const {
    const std::string address = router.rest_address();
    return std::stoi(address.substr(address.rfind(':') + 1));
  }
  const testing::CertificateAuthority* authority() const { return GetParam() ? &authority_ : nullptr; }

  storage::TemporaryStore store_;
  const testing::CertificateAuthority authority_;
  RouterOptions options_;
};

// Asks for one image after the other; how many came.
int SampleImages(int port, const testing::CertificateAuthority* authority, int requests, int images_each) {
  const std::string body = fmt::format(R"({{"prompt": "1", "steps": 1, "n": {}}})", images_each);
  const std::string request =
      fmt::format("{}Connection: close\r\nContent-Length: {}\r\n\r\n{}", kPost, body.size(), body);
  int images = 0;
  for (int i = 0; i < requests; ++i) {
    std::string answer;
    if (authority != nullptr) {
      const auto client = TlsClient::Connect({.port = port, .authority = authority->certificate()});
      if (client != nullptr && client->Write(request)) answer = client->ReadToEnd();
    } else {
      const int descriptor = testing::ConnectTo(port);
      send(descriptor, request.data(), request.size(), MSG_NOSIGNAL);
      char piece[4096];
      for (ssize_t read; (read = recv(descriptor, piece, sizeof(piece), 0)) > 0;) answer.append(piece, read);
      close(descriptor);
    }
    const size_t head = answer.find("\r\n\r\n");
    if (head == std::string::npos) continue;
    const auto json = nlohmann::json::parse(answer.substr(head), nullptr, /*allow_exceptions=*/false);
    if (json.is_object() && json.contains("data")) images += static_cast<int>(json["data"].size());
  }
  return images;
}

TEST_P(SlowConnectionsTest, AreCutOffAtTheirDeadlinesAndKeepNobodyOut) {
  const auto router = RouterServer::Start(options_);
  ASSERT_TRUE(router.ok()) << router.status();
  const int port = PortOf(**router);
  std::vector<std::unique_ptr<SlowCaller>> callers;
  for (int i = 0; i < 64; ++i) {
    callers.push_back(std::make_unique<SlowCaller>(port, authority(), kKinds[i % std::size(kKinds)]));
  }
  int images = 0;
  std::thread sane([&] { images = SampleImages(port, authority(), /*requests=*/40, /*images_each=*/5); });
  for (const absl::Time end = absl::Now() + kPatience; absl::Now() < end; absl::SleepFor(kBytePause)) {
    for (const auto& caller : callers) caller->Go();
    const auto open = [](const auto& caller) { return !caller->cut_after(); };
    if (std::none_of(callers.begin(), callers.end(), open)) break;
  }
  sane.join();
  EXPECT_EQ(images, 200);
  for (const Kind& kind : kKinds) {
    std::vector<absl::Duration> cut;
    int held = 0;
    for (const auto& caller : callers) {
      if (caller->kind().name != kind.name) continue;
      if (caller->cut_after()) cut.push_back(*caller->cut_after());
      if (!caller->cut_after()) ++held;
    }
    EXPECT_EQ(held, 0) << kind.name << ": not cut after " << kPatience;
    if (cut.empty()) continue;
    const auto [least, most] = std::minmax_element(cut.begin(), cut.end());
    fmt::print("slow {}, {}: deadline {}, {} cut after {} to {}, {} held\n", kind.name, GetParam() ? "TLS" : "clear",
               absl::FormatDuration(kind.deadline), cut.size(), absl::FormatDuration(*least),
               absl::FormatDuration(*most), held);
    EXPECT_GE(*least, kind.deadline - kTolerance) << kind.name;
    EXPECT_LE(*most, kind.deadline + kTolerance) << kind.name;
  }
}

INSTANTIATE_TEST_SUITE_P(TlsAndClear, SlowConnectionsTest, ::testing::Bool(),
                         [](const auto& info) { return info.param ? "Tls" : "Clear"; });

}  // namespace
}  // namespace atl::router
