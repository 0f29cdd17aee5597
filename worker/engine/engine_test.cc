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
#include "common/schedule/self_conditioning.h"
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
  explicit Island(Schedule of, EngineOptions options = {}, int32_t replicas = 1)
      : Island(planner::Plan{.replicas = replicas, .micro_batches = of.micro_batches, .schedule = of}, options) {}
  explicit Island(planner::Plan of, EngineOptions options = {}) : plan(std::move(of)) {
    transports = transport::MakeLoopbackTransports(plan.rank_count());
    std::vector<std::string> addresses;
    for (const auto& transport : transports) addresses.push_back(transport->Address());
    OnEveryRank([&](int32_t rank) {
      const absl::Status status = transports[rank]->Connect(addresses, LanesOf(plan), absl::Seconds(10));
      EXPECT_TRUE(status.ok()) << status;
    });
    for (int32_t rank = 0; rank < plan.rank_count(); ++rank) {
      const int32_t replica = rank / schedule.rank_count();
      computes.push_back(std::make_unique<FakeStageCompute>(schedule.stages, replica * schedule.micro_batches));
      options.self_conditioning = computes[rank].get();
      engines.push_back(
          std::make_unique<Engine>(plan, rank, computes[rank].get(), transports[rank].get(), Clock::Real(), options));
    }
  }

  template <typename Run>
  void OnEveryRank(Run run) {
    std::vector<std::thread> threads;
    for (int32_t rank = 0; rank < plan.rank_count(); ++rank) threads.emplace_back([&run, rank] { run(rank); });
    for (std::thread& thread : threads) thread.join();
  }

  std::vector<absl::Status> Iterate(Iteration iteration = {}) {
    std::vector<absl::Status> statuses(engines.size());
    OnEveryRank([&](int32_t rank) { statuses[rank] = engines[rank]->RunIteration(iteration); });
    return statuses;
  }

  FakeStageCompute& ComputeOf(int32_t stage, int32_t replica = 0) { return *computes[RankOf(plan, replica, stage)]; }

  const planner::Plan plan;
  const Schedule& schedule = plan.schedule;
  std::vector<std::unique_ptr<transport::Transport>> transports;
  std::vector<std::unique_ptr<FakeStageCompute>> computes;
  std::vector<std::unique_ptr<Engine>> engines;
};

// Weight gradients of one process that runs the stages one after the other: [stage][micro-batch].
std::vector<std::vector<FakeValues>> PlainGradients(int32_t stages, int32_t micro_batches, int32_t first_batch = 0,
                                                    bool self_conditioned = false) {
  std::vector<std::vector<FakeValues>> gradients(stages, std::vector<FakeValues>(micro_batches));
  for (int32_t m = 0; m < micro_batches; ++m) {
    const FakeValues batch = FakeBatch(first_batch + m);
    FakeValues estimate = batch;
    for (int32_t stage = 0; stage < stages; ++stage) estimate = FakeForward(stage, estimate);
    std::vector<FakeValues> inputs{self_conditioned ? FakeConditioned(batch, estimate.tokens) : batch};
    for (int32_t stage = 0; stage < stages; ++stage) inputs.push_back(FakeForward(stage, inputs.back()));
    FakeValues gradient = FakeLossGradient(inputs.back());
    for (int32_t stage = stages - 1; stage >= 0; --stage) {
      gradient = FakeInputGradient(stage, inputs[stage], gradient);
      gradients[stage][m] = gradient;
    }
  }
  return gradients;
}

void ExpectPlainGradients(Island& island, bool self_conditioned = false) {
  const auto expected = PlainGradients(island.schedule.stages, island.schedule.micro_batches, 0, self_conditioned);
  for (int32_t stage = 0; stage < island.schedule.stages; ++stage) {
    for (int32_t m = 0; m < island.schedule.micro_batches; ++m) {
      EXPECT_EQ((island.ComputeOf(stage).weight_gradients[{stage, m}]), expected[stage][m])
          << "stage " << stage << ", micro-batch " << m;
      EXPECT_EQ((island.ComputeOf(stage).released[{stage, m}]), 1) << "stage " << stage << ", micro-batch " << m;
      const int32_t rank = island.schedule.rank_of_stage[stage];
      const bool sends_on = stage + 1 < island.schedule.stages && island.schedule.rank_of_stage[stage + 1] != rank;
      const bool sends_back = stage > 0 && island.schedule.rank_of_stage[stage - 1] != rank;
      EXPECT_EQ((island.ComputeOf(stage).released_outputs[{stage, m}]), sends_on ? 1 : 0);
      EXPECT_EQ((island.ComputeOf(stage).released_input_gradients[{stage, m}]), sends_back ? 1 : 0);
    }
  }
}

// Each rank's line, and behind it a reduction of each of its stages.
Schedule WithReductions(Schedule schedule) {
  for (int32_t stage = 0; stage < schedule.stages; ++stage) {
    schedule.ranks[schedule.rank_of_stage[stage]].push_back({ActionKind::kReduce, stage, 0});
  }
  return schedule;
}

// Every replica holds its own micro-batches' gradients joined with the others' in replica order.
void ExpectReducedGradients(Island& island, bool self_conditioned = false) {
  const int32_t micro_batches = island.schedule.micro_batches;
  for (int32_t stage = 0; stage < island.schedule.stages; ++stage) {
    FakeGradients expected{};
    for (int32_t replica = 0; replica < island.plan.replicas; ++replica) {
      FakeGradients own{};
      const auto plain =
          PlainGradients(island.schedule.stages, micro_batches, replica * micro_batches, self_conditioned);
      for (const FakeValues& gradient : plain[stage]) FakeAccumulate(gradient, own);
      for (size_t i = 0; i < own.size(); ++i) expected[i] = replica == 0 ? own[i] : FakeJoin(expected[i], own[i]);
    }
    for (int32_t replica = 0; replica < island.plan.replicas; ++replica) {
      EXPECT_EQ(island.ComputeOf(stage, replica).gradients[stage], expected)
          << "stage " << stage << ", replica " << replica;
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

TEST(Engine, ReplicasSumTheirGradientsInReplicaOrder) {
  std::vector<Schedule> schedules = {*schedule::Generate1F1B(1, 3), *schedule::Generate1F1B(3, 4)};
  schedules.push_back(
      *schedule::ParseText("0F0,0F1,3F0,3I0,0I0,3W0,0W0,3F1,3B1,0B1\n1F0,2F0,1F1,2F1,2I0,1I0,2W0,1W0,2B1,1B1\n"));
  for (const Schedule& schedule : schedules) {
    for (const int32_t replicas : {1, 2, 3, 4}) {
      SCOPED_TRACE(schedule::ToText(schedule) + std::to_string(replicas) + " replicas");
      Island island(WithReductions(schedule), {}, replicas);
      for (const absl::Status& status : island.Iterate()) ASSERT_TRUE(status.ok()) << status;
      ExpectReducedGradients(island);
    }
  }
}

TEST(Engine, AReductionGoesOnWhileOtherStagesCompute) {
  // Stage 1 of each replica is reduced before the backward of stage 0: the sums arrive between its actions.
  Island island(*schedule::ParseText("0F0,0F1,1F0,1F1,1B0,1B1,R1,0B0,0B1,R0"), {}, 2);
  for (int iteration = 0; iteration < 3; ++iteration) {
    for (auto& compute : island.computes) compute->gradients.clear();
    for (const absl::Status& status : island.Iterate()) ASSERT_TRUE(status.ok()) << status;
    ExpectReducedGradients(island);
  }
  for (const auto& engine : island.engines) {
    ASSERT_EQ(engine->timings().size(), 10u);
    EXPECT_EQ(engine->timings()[6].action, (Action{ActionKind::kReduce, 1, 0}));
  }
}

TEST(Engine, AnInputGradientThatNobodyAwaitsMergesWithItsWeightGradient) {
  const Schedule schedule = *schedule::ParseText("0F0,3F0,3I0,3W0,0I0,0W0\n1F0,2F0,2I0,2W0,1I0,1W0");
  // Stage 2 lies beside stage 1, and nothing lies before stage 0; the gradients of 3 and 1 leave the rank.
  EXPECT_EQ(schedule::ToText({.ranks = {ActionsOf(schedule, 0), ActionsOf(schedule, 1)}}),
            "0F0,3F0,3I0,3W0,0B0\n1F0,2F0,2B0,1I0,1W0\n");
  // Not of two micro-batches, not of two stages, not with something between them.
  const std::string apart = "0F0,0F1,1F0,1F1,1I0,1I1,1W0,0I0,1W1,0W0,0I1,R1,0W1\n";
  EXPECT_EQ(schedule::ToText({.ranks = {ActionsOf(*schedule::ParseText(apart), 0)}}), apart);
  Island island(schedule);
  for (const absl::Status& status : island.Iterate()) ASSERT_TRUE(status.ok()) << status;
  ExpectPlainGradients(island);
  EXPECT_EQ(island.computes[0]->ran, ActionsOf(schedule, 0));
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
  const planner::Plan plan{.schedule = *schedule::Generate1F1B(1, 4)};
  FakeStageCompute compute(1);
  Engine engine(plan, 0, &compute, nullptr, Clock::Real(), {});
  ASSERT_TRUE(engine.RunIteration().ok());
  EXPECT_EQ((compute.weight_gradients[{0, 3}]), PlainGradients(1, 4)[0][3]);
}

TEST(Engine, SeveralRanksWithoutATransportAreRefused) {
  planner::Plan plan{.schedule = *schedule::Generate1F1B(2, 4)};
  FakeStageCompute compute(2);
  EXPECT_EQ(ErrorReason(Engine(plan, 0, &compute, nullptr, Clock::Real(), {}).RunIteration()), "TRANSPORT_MISSING");
  EXPECT_EQ(ErrorReason(Engine(plan, 2, &compute, nullptr, Clock::Real(), {}).RunIteration()), "RANK_OUT_OF_RANGE");
  plan = {.replicas = 2, .schedule = *schedule::Generate1F1B(1, 4)};
  EXPECT_EQ(ErrorReason(Engine(plan, 0, &compute, nullptr, Clock::Real(), {}).RunIteration()), "TRANSPORT_MISSING");
}

TEST(Engine, AnErrorOfAStageAbortsItsTransportAndOthersTimeOut) {
  // Time enough for every rank to get where it waits, on a busy machine too.
  Island island(*schedule::Generate1F1B(3, 4), {.timeout = absl::Seconds(2)});
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
  // Acts as the island's owner does after it lost a rank: it aborts every remaining rank.
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

TEST(Engine, ALostReplicaEndsReductionsUnderWay) {
  Island island(WithReductions(*schedule::Generate1F1B(2, 2)), {.timeout = absl::InfiniteDuration()}, 2);
  // Rank 3, the last stage of replica 1, dies before it gives its gradients; the others wait for them in R1, and for
  // nothing else.
  island.computes[3]->before = [&island](const Action& action) {
    if (action.kind != ActionKind::kReduce) return absl::OkStatus();
    const absl::Status lost = MakeError(absl::StatusCode::kUnavailable, "RANK_LOST", "rank 3 is lost");
    for (const auto& transport : island.transports) transport->Abort(lost);
    return lost;
  };
  const std::vector<absl::Status> statuses = island.Iterate();
  for (const int32_t rank : {1, 3}) {
    EXPECT_EQ(statuses[rank].code(), absl::StatusCode::kUnavailable) << statuses[rank];
    EXPECT_EQ(ErrorReason(statuses[rank]), "RANK_LOST");
  }
  EXPECT_TRUE(island.computes[1]->reduced.empty());
}

TEST(Engine, AReductionThatASilentReplicaHoldsUpTimesOut) {
  Island island(WithReductions(*schedule::Generate1F1B(1, 2)), {.timeout = absl::Milliseconds(50)}, 2);
  absl::Status status = island.engines[0]->RunIteration();  // replica 1 never runs
  EXPECT_EQ(status.code(), absl::StatusCode::kDeadlineExceeded) << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("rank 0: reduction of stage 0"));
}

// ---- Self-conditioning.

// Every C as late as it can be on one rank: right before the F that would wait for it, the C's of its micro-batch in
// between coming first on the ranks that hold them. `ahead`: micro-batches whose C's come before anything else.
planner::Plan WithEstimates(const Schedule& schedule, int32_t ahead, int32_t replicas = 1) {
  planner::Plan plan{.replicas = replicas, .micro_batches = schedule.micro_batches, .schedule = schedule};
  plan.self_conditioned = schedule;
  for (std::vector<Action>& line : plan.self_conditioned.ranks) {
    std::vector<int32_t> stages;
    for (const Action& action : line) {
      if (action.kind == ActionKind::kForward && action.micro_batch == 0) stages.push_back(action.stage);
    }
    std::sort(stages.begin(), stages.end());
    std::vector<Action> merged;
    int32_t next = 0;
    const auto estimate_until = [&](int32_t end) {
      const int32_t first = next;
      next = std::max(next, std::min(end, schedule.micro_batches));
      for (const int32_t stage : stages) {
        for (int32_t m = first; m < next; ++m) merged.push_back({ActionKind::kSelfConditioning, stage, m});
      }
    };
    estimate_until(ahead);
    for (const Action& action : line) {
      if (action.kind == ActionKind::kForward) estimate_until(action.micro_batch + ahead);
      merged.push_back(action);
    }
    line = merged;
  }
  const absl::Status valid = schedule::Validate(plan.self_conditioned);
  EXPECT_TRUE(valid.ok()) << valid << "\n" << schedule::ToText(plan.self_conditioned);
  return plan;
}

// C's where the planner puts them at equal costs.
planner::Plan Planned(const Schedule& schedule) {
  schedule::SimulationCosts costs{
      .stages = std::vector<schedule::StageCost>(
          static_cast<size_t>(schedule.stages),
          {.forward_seconds = 1, .input_gradient_seconds = 1, .weight_gradient_seconds = 1}),
      .transfer_seconds = 0.1};
  return {.micro_batches = schedule.micro_batches,
          .schedule = schedule,
          .self_conditioned = schedule::AddSelfConditioning(schedule, costs)};
}

void ExpectEstimatesReleased(Island& island, int times) {
  for (int32_t stage = 0; stage < island.schedule.stages; ++stage) {
    const int32_t next = (stage + 1) % island.schedule.stages;
    const bool sends = island.schedule.rank_of_stage[next] != island.schedule.rank_of_stage[stage];
    for (int32_t m = 0; m < island.schedule.micro_batches; ++m) {
      EXPECT_EQ((island.ComputeOf(stage).released_estimates[{stage, m}]), sends ? times : 0)
          << "stage " << stage << ", micro-batch " << m;
    }
  }
}

TEST(SelfConditioning, TheFirstStageSeesWhatTheLastMadeOfTheMicroBatch) {
  for (const std::string_view name : schedule::GeneratorNames()) {
    for (int32_t ranks = 1; ranks <= 4; ++ranks) {
      for (const int32_t micro_batches : {1, 2, 3, 8}) {
        SCOPED_TRACE(std::string(name) + " " + std::to_string(ranks) + " x " + std::to_string(micro_batches));
        const Schedule schedule = *schedule::Generate(name, ranks, micro_batches);
        for (const planner::Plan& plan : {WithEstimates(schedule, micro_batches), Planned(schedule)}) {
          SCOPED_TRACE(schedule::ToText(plan.self_conditioned));
          Island island(plan);
          for (const absl::Status& status : island.Iterate({.self_conditioned = true})) {
            ASSERT_TRUE(status.ok()) << status;
          }
          ExpectPlainGradients(island, /*self_conditioned=*/true);
          ExpectEstimatesReleased(island, 1);
        }
      }
    }
  }
}

TEST(SelfConditioning, TheEstimateChangesWhatIsComputed) {
  Island island(WithEstimates(*schedule::Generate1F1B(2, 1), 1));
  for (const absl::Status& status : island.Iterate({.self_conditioned = true})) ASSERT_TRUE(status.ok()) << status;
  EXPECT_NE((island.ComputeOf(0).weight_gradients[{0, 0}]), PlainGradients(2, 1)[0][0]);
}

TEST(SelfConditioning, BothSchedulesOfAPlanRunInAnyOrder) {
  std::vector<planner::Plan> plans = {WithEstimates(*schedule::Generate1F1B(4, 8), 4),
                                      WithEstimates(*schedule::Generate1F1B(1, 3), 1),
                                      WithEstimates(*schedule::GenerateGPipe(2, 5), 2)};
  for (const char* text : kHandWritten) plans.push_back(WithEstimates(*schedule::ParseText(text), 8));
  for (const planner::Plan& plan : plans) {
    SCOPED_TRACE(schedule::ToText(plan.self_conditioned));
    Island island(plan);
    int times = 0;
    for (const bool self_conditioned : {false, true, true, false, true}) {
      for (auto& compute : island.computes) compute->ran.clear(), compute->released.clear();
      for (auto& compute : island.computes)
        compute->released_outputs.clear(), compute->released_input_gradients.clear();
      for (const absl::Status& status : island.Iterate({.self_conditioned = self_conditioned})) {
        ASSERT_TRUE(status.ok()) << status;
      }
      ExpectPlainGradients(island, self_conditioned);
      ExpectEstimatesReleased(island, times += self_conditioned ? 1 : 0);
      const Schedule& ran = self_conditioned ? plan.self_conditioned : plan.schedule;
      for (int32_t rank = 0; rank < plan.rank_count(); ++rank) {
        const std::vector<Action> line = ActionsOf(ran, rank);
        EXPECT_EQ(island.computes[rank]->ran, line);
        ASSERT_EQ(island.engines[rank]->timings().size(), line.size());
        for (size_t i = 0; i < line.size(); ++i) EXPECT_EQ(island.engines[rank]->timings()[i].action, line[i]);
      }
    }
  }
}

TEST(SelfConditioning, EveryReplicaFeedsBackItsOwn) {
  for (const int32_t replicas : {1, 2, 3}) {
    Island island(WithEstimates(WithReductions(*schedule::Generate1F1B(3, 4)), 2, replicas));
    for (const absl::Status& status : island.Iterate({.self_conditioned = true})) ASSERT_TRUE(status.ok()) << status;
    ExpectReducedGradients(island, /*self_conditioned=*/true);
  }
}

TEST(SelfConditioning, WithoutAScheduleOrWhatComputesItIsRefused) {
  const planner::Plan without{.schedule = *schedule::Generate1F1B(1, 2)};
  const planner::Plan with = WithEstimates(without.schedule, 1);
  FakeStageCompute compute(1);
  const auto run = [&](const planner::Plan& plan, EngineOptions options) {
    return Engine(plan, 0, &compute, nullptr, Clock::Real(), options).RunIteration({.self_conditioned = true});
  };
  EXPECT_TRUE(run(with, {.self_conditioning = &compute}).ok());
  EXPECT_EQ(ErrorReason(run(without, {.self_conditioning = &compute})), "SELF_CONDITIONING_MISSING");
  EXPECT_EQ(ErrorReason(run(with, {})), "SELF_CONDITIONING_MISSING");
}

TEST(LanesOf, SelfConditioningHasALaneIntoEveryStageTheFirstOneFromTheLast) {
  const auto estimates = [](const planner::Plan& plan) {
    std::vector<transport::Lane> lanes = LanesOf(plan);
    std::erase_if(lanes, [](const auto& lane) { return lane.kind != transport::LaneKind::kSelfConditioning; });
    return lanes;
  };
  constexpr auto kKind = transport::LaneKind::kSelfConditioning;
  EXPECT_EQ(estimates(WithEstimates(*schedule::Generate1F1B(3, 2), 2)),
            (std::vector<transport::Lane>{{2, 0, 0, kKind}, {0, 1, 1, kKind}, {1, 2, 2, kKind}}));
  // In a V first and last stage share a rank; the two in the middle do, too.
  EXPECT_EQ(estimates(WithEstimates(*schedule::ParseText("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0"), 1)),
            (std::vector<transport::Lane>{{0, 1, 1, kKind}, {1, 0, 3, kKind}}));
  EXPECT_TRUE(estimates({.schedule = *schedule::Generate1F1B(3, 2)}).empty());
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
  Engine engine(island.plan, 0, &compute, island.transports[0].get(), Clock::Real(), {});
  const absl::Status status = engine.RunIteration();
  EXPECT_EQ(ErrorReason(status), "BOUNDARY_MISMATCH") << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("expected 4 bytes for tensor 1, found 8"));
}

TEST(LanesOf, OneForwardAndOneGradientLanePerBoundaryBetweenRanks) {
  const auto lanes = LanesOf({.schedule = *schedule::Generate1F1B(3, 2)});
  const std::vector<transport::Lane> expected{{0, 1, 1, transport::LaneKind::kForward},
                                              {1, 0, 1, transport::LaneKind::kGradient},
                                              {1, 2, 2, transport::LaneKind::kForward},
                                              {2, 1, 2, transport::LaneKind::kGradient}};
  EXPECT_EQ(lanes, expected);
  // V placement: stages 1 and 2 share rank 1.
  EXPECT_EQ(LanesOf({.schedule = *schedule::ParseText("0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0")}).size(), 4u);
}

TEST(LanesOf, ReplicasHaveTheirOwnPipelinesAndALaneEachWayPerStage) {
  const auto lanes = LanesOf({.replicas = 2, .schedule = *schedule::Generate1F1B(2, 2)});
  const std::vector<transport::Lane> expected{
      {0, 1, 1, transport::LaneKind::kForward}, {1, 0, 1, transport::LaneKind::kGradient},
      {2, 3, 1, transport::LaneKind::kForward}, {3, 2, 1, transport::LaneKind::kGradient},
      {0, 2, 0, transport::LaneKind::kReduce},  {2, 0, 0, transport::LaneKind::kReduce},
      {1, 3, 1, transport::LaneKind::kReduce},  {3, 1, 1, transport::LaneKind::kReduce}};
  EXPECT_EQ(lanes, expected);
}

}  // namespace
}  // namespace atl::engine
