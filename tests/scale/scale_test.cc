// The short form of scale_bench: a hundred islands whose coordinator is unreachable for longer than their leases last.
// No call is rejected, no lease is revoked, no attempt changes.
#include <cstdlib>
#include <filesystem>
#include <memory>

#include <gtest/gtest.h>

#include "absl/time/clock.h"
#include "atoll/island/v1/island_service.grpc.pb.h"
#include "common/base/status_macros.h"
#include "common/rpc/channel.h"
#include "common/wire/status.h"
#include "tests/multiproc/process.h"
#include "tests/scale/attempts.h"
#include "tests/scale/coordinator_under_load.h"
#include "tests/scale/filled_store.h"
#include "tests/scale/simulated_islands.h"

namespace atl::scale {
namespace {

namespace pb = atlpb::island::v1;

constexpr absl::Duration kPatience = absl::Seconds(120);

class Scale : public testing::Test {
 protected:
  Scale() {
    folder_ = testing::TempDir() + "atoll_scale_XXXXXX";
    if (mkdtemp(folder_.data()) == nullptr) std::abort();
  }
  ~Scale() override { std::filesystem::remove_all(folder_); }

  // Claims a task as a new island and returns the answer.
  static absl::StatusOr<pb::ClaimTaskResponse> ClaimAsNewcomer(const std::string& address) {
    const auto stub = pb::IslandService::NewStub(rpc::MakeChannel(address));
    pb::RegisterIslandRequest islander;
    islander.set_island_id("newcomer");
    islander.set_request_id("start");
    pb::Capabilities* capabilities = islander.mutable_capabilities();
    capabilities->mutable_protocol()->set_min(1);
    capabilities->mutable_protocol()->set_max(1);
    capabilities->mutable_format()->set_min(1);
    capabilities->mutable_format()->set_max(1);
    capabilities->set_ranks(1);
    capabilities->set_device_kind("cpu");
    pb::RegisterIslandResponse registered;
    grpc::ClientContext register_context;
    rpc::SetTimeout(&register_context, absl::Seconds(30), /*wait_for_ready=*/true);
    ATOLL_RETURN_IF_ERROR(rpc::FromGrpc(stub->RegisterIsland(&register_context, islander, &registered)));
    pb::ClaimTaskRequest request;
    request.set_island_id("newcomer");
    request.set_incarnation(registered.incarnation());
    pb::ClaimTaskResponse response;
    grpc::ClientContext context;
    rpc::SetTimeout(&context, absl::Seconds(30), /*wait_for_ready=*/true);
    ATOLL_RETURN_IF_ERROR(rpc::FromGrpc(stub->ClaimTask(&context, request, &response)));
    return response;
  }

  std::string folder_;
};

TEST_F(Scale, AHundredIslandsOutliveTheirCoordinator) {
  // No task waits: a newcomer could only be given what another island has.
  const StoreShape shape{.jobs = 25, .experts_per_job = 4, .leases = 100};
  const auto tokens = FillStore(folder_, shape);
  ASSERT_TRUE(tokens.ok()) << tokens.status();
  CoordinatorUnderLoad coordinator(folder_, {"--lease", "3s"});
  ASSERT_TRUE(coordinator.Start().ok());
  SimulatedIslands islands(*tokens, {.coordinator = coordinator.address(),
                                     .heartbeat_interval = absl::Milliseconds(500),
                                     .blob_root = "file://" + folder_ + "/blobs"});
  const auto all_since = [&](absl::Time since) {
    return testing_cluster::Await(kPatience, [&] { return islands.RenewedSince(since) == shape.leases; });
  };
  ASSERT_TRUE(all_since(absl::UnixEpoch()));
  ASSERT_TRUE(all_since(absl::Now())) << "every island is heard again and again";

  coordinator.Kill();
  absl::SleepFor(absl::Seconds(4));  // what is tested: longer than a lease
  const absl::Time restarted = absl::Now();
  ASSERT_TRUE(coordinator.Start().ok());
  const auto taken = ClaimAsNewcomer(coordinator.address());
  ASSERT_TRUE(taken.ok()) << taken.status();
  EXPECT_FALSE(taken->has_grant()) << taken->DebugString();
  ASSERT_TRUE(all_since(restarted));

  const Observed observed = islands.Take();
  EXPECT_EQ(observed.refused, 0) << observed.first_refusal;
  EXPECT_EQ(observed.revoked, 0);
  EXPECT_GT(observed.commits.size(), 0u);
  EXPECT_GT(observed.unanswered, 0) << "the coordinator was never away";
  const auto counts = AttemptsOf(coordinator.address(), nullptr, shape.jobs);
  ASSERT_TRUE(counts.ok()) << counts.status();
  EXPECT_EQ(counts->first_attempts, shape.leases);
  EXPECT_EQ(counts->other_attempts, 0);
}

}  // namespace
}  // namespace atl::scale
