#include "worker/engine/engine.h"

#include <cstdlib>
#include <fstream>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/errors.h"
#include "common/schedule/generators.h"
#include "worker/engine/fake_stage_compute.h"
#include "worker/transport/loopback/loopback_transport.h"

namespace atl::engine {
namespace {

using schedule::Action;
using schedule::ActionKind;
using schedule::Schedule;
using ::testing::HasSubstr;

// One island over the loopback transport, a thread per rank.
struct Island {
  explicit Island(Schedule of, EngineOptions options = {}) : schedule(std::move(of)) {
    transports = transport::MakeLoopbackTransports(schedule.rank_count());
    std::vector<std::string> addresses;
    for (const auto& transport : transports) addresses.push_back(transport->Address());
    OnEveryRank([&](int32_t rank) {
      const absl::Status status = transports[rank]->Connect(addresses, LanesOf(schedule), absl::Seconds(10));
      EXPECT_TRUE(status.ok()) << status;
    });
    for (int32_t rank = 0; rank < schedule.rank_count(); ++rank) {
      computes.push_back(std::make_unique<FakeStageCompute>(schedule.stages));
      engines.push_back(std::make_unique<Engine>(schedule, rank, computes[rank].get(), transports[rank].get(),
                                                 Clock::Real(), options));
    }
  }

  template <typename Run>
  void OnEveryRank(Run run) {
    std::vector<std::thread> threads;
    for (int32_t rank = 0; rank < schedule.rank_count(); ++rank) threads.emplace_back([&run, rank] { run(rank); });
    for (std::thread& thread : threads) thread.join();
  }

  std::vector<absl::Status> Iterate() {
    std::vector<absl::Status> statuses(schedule.ranks.size());
    OnEveryRank([&](int32_t rank) { statuses[rank] = engines[rank]->RunIteration(); });
    return statuses;
  }

  FakeStageCompute& ComputeOf(int32_t stage) { return *computes[schedule.rank_of_stage[stage]]; }

  const Schedule schedule;
  std::vector<std::unique_ptr<transport::Transport>> transports;
  std::vector<std::unique_ptr<FakeStageCompute>> computes;
  std::vector<std::unique_ptr<Engine>> engines;
};

// Weight gradients of one process that runs the stages one after the other: [stage][micro-batch].
std::vector<std::vector<FakeValues>> PlainGradients(int32_t stages, int32_t micro_batches) {
  std::vector<std::vector<FakeValues>> gradients(stages, std::vector<FakeValues>(micro_batches));
  for (int32_t m = 0; m < micro_batches; ++m) {
    std::vector<FakeValues> inputs{FakeBatch(m)};
    for (int32_t stage = 0; stage < stages; ++stage) inputs.push_back(FakeForward(stage, inputs.back()));
    FakeValues gradient = FakeLossGradient(inputs.back());
    for (int32_t stage = stages - 1; stage >= 0; --stage) {
      gradient = FakeInputGradient(stage, inputs[stage], gradient);
      gradients[stage][m] = gradient;
    }
  }
  return gradients;
}

void ExpectPlainGradients(Island& island) {
  const auto expected = PlainGradients(island.schedule.stages, island.schedule.micro_batches);
  for (int32_t stage = 0; stage < island.schedule.stages; ++stage) {
    for (int32_t m = 0; m < island.schedule.micro_batches; ++m) {
      EXPECT_EQ((island.ComputeOf(stage).weight_gradients[{stage, m}]), expected[stage][m])
          << "stage " << stage << ", micro-batch " << m;
      EXPECT_EQ((island.ComputeOf(stage).released[{stage, m}]), 1) << "stage " << stage << ", micro-batch " << m;
    }
  }
}

// Split backward; split backward with weight gradients last; two stages per rank in V placement; all on one rank.
constexpr const char* kHandWritten[] = {
    "0F0,0F1,0I0,0W0,0B1\n1F0,1I0,1F1,1I1,1W1,1W0\n",
    "0F0,0F1,0F2,0I0,0I1,0I2,0W0,0W1,0W2\n1F0,1I0,1F1,1I1,1F2,1I2,1W0,1W1,1W2\n",
    "0F0,0F1,3F0,3I0,0I0,3F1,3B1,0B1,3W0,0W0\n1F0,2F0,1F1,2F1,2I0,1I0,2W0,1W0,2B1,1B1\n",
    "0F0,1F0,2F0,2B0,1B0,0B0\n",
};

TEST(Engine, EveryMicroBatchPassesThroughAllStagesInOrder) {
  for (const std::string_view name : schedule::GeneratorNames()) {
    for (int32_t stages = 1; stages <= 4; ++stages) {
      for (const int32_t micro_batches : {1, 2, 3, 8}) {
        SCOPED_TRACE(std::string(name) + " " + std::to_string(stages) + " x " + std::to_string(micro_batches));
        Island island(*schedule::Generate(name, stages, micro_batches));
        for (const absl::Status& status : island.Iterate()) ASSERT_TRUE(status.ok()) << status;
        ExpectPlainGradients(island);
      }
    }
  }
}

TEST(Engine, SplitBackwardAndSeveralStagesPerRankGiveTheSameGradients) {
  for (const char* text : kHandWritten) {
    SCOPED_TRACE(text);
    Island island(*schedule::ParseText(text));
    ASSERT_TRUE(schedule::Validate(island.schedule).ok()) << schedule::Validate(island.schedule);
    for (const absl::Status& status : island.Iterate()) ASSERT_TRUE(status.ok()) << status;
    ExpectPlainGradients(island);
  }
}

TEST(Engine, SchedulesWrittenByPyTorchRun) {
  const char* source = std::getenv("ATOLL_SOURCE_DIR");
  if (source == nullptr) GTEST_SKIP() << "ATOLL_SOURCE_DIR is not set: run through ctest";
  for (const char* name : {"interleaved_1f1b", "interleaved_zero_bubble", "looped_bfs", "zbv_zero_bubble"}) {
    SCOPED_TRACE(name);
    std::ifstream file(std::string(source) + "/tests/golden/schedules/pytorch/" + name + ".csv");
    std::stringstream text;
    text << file.rdbuf();
    Island island(*schedule::ParseText(text.str()));
    for (const absl::Status& status : island.Iterate()) ASSERT_TRUE(status.ok()) << status;
    ExpectPlainGradients(island);
  }
}

TEST(Engine, IterationsFollowEachOtherOverTheSameLanes) {
  Island island(*schedule::Generate1F1B(4, 8));
  for (int iteration = 1; iteration <= 5; ++iteration) {
    for (const absl::Status& status : island.Iterate()) ASSERT_TRUE(status.ok()) << status;
    EXPECT_EQ((island.ComputeOf(2).released[{2, 3}]), iteration);
  }
}

TEST(Engine, ActionsRunInTheOrderOfTheScheduleAndAreTimed) {
  Island island(*schedule::Generate1F1B(4, 8));
  for (const absl::Status& status : island.Iterate()) ASSERT_TRUE(status.ok()) << status;
  for (int32_t rank = 0; rank < 4; ++rank) {
    EXPECT_EQ(island.computes[rank]->ran, island.schedule.ranks[rank]);
    const auto& timings = island.engines[rank]->timings();
    ASSERT_EQ(timings.size(), island.schedule.ranks[rank].size());
    absl::Duration before;
    for (size_t i = 0; i < timings.size(); ++i) {
      EXPECT_EQ(timings[i].action, island.schedule.ranks[rank][i]);
      EXPECT_LE(before, timings[i].ready);
      EXPECT_LE(timings[i].ready, timings[i].start);
      EXPECT_LE(timings[i].start, timings[i].end);
      EXPECT_LE(timings[i].end, timings[i].passed_on);
      before = timings[i].passed_on;
    }
    EXPECT_GE(island.engines[rank]->drain(), absl::ZeroDuration());
  }
}

TEST(Engine, OneFOneBHoldsFewerMicroBatchesThanGPipe) {
  Island one_f_one_b(*schedule::Generate1F1B(4, 16));
  Island gpipe(*schedule::GenerateGPipe(4, 16));
  for (const absl::Status& status : one_f_one_b.Iterate()) ASSERT_TRUE(status.ok()) << status;
  for (const absl::Status& status : gpipe.Iterate()) ASSERT_TRUE(status.ok()) << status;
  // p - s micro-batches computed on, at most one receive ahead, and gradients whose send is under way: the receiver
  // posts for them at the latest when it needs them.
  EXPECT_LE(one_f_one_b.computes[3]->live_peak, 6u);
  EXPECT_EQ(gpipe.computes[3]->live_peak, 16u);
}

TEST(Engine, ARankAloneNeedsNoTransport) {
  const Schedule schedule = *schedule::Generate1F1B(1, 4);
  FakeStageCompute compute(1);
  Engine engine(schedule, 0, &compute, nullptr, Clock::Real(), {});
  ASSERT_TRUE(engine.RunIteration().ok());
  EXPECT_EQ((compute.weight_gradients[{0, 3}]), PlainGradients(1, 4)[0][3]);
}

TEST(Engine, SeveralRanksWithoutATransportAreRefused) {
  const Schedule schedule = *schedule::Generate1F1B(2, 4);
  FakeStageCompute compute(2);
  EXPECT_EQ(ErrorReason(Engine(schedule, 0, &compute, nullptr, Clock::Real(), {}).RunIteration()), "TRANSPORT_MISSING");
  EXPECT_EQ(ErrorReason(Engine(schedule, 2, &compute, nullptr, Clock::Real(), {}).RunIteration()), "RANK_OUT_OF_RANGE");
}

TEST(Engine, AnErrorOfAStageAbortsItsTransportAndOthersTimeOut) {
  Island island(*schedule::Generate1F1B(3, 4), {.timeout = absl::Milliseconds(100)});
  island.computes[1]->before = [](const Action& action) {
    return action == Action{ActionKind::kBackward, 1, 1}
               ? MakeError(absl::StatusCode::kResourceExhausted, "OUT_OF_MEMORY", "no memory left")
               : absl::OkStatus();
  };
  const std::vector<absl::Status> statuses = island.Iterate();
  EXPECT_EQ(statuses[1].code(), absl::StatusCode::kResourceExhausted);
  EXPECT_EQ(ErrorReason(statuses[1]), "OUT_OF_MEMORY");
  EXPECT_THAT(std::string(statuses[1].message()), HasSubstr("rank 1: 1B1: no memory left"));
  EXPECT_EQ(statuses[0].code(), absl::StatusCode::kDeadlineExceeded) << statuses[0];
  EXPECT_THAT(std::string(statuses[0].message()), HasSubstr("rank 0: 0B1"));
  // The instance is dead: a later iteration fails at once, with the first error.
  EXPECT_EQ(island.engines[1]->RunIteration().code(), absl::StatusCode::kResourceExhausted);
}

TEST(Engine, AnAbortFromOutsideEndsEveryWait) {
  Island island(*schedule::Generate1F1B(3, 4), {.timeout = absl::InfiniteDuration()});
  // What the island's owner does when it hears of a lost rank: it tells every rank that is left.
  island.computes[2]->before = [&island](const Action& action) {
    if (action != Action{ActionKind::kBackward, 2, 1}) return absl::OkStatus();
    const absl::Status lost = MakeError(absl::StatusCode::kUnavailable, "RANK_LOST", "rank 2 is lost");
    for (const auto& transport : island.transports) transport->Abort(lost);
    return absl::OkStatus();
  };
  for (const absl::Status& status : island.Iterate()) {
    EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable) << status;
    EXPECT_EQ(ErrorReason(status), "RANK_LOST");
  }
}

class WrongBuffers : public FakeStageCompute {
 public:
  using FakeStageCompute::FakeStageCompute;
  absl::StatusOr<std::vector<std::span<const std::byte>>> Outputs(int32_t, int32_t) override {
    return std::vector<std::span<const std::byte>>(3, std::as_bytes(std::span(&value_, 1)));
  }

 private:
  uint64_t value_ = 0;
};

TEST(Engine, BuffersThatDifferFromTheBoundaryAreNamed) {
  Island island(*schedule::Generate1F1B(2, 1), {.timeout = absl::Milliseconds(50)});
  WrongBuffers compute(2);
  Engine engine(island.schedule, 0, &compute, island.transports[0].get(), Clock::Real(), {});
  const absl::Status status = engine.RunIteration();
  EXPECT_EQ(ErrorReason(status), "BOUNDARY_MISMATCH") << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("expected 4 bytes for tensor 1, found 8"));
}

TEST(LanesOf, OneForwardAndOneGradientLanePerBoundaryBetweenRanks) {
  const auto lanes = LanesOf(*schedule::Generate1F1B(3, 2));
  const std::vector<transport::Lane> expected{{0, 1, 1, transport::LaneKind::kForward},
                                              {1, 0, 1, transport::LaneKind::kGradient},
                                              {1, 2, 2, transport::LaneKind::kForward},
                                              {2, 1, 2, transport::LaneKind::kGradient}};
  EXPECT_EQ(lanes, expected);
  // V placement: stages 1 and 2 share rank 1.
  EXPECT_EQ(LanesOf(*schedule::ParseText("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0")).size(), 4u);
}

}  // namespace
}  // namespace atl::engine
