#include "tests/bench/sample_bench.h"

#include <set>

#include "client/commands/command_line_testing.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"

namespace atl::bench {
namespace {

using ::testing::HasSubstr;

class SampleBenchTest : public client::CommandLineTest {
 protected:
  client::Outcome Bench(const std::vector<std::string>& arguments, const std::string& router = "") {
    std::ostringstream out;
    std::ostringstream err;
    client::Session session{.out = &out, .err = &err, .env = [](const std::string&) { return std::string(); }};
    session.router_flag = router.empty() ? server_->address() : router;
    const int code = RunSampleBench(arguments, session);
    return {.code = code, .out = out.str(), .err = err.str()};
  }
};

TEST_F(SampleBenchTest, CountsWhatIsDoneAndRefused) {
  {
    absl::MutexLock lock(&sampler_.mutex_);
    sampler_.refusals_ = 3;
  }
  const client::Outcome outcome = Bench({"--rate", "400", "--duration", "0.1", "--images", "2", "--seed", "3"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  const auto json = nlohmann::json::parse(outcome.out);
  const int64_t requests = json.at("requests");
  EXPECT_GT(requests, 10);
  EXPECT_EQ(json.at("refused"), 3);
  EXPECT_EQ(json.at("refused_with_delay"), 3);
  EXPECT_EQ(json.at("most_retry_seconds"), 2);
  EXPECT_EQ(json.at("done"), requests - 3);
  EXPECT_EQ(json.at("images"), 2 * (requests - 3));
  EXPECT_EQ(json.at("failed"), 0);
  EXPECT_EQ(json.at("versions").at("v2"), requests - 3);
  EXPECT_GT(json.at("latency_seconds").at("p99"), 0.0);
  absl::MutexLock lock(&sampler_.mutex_);
  ASSERT_EQ(static_cast<int64_t>(sampler_.requests_.size()), requests);
  std::set<uint64_t> seeds;
  for (const auto& request : sampler_.requests_) {
    EXPECT_EQ(request.classes_size(), 2);
    seeds.insert(request.seeds().begin(), request.seeds().end());
  }
  EXPECT_EQ(seeds.size(), 2 * sampler_.requests_.size()) << "every image has a seed of its own";
}

TEST_F(SampleBenchTest, SaysWhyNothingCameBack) {
  {
    absl::MutexLock lock(&sampler_.mutex_);
    sampler_.refusals_ = 1'000'000;
  }
  const client::Outcome outcome = Bench({"--rate", "100", "--duration", "0.1"});
  EXPECT_EQ(outcome.code, 7);
  EXPECT_THAT(outcome.err, HasSubstr("[QUEUE_FULL]"));
  EXPECT_EQ(Bench({"--rate", "1000000", "--duration", "100"}).code, 3);
  EXPECT_EQ(Bench({"--rate", "0"}).code, 3);
  EXPECT_EQ(Bench({"--class", "9"}).code, 3);
  EXPECT_THAT(Bench({"--rate", "nan"}).err, HasSubstr("--rate: expected a number of at least 0, found nan"));
  EXPECT_EQ(Bench({"--images", "0"}).code, 2);
}

TEST_F(SampleBenchTest, AServerOfAnotherKindIsNamed) {
  const auto other = rpc::Server::Start({.services = {{"jobs", &jobs_}}});
  ASSERT_TRUE(other.ok()) << other.status();
  EXPECT_THAT(Bench({}, (*other)->address()).err,
              HasSubstr("expected the router at " + (*other)->address() + ", found a server of another kind"));
}

}  // namespace
}  // namespace atl::bench
