// `atoll servers`, against a registry of the test.
#include "atoll/serving/v1/serving_service.grpc.pb.h"
#include "client/commands/command_line_testing.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace atl::client {
namespace {

using atlpb::serving::v1::WatchServersResponse;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kServers[] = R"pb(
  servers {
    server_id: "s1"
    address: "node-a:7201"
    hosting {
      networks {
        network { model: "digits" version: "v2" expert: 0 }
        state: STATE_READY
        bytes: 3145728
      }
      networks {
        network { model: "digits" version: "v2" expert: 1 }
        state: STATE_READY
        bytes: 1048576
      }
      networks {
        network { model: "digits" version: "v2" expert: -1 }
        state: STATE_FAILED
        error { code: 5 message: "no such\nfile" }
      }
      fingerprint: "f1"
      slots: 2
      memory_bytes: 1073741824
    }
    assigned { model: "digits" version: "v2" expert: 1 }
    assigned { model: "digits" version: "v2" expert: 2 }
  }
  servers { server_id: "s2" address: "node-b:7201" }
  shortages {
    model: "digits"
    version: "v3"
    networks: -1
    networks: 4
    needed_bytes: 5242880
    lacking_bytes: 2097152
    error { code: 8 message: "no room" }
  }
  over_memory_bytes: 1048576
)pb";

// Says what is known once, and then nothing until the caller goes.
class FakeServing : public atlpb::serving::v1::ServingService::Service {
 public:
  grpc::Status WatchServers(grpc::ServerContext* context, const atlpb::serving::v1::WatchServersRequest*,
                            grpc::ServerWriter<WatchServersResponse>* writer) override {
    WatchServersResponse response;
    if (!google::protobuf::TextFormat::ParseFromString(kServers, &response)) return grpc::Status::CANCELLED;
    writer->Write(response);
    absl::Mutex mutex;
    absl::MutexLock lock(&mutex);
    const auto never = [] { return false; };
    while (!context->IsCancelled()) mutex.AwaitWithTimeout(absl::Condition(&never), absl::Milliseconds(5));
    return grpc::Status::CANCELLED;
  }
};

TEST_F(CommandLineTest, ServersAreListedWithTheirNetworksAndWhatHasNoRoom) {
  FakeServing serving;
  const auto registry = rpc::Server::Start({.services = {{"serving", &serving}}}).value();
  const auto run = [&](std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--coordinator", registry->address()});
    return Run(arguments);
  };
  Outcome outcome = run({"servers", "list"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("SERVER  ADDRESS      READY  LOADING  FAILED  WEIGHTS  MEMORY    ERROR"));
  EXPECT_THAT(outcome.out,
              HasSubstr("s1      node-a:7201  2      1        1       4.0 MiB  1.0 GiB   digits router: no such file"));
  EXPECT_THAT(outcome.out, HasSubstr("s2      node-b:7201  0      0        0       0 B      no limit"));
  EXPECT_THAT(outcome.out, HasSubstr("digits  v3       router,4  5.0 MiB  2.0 MiB  no room"));
  EXPECT_THAT(outcome.out, HasSubstr("1.0 MiB more than memory holds"));
  const auto json = nlohmann::json::parse(run({"servers", "list", "--output", "json"}).out);
  EXPECT_EQ(json.at("servers").size(), 2u);
  EXPECT_EQ(json.at("shortages").at(0).at("networks").size(), 2u);

  outcome = run({"servers", "get", "s1"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("arithmetic  f1"));
  EXPECT_THAT(outcome.out, HasSubstr("expert 0  ready     3.0 MiB"));
  EXPECT_THAT(outcome.out, HasSubstr("router    failed    0 B      no such file"));
  EXPECT_THAT(outcome.out, HasSubstr("expert 2  assigned"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("expert 1  assigned")));
  EXPECT_EQ(nlohmann::json::parse(run({"servers", "get", "s2", "--output", "json"}).out).at("address"), "node-b:7201");

  outcome = run({"servers", "get", "s3"});
  EXPECT_EQ(outcome.code, 4);
  EXPECT_THAT(outcome.err, HasSubstr("found 's3' [UNKNOWN_EXPERT_SERVER]"));
  EXPECT_THAT(Run({"servers", "--help"}).out, HasSubstr("atoll servers get"));
}

}  // namespace
}  // namespace atl::client
