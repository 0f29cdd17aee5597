#include "common/wire/task_wire.h"

#include "common/base/errors.h"
#include "common/wire/time_wire.h"
#include "gtest/gtest.h"

namespace atl::wire {
namespace {

spec::Artifact Partition() {
  return {.name = "partition/3", .uri = "file:///d/p3.parquet", .bytes = 123, .sha256 = "ab", .rows = 7};
}

TEST(TaskWireTest, EveryKindSurvivesTheRoundTrip) {
  for (int number = 1; number <= 7; ++number) {
    const auto kind = static_cast<spec::TaskKind>(number);
    const auto back = FromProto(ToProto(kind));
    ASSERT_TRUE(back.ok());
    EXPECT_EQ(*back, kind);
    EXPECT_NE(spec::ToString(kind), "unknown");
  }
  EXPECT_EQ(atlpb::job::v1::TaskKind_MAX, 7) << "a new kind needs its place in common/spec/task.h";
}

TEST(TaskWireTest, AnUnknownKindIsNamed) {
  const auto kind = FromProto(static_cast<atlpb::job::v1::TaskKind>(99));
  EXPECT_EQ(ErrorReason(kind.status()), "UNKNOWN_TASK_KIND");
  EXPECT_EQ(ErrorField(kind.status()), "kind");
  atlpb::island::v1::TaskGrant grant;
  EXPECT_EQ(FromProto(grant).status().code(), absl::StatusCode::kInvalidArgument);
}

TEST(TaskWireTest, AGrantSurvivesTheRoundTrip) {
  spec::TaskGrant grant;
  grant.token = {.task_id = "t", .store_epoch = 2, .attempt = 3, .attempt_secret = std::string("\0\xff", 2)};
  grant.job_id = "j";
  grant.kind = spec::TaskKind::kTrainExpert;
  grant.index = 2;
  grant.spec.model_name = "digits";
  grant.spec.router_training.steps = 9;
  grant.dataset_manifest_uri = "file:///d/manifest.json";
  grant.inputs = {{.task_id = "p", .kind = spec::TaskKind::kPartition, .index = 1, .artifacts = {Partition()}}};
  grant.skipped = {{11, 2}, {40, 1}};
  grant.resume_from = {{.step = 100, .manifest_uri = "file:///m", .manifest_sha256 = "cd", .milestone = true}};
  grant.write_prefix = "file:///w/1-3";
  grant.storage = {.reads = {"s3://b/datasets/d/"},
                   .writes = {"s3://b/jobs/j/", "s3://b/profiles/"},
                   .access_key = "key",
                   .secret_key = "secret",
                   .session_token = "token",
                   .expires = absl::FromUnixSeconds(1'800'000'000)};
  grant.lease_duration = absl::Milliseconds(12500);
  const auto back = FromProto(ToProto(grant));
  ASSERT_TRUE(back.ok()) << back.status();
  EXPECT_EQ(back->token, grant.token);
  EXPECT_EQ(back->job_id, grant.job_id);
  EXPECT_EQ(back->kind, grant.kind);
  EXPECT_EQ(back->index, grant.index);
  EXPECT_EQ(back->spec, grant.spec);
  EXPECT_EQ(back->dataset_manifest_uri, grant.dataset_manifest_uri);
  EXPECT_EQ(back->inputs, grant.inputs);
  EXPECT_EQ(back->resume_from, grant.resume_from);
  EXPECT_EQ(back->skipped, grant.skipped);
  EXPECT_EQ(back->write_prefix, grant.write_prefix);
  EXPECT_EQ(back->storage, grant.storage);
  EXPECT_EQ(back->lease_duration, grant.lease_duration);

  grant.resume_from.reset();
  grant.storage = {};
  EXPECT_EQ(FromProto(ToProto(grant))->resume_from, std::nullopt);
  EXPECT_EQ(FromProto(ToProto(grant))->storage, spec::StorageGrant());
  EXPECT_FALSE(ToProto(grant).storage().has_expire_time());
}

TEST(TaskWireTest, ProgressSurvivesTheRoundTrip) {
  const spec::Progress progress{.step = 10,
                                .total_steps = 400,
                                .loss = 0.25,
                                .samples_per_second = 812.5,
                                .time_left = absl::Milliseconds(90250),
                                .metrics = {{"accuracy", 0.9}}};
  const spec::Progress back = FromProto(ToProto(progress));
  EXPECT_EQ(back.step, progress.step);
  EXPECT_EQ(back.total_steps, progress.total_steps);
  EXPECT_EQ(back.loss, progress.loss);
  EXPECT_EQ(back.samples_per_second, progress.samples_per_second);
  EXPECT_EQ(back.time_left, progress.time_left);
  EXPECT_EQ(back.metrics, progress.metrics);
}

TEST(TimeWireTest, TimesSurviveAndInfiniteOnesAreClamped) {
  for (const absl::Duration d : {absl::ZeroDuration(), absl::Nanoseconds(-1500000001), absl::Hours(5000)}) {
    EXPECT_EQ(FromProto(ToProto(d)), d);
  }
  EXPECT_EQ(ToProto(absl::InfiniteDuration()).seconds(), 315'576'000'000);
  for (const absl::Time t :
       {absl::UnixEpoch(), absl::FromUnixNanos(-1), absl::FromUnixNanos(1'700'000'000'123'456'789)}) {
    EXPECT_EQ(FromProto(ToProto(t)), t);
    EXPECT_GE(ToProto(t).nanos(), 0);
  }
  EXPECT_EQ(ToProto(absl::InfiniteFuture()).seconds(), 253'402'300'799);
}

}  // namespace
}  // namespace atl::wire
