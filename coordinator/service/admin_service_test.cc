// Islands and moves over gRPC: what operators see, and calls that are repeated.
#include "atoll/admin/v1/admin_service.grpc.pb.h"
#include "common/base/errors.h"
#include "coordinator/service/test_support.h"

namespace atl::coordinator {
namespace {

namespace pb = atlpb::admin::v1;

class AdminServiceTest : public CoordinatorFixture {
 protected:
  using Stub = pb::AdminService::Stub;

  absl::StatusOr<atlpb::job::v1::Task> Move(const std::string& task_id, const std::string& to,
                                            const std::string& request_id) {
    pb::MoveTaskRequest request;
    request.set_task_id(task_id);
    request.set_to_island_id(to);
    request.set_request_id(request_id);
    pb::MoveTaskResponse response;
    const absl::Status status = Call(*admin_, &Stub::MoveTask, request, &response);
    if (!status.ok()) return status;
    return response.task();
  }
  absl::StatusOr<pb::Island> Drain(const std::string& island_id, const std::string& reason) {
    pb::DrainIslandRequest request;
    request.set_island_id(island_id);
    request.set_reason(reason);
    pb::DrainIslandResponse response;
    const absl::Status status = Call(*admin_, &Stub::DrainIsland, request, &response);
    if (!status.ok()) return status;
    return response.island();
  }

  const std::unique_ptr<Stub> admin_ = pb::AdminService::NewStub(rpc::MakeChannel(coordinator_->address()));
};

TEST_F(AdminServiceTest, IslandsAreListedWithWhatTheyAreAt) {
  ASSERT_TRUE(Submit(SubmitRequest()).ok());
  ASSERT_TRUE(Register("a").ok());
  ASSERT_TRUE(Register("b").ok());
  const auto claim = Claim("a");
  ASSERT_TRUE(claim.ok()) << claim.status();
  ASSERT_TRUE(Drain("b", "new disk").ok());
  pb::ListIslandsResponse response;
  ASSERT_TRUE(Call(*admin_, &Stub::ListIslands, pb::ListIslandsRequest(), &response).ok());
  ASSERT_EQ(response.islands_size(), 2);
  const pb::Island& a = response.islands(0);
  EXPECT_EQ(a.island_id(), "a");
  EXPECT_EQ(a.state(), pb::Island::STATE_BUSY);
  EXPECT_EQ(a.task_id(), claim->grant().token().task_id());
  EXPECT_EQ(a.job_id(), claim->grant().job_id());
  EXPECT_EQ(a.task_kind(), claim->grant().kind());
  EXPECT_EQ(a.attempt(), 1);
  EXPECT_TRUE(a.has_last_heard_time());
  EXPECT_EQ(response.islands(1).state(), pb::Island::STATE_DRAINED);
  EXPECT_EQ(response.islands(1).drain_reason(), "new disk");
}

TEST_F(AdminServiceTest, ARepeatedMoveIsOneMove) {
  ASSERT_TRUE(Submit(SubmitRequest()).ok());
  ASSERT_TRUE(Register("a").ok());
  ASSERT_TRUE(Register("b").ok());
  const auto claim = Claim("a");
  ASSERT_TRUE(claim.ok()) << claim.status();
  const std::string task_id = claim->grant().token().task_id();
  const auto moved = Move(task_id, "b", "r-1");
  ASSERT_TRUE(moved.ok()) << moved.status();
  EXPECT_EQ(moved->island_id(), "a");
  atlpb::island::v1::ReleaseTaskRequest release;
  *release.mutable_token() = claim->grant().token();
  atlpb::island::v1::ReleaseTaskResponse released;
  ASSERT_TRUE(Call(*islands_, &atlpb::island::v1::IslandService::Stub::ReleaseTask, release, &released).ok());
  ASSERT_TRUE(Claim("b")->has_grant());
  // The answer was lost, and the call is made again: b, which has it by now, keeps it.
  const auto again = Move(task_id, "b", "r-1");
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->island_id(), "a");
  EXPECT_EQ(ErrorReason(Move(task_id, "a", "r-1").status()), "REQUEST_ID_REUSED");
  EXPECT_EQ(ErrorReason(Move(task_id, "b", "r-2").status()), "TASK_ALREADY_THERE");
}

TEST_F(AdminServiceTest, ALongReasonIsCutBetweenLetters) {
  ASSERT_TRUE(Register("a").ok());
  const auto drained = Drain("a", std::string(1023, 'x') + "\u00e9");
  ASSERT_TRUE(drained.ok()) << drained.status();
  pb::ListIslandsResponse response;
  const absl::Status status = Call(*admin_, &Stub::ListIslands, pb::ListIslandsRequest(), &response);
  ASSERT_TRUE(status.ok()) << status;
  ASSERT_EQ(response.islands_size(), 1);
  EXPECT_EQ(response.islands(0).drain_reason(), std::string(1023, 'x'));
}

TEST_F(AdminServiceTest, WhatIsMissingIsNamed) {
  EXPECT_EQ(ErrorReason(Drain("a", "why").status()), "ISLAND_UNKNOWN");
  ASSERT_TRUE(Register("a").ok());
  EXPECT_EQ(ErrorReason(Drain("a", "").status()), "FIELD_REQUIRED");
  EXPECT_EQ(ErrorReason(Drain("", "why").status()), "ISLAND_UNKNOWN");
  EXPECT_EQ(ErrorReason(Move("", "a", "r").status()), "JOB_UNKNOWN");
  EXPECT_EQ(ErrorReason(Move("none/task", "a", "r").status()), "JOB_UNKNOWN");
}

}  // namespace
}  // namespace atl::coordinator
