#include "worker/trainer/trainer.h"

#include "common/base/errors.h"
#include "common/base/failpoint.h"
#include "worker/trainer/trainer_testing.h"

namespace atl::trainer {
namespace {

TEST(ExactResumeTest, FortyStepsEqualTwentyAndTwentyMoreInAFreshTrainerBitForBit) {
  storage::TemporaryStore store;
  const TrainerOptions options = SmallOptions();
  for (const int32_t stages : {1, 2}) {
    const planner::Plan plan = PlanFor(options, stages);
    const Trained whole = Train(options, plan, 40, &store);
    const Trained half = Train(options, plan, 20, &store);
    const Trained resumed = Train(options, plan, 40, &store, &half);
    ExpectSameState(whole, resumed);
    ASSERT_EQ(resumed.results.size(), 20U);
    for (size_t i = 0; i < 20; ++i) {
      EXPECT_EQ(resumed.results[i].step, static_cast<int64_t>(i) + 21);
      EXPECT_EQ(whole.results[20 + i].loss, resumed.results[i].loss);
      EXPECT_EQ(whole.results[20 + i].gradient_norm, resumed.results[i].gradient_norm);
    }
  }
}

TEST(ExactResumeTest, AnotherStageCountContinuesBitForBit) {
  storage::TemporaryStore store;
  const TrainerOptions options = SmallOptions();
  const Trained whole = Train(options, PlanFor(options, 2), 12, &store);
  const Trained half = Train(options, PlanFor(options, 2), 6, &store);
  for (const int32_t stages : {1, 3}) {
    ExpectSameState(whole, Train(options, PlanFor(options, stages), 12, &store, &half));
  }
  ExpectSameState(whole, Train(options, PlanFor(options, 4, "gpipe"), 12, &store, &half));
}

TEST(ExactResumeTest, RouterNetworksResumeBitForBitOnAnotherStageCount) {
  storage::TemporaryStore store;
  TrainerOptions options = SmallOptions();
  options.objective = Objective::kCluster;
  const Trained whole = Train(options, PlanFor(options, 2), 8, &store);
  const Trained half = Train(options, PlanFor(options, 2), 4, &store);
  ExpectSameState(whole, Train(options, PlanFor(options, 1), 8, &store, &half));
}

// `replicas` pipelines of two stages, which share SmallOptions' batch; a reduction behind each rank's line.
planner::Plan ReplicatedPlan(const TrainerOptions& options, int32_t replicas) {
  planner::Plan plan = PlanFor(options, 2, "1f1b", 2);
  plan.micro_batch_size /= replicas;
  plan.replicas = replicas;
  for (int32_t stage = 0; stage < 2; ++stage) {
    plan.schedule.ranks[static_cast<size_t>(stage)].push_back({schedule::ActionKind::kReduce, stage, 0});
  }
  return plan;
}

TEST(ReplicasTest, TrainOnTheWholeBatchAndReportItOnce) {
  storage::TemporaryStore store;
  for (const Objective objective : {Objective::kVelocity, Objective::kCluster}) {
    TrainerOptions options = SmallOptions();
    options.objective = objective;
    const Trained one = Train(options, PlanFor(options, 2, "1f1b", 4), 6, &store);
    const Trained two = Train(options, ReplicatedPlan(options, 2), 6, &store);
    ASSERT_EQ(two.results.size(), 6U);
    for (size_t i = 0; i < 6; ++i) {
      // The same samples; sums in another order.
      EXPECT_NEAR(two.results[i].loss, one.results[i].loss, 1e-5);
      EXPECT_NEAR(two.results[i].gradient_norm, one.results[i].gradient_norm, 1e-4);
      EXPECT_EQ(two.results[i].metrics.contains("accuracy"), objective == Objective::kCluster);
    }
    EXPECT_NE(two.results[0].loss, two.results[1].loss);
    if (objective == Objective::kCluster) {
      EXPECT_NEAR(two.results[5].metrics.at("accuracy"), one.results[5].metrics.at("accuracy"), 1e-9);
    }
  }
}

TEST(ReplicasTest, TheFirstReplicaWritesTheCheckpointAndAllResumeFromItBitForBit) {
  storage::TemporaryStore store;
  const TrainerOptions options = SmallOptions();
  const planner::Plan plan = ReplicatedPlan(options, 2);
  const Trained whole = Train(options, plan, 12, &store);
  const Trained half = Train(options, plan, 6, &store);
  auto reader = storage::CheckpointReader::Open(store.get(), half.manifest_uri, half.manifest_sha256);
  ASSERT_TRUE(reader.ok()) << reader.status();
  EXPECT_EQ(reader->manifest().files.size(), 2U);
  EXPECT_EQ(reader->manifest().samples_consumed, 6 * 16);
  ExpectSameState(whole, Train(options, plan, 12, &store, &half));
  // Four ranks in a row instead of two and two: the same run to float tolerance.
  const Trained other = Train(options, PlanFor(options, 4, "1f1b", 4), 12, &store, &half);
  ASSERT_EQ(other.results.size(), 6U);
  EXPECT_NEAR(other.results[5].loss, whole.results[11].loss, 1e-4);
}

TEST(LoadTest, ACheckpointOfAnotherModelSeedOrPrecisionIsRefused) {
  storage::TemporaryStore store;
  const TrainerOptions options = SmallOptions();
  const Trained trained = Train(options, PlanFor(options, 1), 1, &store);
  const auto load = [&](const TrainerOptions& other) {
    StrokeData data(160, options.height, 5);
    auto trainer = Trainer::Create(other, PlanFor(other, 1), 0, &data, nullptr, Clock::Real());
    EXPECT_TRUE(trainer.ok()) << trainer.status();
    auto reader = storage::CheckpointReader::Open(store.get(), trained.manifest_uri, trained.manifest_sha256);
    return (*trainer)->Load(*reader);
  };
  EXPECT_TRUE(load(options).ok());
  TrainerOptions other = options;
  other.model.width = 64;
  EXPECT_EQ(load(other).code(), absl::StatusCode::kFailedPrecondition);
  other = options;
  other.seed = 4;
  EXPECT_EQ(ErrorReason(load(other)), "CHECKPOINT_MISMATCH");
  other = options;
  other.training.precision.compute = "bfloat16";
  EXPECT_EQ(ErrorReason(load(other)), "CHECKPOINT_MISMATCH");
}

TEST(SnapshotTest, TrainingGoesOnWithoutChangingIt) {
  storage::TemporaryStore store;
  const TrainerOptions options = SmallOptions();
  StrokeData data(160, options.height, 5);
  auto trainer = Trainer::Create(options, PlanFor(options, 1), 0, &data, nullptr, Clock::Real());
  ASSERT_TRUE(trainer.ok()) << trainer.status();
  ASSERT_TRUE((*trainer)->Step().ok());
  auto snapshot = (*trainer)->TakeSnapshot();
  auto same = (*trainer)->TakeSnapshot();
  ASSERT_TRUE((*trainer)->Step().ok());
  EXPECT_EQ((*snapshot)->step(), 1);
  EXPECT_EQ((*snapshot)->samples_consumed(), 16);
  const auto before = (*snapshot)->Write(store.get(), store.get()->UriOf("a"));
  const auto after = (*same)->Write(store.get(), store.get()->UriOf("b"));
  ASSERT_TRUE(before.ok()) << before.status();
  EXPECT_EQ(before->at(0).name, "stage-0-of-1.safetensors");
  EXPECT_EQ(*before, *after);
}

TEST(ClippingTest, TheGlobalNormAndTheClippedRunAreThoseOfOneProcess) {
  storage::TemporaryStore store;
  TrainerOptions options = SmallOptions();
  options.training.clip_norm = 0.05;  // far below the gradients' norm
  const Trained one = Train(options, PlanFor(options, 1), 5, &store);
  const Trained four = Train(options, PlanFor(options, 4), 5, &store);
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_GT(one.results[i].gradient_norm, 0.05);
    EXPECT_EQ(one.results[i].gradient_norm, four.results[i].gradient_norm);
  }
  ExpectSameState(one, four);
  options.training.clip_norm = 0;
  const Trained free = Train(options, PlanFor(options, 1), 5, &store);
  EXPECT_EQ(free.results[0].gradient_norm, one.results[0].gradient_norm);
  EXPECT_NE(free.state, one.state);
}

double MeanLoss(const Trained& trained, size_t first, size_t count) {
  double sum = 0;
  for (size_t i = first; i < first + count; ++i) sum += trained.results[i].loss;
  return sum / static_cast<double>(count);
}

TEST(TrainingTest, LossOfAnExpertFallsToABound) {
  storage::TemporaryStore store;
  TrainerOptions options = SmallOptions();
  options.model.depth = 3;
  options.training.steps = 150;
  options.training.batch_size = 32;
  options.training.learning_rate = 3e-3;
  const Trained trained = Train(options, PlanFor(options, 1), 150, &store);
  EXPECT_GT(MeanLoss(trained, 0, 5), 1.2);
  EXPECT_LT(MeanLoss(trained, 140, 10), 0.65);
  for (const StepResult& result : trained.results) EXPECT_TRUE(result.metrics.empty());
}

TEST(TrainingTest, RouterNetworkLearnsTheClusters) {
  storage::TemporaryStore store;
  TrainerOptions options = SmallOptions();
  options.objective = Objective::kCluster;
  options.model.depth = 2;
  options.training.steps = 60;
  options.training.batch_size = 32;
  options.training.learning_rate = 3e-3;
  const Trained trained = Train(options, PlanFor(options, 2), 60, &store);
  EXPECT_NEAR(trained.results[0].loss, std::log(2.0), 1e-6);  // the head starts at zero
  EXPECT_LT(MeanLoss(trained, 50, 10), 0.3);
  double accuracy = 0;
  for (size_t i = 50; i < 60; ++i) accuracy += trained.results[i].metrics.at("accuracy") / 10;
  EXPECT_GT(accuracy, 0.85);
}

TEST(TrainingTest, Bfloat16ComputeTrainsOverFloat32MasterWeights) {
  storage::TemporaryStore store;
  TrainerOptions options = SmallOptions();
  options.model.depth = 2;
  options.training.steps = 40;
  options.training.learning_rate = 3e-3;
  options.training.precision.compute = "bfloat16";
  const Trained one = Train(options, PlanFor(options, 1), 40, &store);
  EXPECT_LT(MeanLoss(one, 35, 5), 0.75 * MeanLoss(one, 0, 5));
  auto reader = storage::CheckpointReader::Open(store.get(), one.manifest_uri, one.manifest_sha256);
  ASSERT_TRUE(reader.ok());
  bool below_bfloat16 = false;
  for (const auto& [name, tensor] : reader->tensors()) {
    EXPECT_EQ(tensor.dtype, "F32") << name;
    if (name.rfind("weights/", 0) != 0) continue;
    for (size_t i = 0; i + 4 <= tensor.bytes.size(); i += 4) {
      below_bfloat16 = below_bfloat16 || tensor.bytes[i] != 0 || tensor.bytes[i + 1] != 0;
    }
  }
  EXPECT_TRUE(below_bfloat16) << "the master weights hold no more than bfloat16";
  EXPECT_EQ(reader->manifest().precision.at("compute"), "bfloat16");
  ExpectSameState(one, Train(options, PlanFor(options, 2), 40, &store));
}

TEST(CreateTest, ImpossibleOptionsNameTheField) {
  StrokeData data(160, 8, 5);
  const auto create = [&data](auto change) {
    TrainerOptions options = SmallOptions();
    planner::Plan plan = PlanFor(options, 1);
    change(options, plan);
    return Trainer::Create(options, plan, 0, &data, nullptr, Clock::Real()).status();
  };
  EXPECT_EQ(ErrorField(create([](auto& o, auto&) { o.training.beta1 = 1; })), "training.beta1");
  EXPECT_EQ(ErrorField(create([](auto& o, auto&) { o.training.learning_rate_schedule = "steps"; })),
            "training.learning_rate_schedule");
  EXPECT_EQ(ErrorField(create([](auto& o, auto&) { o.model.patch = 3; })), "patch");
  EXPECT_EQ(ErrorField(create([](auto&, auto& p) { p.precision.params = "bfloat16"; })), "training.precision.params");
  EXPECT_EQ(ErrorField(create([](auto&, auto& p) { p.precision.compute = "float8"; })), "compute");
  EXPECT_EQ(ErrorReason(create([](auto&, auto& p) { p.stages[0].end_layer = 3; })), "PLAN_INVALID");
  EXPECT_EQ(ErrorReason(create([](auto& o, auto& p) { p = PlanFor(o, 2); })), "PLAN_INVALID");  // no transport
  EXPECT_EQ(ErrorField(create([](auto& o, auto&) { o.device = "tpu"; })), "device");
  EXPECT_EQ(ErrorReason(create([](auto&, auto& p) { p.recomputed_layers = {1, 8}; })), "PLAN_INVALID");
  EXPECT_EQ(ErrorReason(create([](auto&, auto& p) { p.recomputed_layers = {2, 1}; })), "PLAN_INVALID");
}

TEST(CreateTest, ReplicasNeedReductionsAndSumsTheOrderOfPlainTraining) {
  StrokeData data(160, 8, 5);
  const TrainerOptions options = SmallOptions();
  auto transports = transport::MakeLoopbackTransports(2);
  const auto create = [&](auto change) {
    planner::Plan plan = PlanFor(options, 1, "1f1b", 2);
    change(plan);
    return Trainer::Create(options, plan, 1, &data, transports[1].get(), Clock::Real()).status();
  };
  const absl::Status none = create([](auto& p) { p.replicas = 2; });
  EXPECT_EQ(ErrorReason(none), "PLAN_INVALID");
  EXPECT_NE(none.message().find("a reduction R of every stage for 2 replicas; found none"), std::string::npos) << none;
  EXPECT_EQ(ErrorReason(create([](auto& p) { p.replicas = 0; })), "PLAN_INVALID");
  EXPECT_EQ(ErrorReason(create([](auto& p) {
              p.replicas = 2;
              p.schedule.ranks[0].insert(p.schedule.ranks[0].begin(), {schedule::ActionKind::kReduce, 0, 0});
            })),
            "SCHEDULE_ORDER");
  EXPECT_EQ(ErrorReason(create([](auto& p) {
              p.replicas = 2;
              p.schedule = *schedule::ParseText("0F0,0F1,0B1,0B0,R0");
            })),
            "SCHEDULE_ACCUMULATION");
}

TEST(CreateTest, AnAbsentDeviceIsAFailedPrecondition) {
  StrokeData data(160, 8, 5);
  TrainerOptions options = SmallOptions();
  options.device = "cuda";
  const absl::Status status = Trainer::Create(options, PlanFor(options, 1), 0, &data, nullptr, Clock::Real()).status();
  if (status.ok()) GTEST_SKIP() << "this machine has a CUDA device";
  EXPECT_EQ(ErrorReason(status), "DEVICE_UNAVAILABLE");
}

TEST(StepTest, ALabelOutsideTheClassesIsNamed) {
  StrokeData data(160, 8, 9);
  const TrainerOptions options = SmallOptions();
  auto trainer = Trainer::Create(options, PlanFor(options, 1), 0, &data, nullptr, Clock::Real());
  ASSERT_TRUE(trainer.ok());
  const absl::Status status = (*trainer)->Step().status();
  EXPECT_EQ(ErrorReason(status), "SAMPLE_OUT_OF_RANGE");
}

class NotFiniteData : public StrokeData {
 public:
  using StrokeData::StrokeData;
  absl::StatusOr<Item> Read(int64_t position, std::span<float> pixels) override {
    auto item = StrokeData::Read(position, pixels);
    pixels[0] = std::numeric_limits<float>::quiet_NaN();
    return item;
  }
};

TEST(SkippedTest, ARunThatWentBackEqualsOneThatLeavesTheSameBatchesOutFromTheStart) {
  storage::TemporaryStore store;
  TrainerOptions options = SmallOptions();
  const planner::Plan plan = PlanFor(options, 2);
  const Trained before = Train(options, plan, 5, &store);
  // As after a divergence in step 7 with a checkpoint of step 5: an epoch is ten batches, so the order wraps later.
  options.skipped = {{6, 2}};
  const Trained went_back = Train(options, plan, 12, &store, &before);
  const Trained from_start = Train(options, plan, 12, &store);
  ExpectSameState(went_back, from_start);
  // An exact resume in the middle, on another stage count, and with the look at what it consumed.
  const Trained middle = Train(options, plan, 8, &store, &before);
  const Trained resumed = Train(options, PlanFor(options, 1), 12, &store, &middle);
  ExpectSameState(went_back, resumed);
  const auto consumed = [&](const Trained& trained) {
    return storage::CheckpointReader::Open(store.get(), trained.manifest_uri, trained.manifest_sha256)
        ->manifest()
        .samples_consumed;
  };
  EXPECT_EQ(consumed(before), 5 * 16);
  EXPECT_EQ(consumed(middle), (8 + 2) * 16);
  EXPECT_EQ(consumed(resumed), (12 + 2) * 16);
  options.skipped.clear();
  const Trained nothing_skipped = Train(options, plan, 12, &store, &before);
  EXPECT_NE(nothing_skipped.state, went_back.state) << "the window changed nothing";
}

TEST(StepTest, ALossThatIsNoNumberEndsTrainingOnEveryRankAlike) {
  const TrainerOptions options = SmallOptions();
  const planner::Plan plan = PlanFor(options, 2);
  // Wherever it comes up first: here on one of the two ranks.
  ASSERT_TRUE(SetFailpoints("trainer.loss=error@5").ok());
  OnEveryRank(plan, [&](int32_t rank, transport::Transport* transport) {
    StrokeData data(160, options.height, 5);
    auto trainer = Trainer::Create(options, plan, rank, &data, transport, Clock::Real());
    ASSERT_TRUE(trainer.ok()) << trainer.status();
    absl::StatusOr<StepResult> result = (*trainer)->Step();
    for (; result.ok(); result = (*trainer)->Step()) EXPECT_GT(result->loss, 0) << "every rank knows it";
    EXPECT_EQ(ErrorReason(result.status()), "LOSS_NOT_FINITE") << result.status();
    EXPECT_EQ((*trainer)->step(), 2);
    EXPECT_EQ((*trainer)->samples_consumed(), 2 * 16);
  });
  EXPECT_TRUE(SetFailpoints("").ok());
}

TEST(StepTest, AGradientThatIsNoNumberEndsTraining) {
  NotFiniteData data(160, 8, 5);
  const TrainerOptions options = SmallOptions();
  auto trainer = Trainer::Create(options, PlanFor(options, 1), 0, &data, nullptr, Clock::Real());
  ASSERT_TRUE(trainer.ok());
  EXPECT_EQ(ErrorReason((*trainer)->Step().status()), "GRADIENT_NOT_FINITE");
  EXPECT_EQ((*trainer)->step(), 0);
}

}  // namespace
}  // namespace atl::trainer
