#include "common/metrics/metrics.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>

#include "common/base/errors.h"
#include "common/metrics/exposer.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace atl::metrics {
namespace {

using ::testing::HasSubstr;

// One HTTP GET over loopback; the whole answer, head and body.
std::string Get(int port, const std::string& path) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string answer;
  if (connect(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) {
    const std::string request = "GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    EXPECT_EQ(write(fd, request.data(), request.size()), static_cast<ssize_t>(request.size()));
    char buffer[4096];
    for (ssize_t n; (n = read(fd, buffer, sizeof(buffer))) > 0;) answer.append(buffer, n);
  }
  close(fd);
  return answer;
}

std::unique_ptr<Registry> FilledRegistry() {
  auto registry = Registry::Create("test");
  registry->AddCounter("atoll_tasks_completed_total", "Tasks that ended well.", {{"kind", "cluster"}})->Increment();
  registry->AddGauge("atoll_islands", "Islands that are registered.")->Set(2);
  registry
      ->AddHistogram("atoll_call_duration_seconds", "Duration of calls in seconds.", CallSecondsBounds(),
                     {{"method", "GetJob"}})
      ->Observe(0.02);
  return registry;
}

TEST(RegistryTest, ValuesShowInTheText) {
  auto registry = FilledRegistry();
  const std::string text = registry->Text();
  EXPECT_THAT(text, HasSubstr("atoll_tasks_completed_total{kind=\"cluster\"} 1"));
  EXPECT_THAT(text, HasSubstr("atoll_islands 2"));
  EXPECT_THAT(text, HasSubstr("atoll_call_duration_seconds_bucket{method=\"GetJob\",le=\"0.03\"} 1"));
  EXPECT_THAT(text, HasSubstr("atoll_build_info{"));
}

TEST(RegistryTest, TheSameMetricAgainIsTheSameObject) {
  auto registry = Registry::Create("test");
  Counter* counter = registry->AddCounter("atoll_a_total", "A.", {{"x", "1"}});
  counter->Increment(2);
  EXPECT_EQ(registry->AddCounter("atoll_a_total", "A.", {{"x", "1"}}), counter);
  EXPECT_NE(registry->AddCounter("atoll_a_total", "A.", {{"x", "2"}}), counter);
  EXPECT_EQ(counter->Value(), 2);
}

TEST(RegistryTest, LabelsAreBounded) {
  auto registry = Registry::Create("test");
  Gauge* last = nullptr;
  for (int i = 0; i < 3 * kMaxSeries; ++i) {
    last = registry->AddGauge("atoll_queue_depth", "Q.", {{"island", std::to_string(i)}});
  }
  EXPECT_EQ(last, registry->AddGauge("atoll_queue_depth", "Q.", {{"island", "one more"}}));
  EXPECT_THAT(registry->Text(), HasSubstr("atoll_queue_depth{island=\"other\"}"));
  EXPECT_NE(last, registry->AddGauge("atoll_queue_depth", "Q.", {{"island", "3"}}));
}

TEST(RegistryTest, RemovedGaugesAreGone) {
  auto registry = Registry::Create("test");
  registry->AddGauge("atoll_loss", "L.", {{"expert", "1"}})->Add(3);
  EXPECT_THAT(registry->Text(), HasSubstr("expert=\"1\""));
  registry->RemoveGauge("atoll_loss", {{"expert", "1"}});
  registry->RemoveGauge("atoll_loss", {{"expert", "1"}});
  EXPECT_THAT(registry->Text(), testing::Not(HasSubstr("expert=\"1\"")));
}

TEST(RegistryDeathTest, ANameThatPrometheusRefusesAborts) {
  testing::GTEST_FLAG(death_test_style) = "threadsafe";
  EXPECT_DEATH(Registry::Create("test")->AddGauge("no good name", "X."), "");
}

TEST(ExposerTest, ServesMetricsAndHealthOnAFreePort) {
  auto registry = FilledRegistry();
  bool healthy = false;
  auto exposer = Exposer::Start(registry.get(), "127.0.0.1:0", [&healthy] { return healthy; });
  ASSERT_TRUE(exposer.ok()) << exposer.status();
  ASSERT_GT((*exposer)->port(), 0);
  EXPECT_EQ((*exposer)->address(), "127.0.0.1:" + std::to_string((*exposer)->port()));
  const std::string metrics = Get((*exposer)->port(), "/metrics");
  EXPECT_THAT(metrics, HasSubstr("200 OK"));
  EXPECT_THAT(metrics, HasSubstr("atoll_islands 2"));
  EXPECT_THAT(Get((*exposer)->port(), "/healthz"), HasSubstr("503"));
  healthy = true;
  EXPECT_THAT(Get((*exposer)->port(), "/healthz"), HasSubstr("200 OK"));
}

TEST(ExposerTest, AnAddressThatIsTakenOrMalformedIsAnError) {
  auto registry = Registry::Create("test");
  auto first = Exposer::Start(registry.get(), "127.0.0.1:0");
  ASSERT_TRUE(first.ok()) << first.status();
  EXPECT_EQ(ErrorReason(Exposer::Start(registry.get(), (*first)->address()).status()), "CANNOT_LISTEN");
  for (const char* bad :
       {"", "8080", "localhost:", ":80", "127.0.0.1:80,81", "127.0.0.1:80s", "127.0.0.1:65536", "127.0.0.1:99999"}) {
    EXPECT_EQ(ErrorReason(Exposer::Start(registry.get(), bad).status()), "INVALID_ADDRESS") << bad;
  }
}

TEST(ExposerTest, PromtoolFindsNothingToSay) {
  if (std::system("command -v promtool >/dev/null 2>&1") != 0) {
    GTEST_SKIP() << "promtool is not installed (package prometheus)";
  }
  auto registry = FilledRegistry();
  auto exposer = Exposer::Start(registry.get(), "127.0.0.1:0");
  ASSERT_TRUE(exposer.ok()) << exposer.status();
  const std::string answer = Get((*exposer)->port(), "/metrics");
  const std::string body = answer.substr(answer.find("\r\n\r\n") + 4);
  const std::string path = testing::TempDir() + "/metrics_test." + std::to_string(getpid());
  std::ofstream(path) << body;
  FILE* promtool = popen(("promtool check metrics 2>&1 <" + path).c_str(), "r");
  ASSERT_NE(promtool, nullptr);
  std::string said;
  char buffer[1024];
  while (fgets(buffer, sizeof(buffer), promtool) != nullptr) said += buffer;
  EXPECT_EQ(pclose(promtool), 0) << said << body;
  EXPECT_EQ(said, "") << body;
  unlink(path.c_str());
}

}  // namespace
}  // namespace atl::metrics
