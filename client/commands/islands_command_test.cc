// `atoll islands` and `atoll jobs move`, against an AdminService of the test.
#include "atoll/admin/v1/admin_service.grpc.pb.h"
#include "client/commands/command_line_testing.h"
#include "gmock/gmock.h"
#include "google/protobuf/text_format.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace atl::client {
namespace {

using namespace atlpb::admin::v1;  // NOLINT(google-build-using-namespace): every name below is a message of it
using ::testing::HasSubstr;

constexpr char kIslands[] = R"pb(
  islands {
    island_id: "eu-1"
    state: STATE_BUSY
    ranks: 2
    device_kind: "cuda"
    task_id: "digits-1/train_expert-0"
    attempt: 3
    step: 120
    step_seconds: 1.5
    slowdown: 3.04
    slow: true
    last_heard_time { seconds: 1795338000 }
  }
  islands { island_id: "us-1" state: STATE_LOST ranks: 1 device_kind: "cpu" drain_reason: "new\ndisk" }
)pb";

class FakeAdmin : public AdminService::Service {
 public:
  grpc::Status ListIslands(grpc::ServerContext*, const ListIslandsRequest*, ListIslandsResponse* response) override {
    return google::protobuf::TextFormat::ParseFromString(kIslands, response) ? grpc::Status::OK
                                                                             : grpc::Status::CANCELLED;
  }
  grpc::Status DrainIsland(grpc::ServerContext*, const DrainIslandRequest* request,
                           DrainIslandResponse* response) override {
    if (request->island_id() != "eu-1" || request->request_id().empty()) {
      return Error(absl::StatusCode::kNotFound, "ISLAND_UNKNOWN", "no such island");
    }
    drained_for = request->reason();
    response->mutable_island()->set_task_id("digits-1/train_expert-0");
    return grpc::Status::OK;
  }
  grpc::Status UndrainIsland(grpc::ServerContext*, const UndrainIslandRequest* request,
                             UndrainIslandResponse* response) override {
    response->mutable_island()->set_island_id(request->island_id());
    return grpc::Status::OK;
  }
  grpc::Status MoveTask(grpc::ServerContext*, const MoveTaskRequest* request, MoveTaskResponse* response) override {
    moved_to = request->to_island_id();
    response->mutable_task()->set_task_id(request->task_id());
    response->mutable_task()->set_island_id("eu-1");
    response->mutable_task()->set_state(held ? atlpb::job::v1::Task::STATE_LEASED : atlpb::job::v1::Task::STATE_READY);
    return grpc::Status::OK;
  }

  std::string drained_for;
  std::string moved_to;
  bool held = true;
};

class IslandsCommandTest : public CommandLineTest {
 protected:
  Outcome RunHere(std::vector<std::string> arguments) {
    arguments.insert(arguments.end(), {"--coordinator", server_->address()});
    return Run(arguments);
  }

  FakeAdmin admin_;
  std::unique_ptr<rpc::Server> server_ = rpc::Server::Start({.services = {{"admin", &admin_}}}).value();
};

TEST_F(IslandsCommandTest, IslandsAreListedWithWhoIsSlow) {
  const Outcome outcome = RunHere({"islands", "list"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("eu-1    busy   2      cuda    digits-1/train_expert-0  3        120   1.5 s      "
                                     "3.0x SLOW  2026-11-22"));
  EXPECT_THAT(outcome.out, HasSubstr("us-1    lost   1      cpu     -                        -        -     -          "
                                     "-"));
  EXPECT_THAT(outcome.out, HasSubstr("new disk"));
  const auto json = nlohmann::json::parse(RunHere({"islands", "list", "--output", "json"}).out);
  EXPECT_EQ(json.at("islands").at(0).at("slow"), true);
}

TEST_F(IslandsCommandTest, AnIslandIsDrainedForAReasonAndUndrained) {
  Outcome outcome = RunHere({"islands", "drain", "eu-1", "--reason", "new disk"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("gives back digits-1/train_expert-0 with a checkpoint"));
  EXPECT_EQ(admin_.drained_for, "new disk");
  EXPECT_EQ(RunHere({"islands", "drain", "eu-1"}).code, 0);
  EXPECT_EQ(admin_.drained_for, "drained by hand");
  outcome = RunHere({"islands", "undrain", "eu-1"});
  EXPECT_EQ(outcome.out, "island eu-1 is granted tasks again\n");
  outcome = RunHere({"islands", "drain", "eu-2"});
  EXPECT_EQ(outcome.code, 4);
  EXPECT_THAT(outcome.err, HasSubstr("[ISLAND_UNKNOWN]"));
}

TEST_F(IslandsCommandTest, ATaskIsMovedAwayOrToAnIsland) {
  Outcome outcome = RunHere({"jobs", "move", "digits-1/train_expert-0"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out,
            "island eu-1 gives back digits-1/train_expert-0 with a checkpoint; for ten minutes it is kept for another "
            "island\n");
  EXPECT_EQ(admin_.moved_to, "");
  admin_.held = false;
  outcome = RunHere({"jobs", "move", "digits-1/train_expert-0", "--to", "us-1"});
  EXPECT_EQ(outcome.out, "digits-1/train_expert-0 is kept for island us-1 for ten minutes\n");
  EXPECT_EQ(admin_.moved_to, "us-1");
}

}  // namespace
}  // namespace atl::client
