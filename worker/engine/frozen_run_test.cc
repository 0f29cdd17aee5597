// Frozen pieces in the engine: results over the loopback transport with a thread per rank, and the rule by which pieces
// move, over a transport whose messages arrive when the test says.
#include "worker/engine/frozen_run.h"

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/base/errors.h"
#include "common/base/fake_clock.h"
#include "common/schedule/generators.h"
#include "worker/engine/engine.h"
#include "worker/engine/fake_stage_compute.h"
#include "worker/transport/loopback/loopback_transport.h"

namespace atl::engine {
namespace {

using schedule::Action;
using schedule::ActionKind;

uint64_t Mix(uint64_t value, uint64_t piece) {
  return (value + piece + 1) * 0x9E3779B97F4A7C15u;
}

// A piece's output is a number made of its own, of the batch's and of those that it reads.
class FakeFrozenCompute : public FrozenCompute {
 public:
  FakeFrozenCompute(const planner::Plan& plan) : flow_(*planner::FrozenFlowOf(plan)) {}

  absl::StatusOr<std::span<std::byte>> InputBuffer(int32_t piece) override {
    return std::as_writable_bytes(std::span(&values[piece], 1));
  }
  absl::Status Run(int32_t piece) override {
    if (before) {
      if (absl::Status status = before(piece); !status.ok()) return status;
    }
    ran.push_back(piece);
    uint64_t value = batch;
    for (const int32_t read : flow_.reads[static_cast<size_t>(piece)]) {
      if (!values.contains(read)) return absl::InternalError("a piece ran before what it reads");
      value = value * 31 + values[read];
    }
    values[piece] = Mix(value, static_cast<uint64_t>(piece));
    return absl::OkStatus();
  }
  absl::StatusOr<std::span<const std::byte>> Output(int32_t piece) override {
    return std::as_bytes(std::span(&values[piece], 1));
  }
  void Release(int32_t piece) override { ++released[piece]; }

  uint64_t batch = 0;
  std::map<int32_t, uint64_t> values;
  std::map<int32_t, int> released;
  std::vector<int32_t> ran;
  std::function<absl::Status(int32_t)> before;

 private:
  const planner::FrozenFlow flow_;
};

// Returns the outputs of all pieces, computed by one rank.
std::map<int32_t, uint64_t> Sequential(const planner::Plan& plan, uint64_t batch) {
  FakeFrozenCompute compute(plan);
  compute.batch = batch;
  const planner::FrozenFlow flow = *planner::FrozenFlowOf(plan);
  while (compute.values.size() < plan.frozen.size()) {
    for (int32_t piece = 0; piece < static_cast<int32_t>(plan.frozen.size()); ++piece) {
      const auto& reads = flow.reads[static_cast<size_t>(piece)];
      const bool ready = std::all_of(reads.begin(), reads.end(), [&](int32_t q) { return compute.values.contains(q); });
      if (!ready || compute.values.contains(piece)) continue;
      EXPECT_TRUE(compute.Run(piece).ok());
    }
  }
  return compute.values;
}

// 1F1B; an encoder of two layers (the first split over the ranks, one piece each) and a component of one layer that
// reads it, on the last rank; pieces lie after the action numbered like them.
planner::Plan SpreadPlan(int32_t stages, int32_t micro_batches, int32_t replicas = 1) {
  planner::Plan plan;
  plan.replicas = replicas;
  plan.micro_batches = micro_batches;
  plan.micro_batch_size = stages;
  plan.schedule = *schedule::Generate1F1B(stages, micro_batches);
  for (int32_t s = 0; s < stages; ++s) plan.stages.push_back({.rank = s, .first_layer = s, .end_layer = s + 1});
  plan.components = {{.layers = 2, .to_first_stage = true, .to_last_stage = true}, {.layers = 1, .reads = 0}};
  for (int32_t rank = 0; rank < stages; ++rank) {
    plan.frozen.push_back(
        {.end_layer = 1, .rank = rank, .first_sample = rank * micro_batches, .samples = micro_batches});
  }
  plan.frozen.push_back({.first_layer = 1, .end_layer = 2, .rank = 0, .samples = stages * micro_batches - 1});
  plan.frozen.push_back(
      {.first_layer = 1, .end_layer = 2, .rank = stages / 2, .first_sample = stages * micro_batches - 1, .samples = 1});
  plan.frozen.push_back({.component = 1, .end_layer = 1, .rank = stages - 1, .samples = stages * micro_batches});
  plan.schedule.frozen_pieces = static_cast<int32_t>(plan.frozen.size());
  for (int32_t piece = 0; piece < plan.schedule.frozen_pieces; ++piece) {
    auto& actions = plan.schedule.ranks[static_cast<size_t>(plan.frozen[static_cast<size_t>(piece)].rank)];
    // The last pieces of a rank come after the flush.
    const size_t at = piece < stages ? static_cast<size_t>(piece) % actions.size() : actions.size();
    actions.insert(actions.begin() + static_cast<ptrdiff_t>(at), Action{ActionKind::kFrozen, 0, piece});
  }
  EXPECT_TRUE(planner::FrozenFlowOf(plan).ok()) << planner::FrozenFlowOf(plan).status();
  return plan;
}

struct Island {
  explicit Island(planner::Plan of, EngineOptions options = {}) : plan(std::move(of)) {
    transports = transport::MakeLoopbackTransports(plan.rank_count());
    std::vector<std::string> addresses;
    for (const auto& transport : transports) addresses.push_back(transport->Address());
    OnEveryRank([&](int32_t rank) {
      const absl::Status status = transports[rank]->Connect(addresses, LanesOf(plan), absl::Seconds(10));
      EXPECT_TRUE(status.ok()) << status;
    });
    for (int32_t rank = 0; rank < plan.rank_count(); ++rank) {
      const int32_t replica = rank / plan.schedule.rank_count();
      computes.push_back(
          std::make_unique<FakeStageCompute>(plan.schedule.stages, replica * plan.schedule.micro_batches));
      frozen.push_back(std::make_unique<FakeFrozenCompute>(plan));
      options.frozen = frozen.back().get();
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

  template <typename Run>
  std::vector<absl::Status> Each(Run run) {
    std::vector<absl::Status> statuses(engines.size());
    OnEveryRank([&](int32_t rank) { statuses[rank] = run(*engines[rank]); });
    return statuses;
  }

  // Every batch of numbers of its own; on replicas too.
  void Expect(uint64_t batch) {
    for (int32_t rank = 0; rank < plan.rank_count(); ++rank) {
      const int32_t replica = rank / plan.schedule.rank_count();
      const auto expected = Sequential(plan, batch + static_cast<uint64_t>(replica));
      for (const auto& [piece, value] : frozen[rank]->values) {
        EXPECT_EQ(value, expected.at(piece)) << "rank " << rank << ", piece " << piece;
      }
    }
    const planner::FrozenFlow flow = *planner::FrozenFlowOf(plan);
    for (size_t piece = 0; piece < plan.frozen.size(); ++piece) {
      EXPECT_TRUE(frozen[plan.frozen[piece].rank]->values.contains(static_cast<int32_t>(piece)));
      for (const int32_t rank : flow.needed_by[piece]) {
        EXPECT_TRUE(frozen[rank]->values.contains(static_cast<int32_t>(piece))) << "rank " << rank;
      }
    }
  }
  void Batch(uint64_t batch) {
    for (size_t rank = 0; rank < frozen.size(); ++rank) {
      frozen[rank]->batch = batch + rank / static_cast<size_t>(plan.schedule.rank_count());
      frozen[rank]->values.clear();
    }
  }

  const planner::Plan plan;
  std::vector<std::unique_ptr<transport::Transport>> transports;
  std::vector<std::unique_ptr<FakeStageCompute>> computes;
  std::vector<std::unique_ptr<FakeFrozenCompute>> frozen;
  std::vector<std::unique_ptr<Engine>> engines;
};

TEST(FrozenRunTest, PiecesOnSeveralRanksMakeWhatOneRankWould) {
  for (const bool moves : {true, false}) {
    for (const auto& [stages, replicas] : std::vector<std::pair<int32_t, int32_t>>{{1, 1}, {2, 1}, {4, 1}, {2, 2}}) {
      SCOPED_TRACE(fmt::format("{} stages, {} replicas, moves {}", stages, replicas, moves));
      Island island(SpreadPlan(stages, 4, replicas), {.move_pieces = moves});
      island.Batch(100);
      for (const absl::Status& status : island.Each([](Engine& e) { return e.RunFrozen(); })) {
        ASSERT_TRUE(status.ok()) << status;
      }
      island.Expect(100);
      for (uint64_t batch = 200; batch < 800; batch += 100) {
        island.Batch(batch);
        for (const absl::Status& status : island.Each([](Engine& e) { return e.RunIteration(); })) {
          ASSERT_TRUE(status.ok()) << status;
        }
        island.Expect(batch);
      }
      // The last iteration of a run has none.
      island.Batch(900);
      for (const absl::Status& status : island.Each([](Engine& e) { return e.RunIteration({.frozen = false}); })) {
        ASSERT_TRUE(status.ok()) << status;
      }
      for (const auto& frozen : island.frozen) EXPECT_TRUE(frozen->values.empty());
      for (int32_t stage = 0; stage < stages; ++stage) {
        EXPECT_EQ((island.computes[stage]->released[{stage, 0}]), 7);
      }
    }
  }
}

TEST(FrozenRunTest, PiecesAndActionsKeepTheirOrders) {
  Island island(SpreadPlan(4, 8));
  for (int iteration = 0; iteration < 3; ++iteration) {
    for (const absl::Status& status : island.Each([](Engine& e) { return e.RunIteration(); })) {
      ASSERT_TRUE(status.ok()) << status;
    }
    for (int32_t rank = 0; rank < 4; ++rank) {
      std::vector<Action> pieces[2];
      std::vector<Action> others[2];
      for (const Action& action : island.plan.schedule.ranks[rank]) {
        (action.kind == ActionKind::kFrozen ? pieces : others)[0].push_back(action);
      }
      for (const ActionTiming& timing : island.engines[rank]->timings()) {
        (timing.action.kind == ActionKind::kFrozen ? pieces : others)[1].push_back(timing.action);
      }
      EXPECT_EQ(pieces[0], pieces[1]);
      EXPECT_EQ(others[0], others[1]);
    }
  }
}

TEST(FrozenRunTest, AnOutputIsReleasedWhenItsReadersAndSendsAreDone) {
  Island island(SpreadPlan(2, 2));
  for (const absl::Status& status : island.Each([](Engine& e) { return e.RunIteration(); })) {
    ASSERT_TRUE(status.ok()) << status;
  }
  // Pieces 0, 1: the first layer; 2, 3: the second; 4 reads those, on rank 1.
  EXPECT_EQ(island.frozen[0]->released, (std::map<int32_t, int>{{0, 1}, {1, 1}, {2, 1}}));
  EXPECT_EQ(island.frozen[1]->released, (std::map<int32_t, int>{{1, 1}, {2, 1}, {3, 1}, {4, 1}}));
}

TEST(FrozenRunTest, AnAbortEndsAWaitForAPieceInFlight) {
  Island island(SpreadPlan(2, 2), {.timeout = absl::InfiniteDuration()});
  // Rank 1 is lost while it runs piece 1, which a piece of rank 0 reads.
  island.frozen[1]->before = [&island](int32_t piece) {
    if (piece != 1) return absl::OkStatus();
    const absl::Status lost = MakeError(absl::StatusCode::kUnavailable, "RANK_LOST", "rank 1 is lost");
    for (const auto& transport : island.transports) transport->Abort(lost);
    return lost;
  };
  for (const absl::Status& status : island.Each([](Engine& e) { return e.RunFrozen(); })) {
    EXPECT_EQ(ErrorReason(status), "RANK_LOST") << status;
  }
  for (const absl::Status& status : island.Each([](Engine& e) { return e.RunIteration(); })) {
    EXPECT_FALSE(status.ok());
  }
}

TEST(FrozenRunTest, APlanWithPiecesNeedsWhatComputesThem) {
  const planner::Plan plan = SpreadPlan(1, 2);
  FakeStageCompute compute(1);
  EXPECT_EQ(ErrorReason(Engine(plan, 0, &compute, nullptr, Clock::Real(), {}).RunIteration()), "FROZEN_PIECES");
}

TEST(FrozenRunTest, OneLanePerDirectedPairOfRanksThatHasMessages) {
  // Piece 0 -> rank 1 (its half of the encoder's end); 1 -> rank 0; the encoder's end -> rank 1 and back.
  EXPECT_EQ(FrozenLanesOf(SpreadPlan(2, 2, 2)),
            (std::vector<transport::Lane>{{0, 1, 0, transport::LaneKind::kFrozen},
                                          {1, 0, 0, transport::LaneKind::kFrozen},
                                          {2, 3, 0, transport::LaneKind::kFrozen},
                                          {3, 2, 0, transport::LaneKind::kFrozen}}));
}

// One rank of two; messages to it arrive at the times that the test gives for their lane, since the start of the
// iteration; waiting for one moves the clock.
class ScriptedTransport : public transport::Transport {
 public:
  explicit ScriptedTransport(FakeClock* clock) : clock_(clock) {}
  std::map<transport::LaneKind, std::vector<absl::Duration>> arrivals;
  int glances = 0;  // short waits

  void StartIteration() { started_ = clock_->Monotonic(), posted_.clear(); }

  int32_t rank() const override { return 1; }
  int32_t rank_count() const override { return 2; }
  std::string Address() const override { return ""; }
  absl::Status Connect(const std::vector<std::string>&, const std::vector<transport::Lane>&, absl::Duration) override {
    return absl::OkStatus();
  }
  absl::StatusOr<std::unique_ptr<transport::Work>> Send(const transport::Lane&, std::span<const std::byte>) override {
    return std::make_unique<ScriptedWork>(clock_, clock_->Monotonic(), &glances);
  }
  absl::StatusOr<std::unique_ptr<transport::Work>> Receive(const transport::Lane& lane,
                                                           std::span<std::byte> bytes) override {
    // A boundary is three tensors, which arrive together.
    const bool boundary =
        lane.kind == transport::LaneKind::kForward || lane.kind == transport::LaneKind::kSelfConditioning;
    const size_t tensors = boundary ? 3 : 1;
    const size_t message = posted_[lane.kind]++ / tensors;
    return std::make_unique<ScriptedWork>(clock_, started_ + arrivals[lane.kind].at(message), &glances);
  }
  absl::Status AllReduceSum(std::span<double>, absl::Duration) override { return absl::OkStatus(); }
  void Abort(absl::Status) override {}

 private:
  class ScriptedWork : public transport::Work {
   public:
    ScriptedWork(FakeClock* clock, absl::Duration arrival, int* glances)
        : clock_(clock), arrival_(arrival), glances_(glances) {}
    bool Done() override { return clock_->Monotonic() >= arrival_; }
    absl::Status Wait(absl::Duration) override {
      if (!Done()) clock_->Advance(arrival_ - clock_->Monotonic());
      return absl::OkStatus();
    }
    bool DoneWithin(absl::Duration timeout) override {
      ++*glances_;
      if (!Done()) clock_->Advance(std::min(timeout, arrival_ - clock_->Monotonic()));
      return Done();
    }
    std::optional<absl::Duration> EndedAt() override { return arrival_; }

   private:
    FakeClock* const clock_;
    const absl::Duration arrival_;
    int* const glances_;
  };

  FakeClock* const clock_;
  absl::Duration started_;
  std::map<transport::LaneKind, size_t> posted_;
};

// The last of two ranks, one micro-batch per forward and backward of 10 ms each.
struct LastRank {
  // `line` is the rank's; rank 0 has the pieces `before` that piece 0 reads, if any.
  explicit LastRank(const std::string& line, bool reads = false) {
    plan.micro_batches = 2;
    plan.micro_batch_size = 1;
    plan.schedule = *schedule::ParseText((reads ? "E2,0F0,0F1,0B0,0B1\n" : "0F0,0F1,0B0,0B1\n") + line + "\n");
    plan.stages = {{.rank = 0, .end_layer = 1}, {.rank = 1, .first_layer = 1, .end_layer = 2}};
    plan.components = {{.layers = reads ? 2 : 1}};
    const int32_t first = reads ? 1 : 0;
    plan.frozen = {{.first_layer = first, .end_layer = first + 1, .rank = 1, .samples = 1},
                   {.first_layer = first, .end_layer = first + 1, .rank = 1, .first_sample = 1, .samples = 1}};
    if (reads) plan.frozen.push_back({.end_layer = 1, .rank = 0, .samples = 2});
    compute = std::make_unique<FakeStageCompute>(2);
    compute->before = [this](const Action&) { return Take(absl::Milliseconds(10)); };
    frozen = std::make_unique<FakeFrozenCompute>(plan);
    frozen->before = [this](int32_t piece) { return Take(durations.at(piece)); };
    engine =
        std::make_unique<Engine>(plan, 1, compute.get(), &transport, &clock, EngineOptions{.frozen = frozen.get()});
    transport.arrivals[transport::LaneKind::kForward] = {absl::Milliseconds(30), absl::Milliseconds(100)};
    transport.arrivals[transport::LaneKind::kFrozen] = {absl::ZeroDuration()};
  }

  absl::Status Take(absl::Duration time) {
    clock.Advance(time);
    return absl::OkStatus();
  }

  void SelfCondition(const std::string& text) {
    plan.self_conditioned = *schedule::ParseText(text);
    engine = std::make_unique<Engine>(plan, 1, compute.get(), &transport, &clock,
                                      EngineOptions{.frozen = frozen.get(), .self_conditioning = compute.get()});
  }

  // The order in which actions ran, with their starts in ms.
  std::string Run(Iteration iteration = {}) {
    transport.StartIteration();
    const absl::Status status = engine->RunIteration(iteration);
    EXPECT_TRUE(status.ok()) << status;
    std::string text;
    for (const ActionTiming& timing : engine->timings()) {
      text += fmt::format("{}{}@{:g}", text.empty() ? "" : " ", ToString(timing.action),
                          absl::ToDoubleMilliseconds(timing.start));
    }
    return text;
  }
  void ForwardsArrive(double first_ms, double second_ms) {
    transport.arrivals[transport::LaneKind::kForward] = {absl::Milliseconds(first_ms), absl::Milliseconds(second_ms)};
  }

  planner::Plan plan;
  FakeClock clock;
  ScriptedTransport transport{&clock};
  std::vector<absl::Duration> durations{absl::Milliseconds(20), absl::Milliseconds(20)};
  std::unique_ptr<FakeStageCompute> compute;
  std::unique_ptr<FakeFrozenCompute> frozen;
  std::unique_ptr<Engine> engine;
};

TEST(PieceRuleTest, APieceRunsEarlyWhereTheGapOfTheLastIterationHoldsIt) {
  LastRank rank("1F0,1B0,1F1,1B1,E0,E1");
  EXPECT_EQ(rank.Run(), "1F0@30 1B0@40 1F1@100 1B1@110 E0@120 E1@140");  // nothing is known yet
  EXPECT_EQ(rank.Run(), "E0@0 1F0@30 1B0@40 E1@50 1F1@100 1B1@110");
}

TEST(PieceRuleTest, SeveralPiecesShareAGap) {
  LastRank rank("1F0,1B0,1F1,1B1,E0,E1");
  rank.durations = {absl::Milliseconds(12), absl::Milliseconds(18)};
  rank.Run();
  EXPECT_EQ(rank.Run(), "E0@0 E1@12 1F0@30 1B0@40 1F1@100 1B1@110");
}

TEST(PieceRuleTest, APieceLongerThanTheGapWaitsForALongerOneOrItsPlace) {
  LastRank rank("1F0,1B0,1F1,1B1,E0,E1");
  rank.durations = {absl::Milliseconds(31), absl::Milliseconds(20)};
  rank.Run();
  // E1 would fit where E0 does not, but pieces keep their order.
  EXPECT_EQ(rank.Run(), "1F0@30 1B0@40 E0@50 1F1@100 1B1@110 E1@120");
}

TEST(PieceRuleTest, APieceInItsPlaceRunsWhetherItFitsOrNot) {
  LastRank rank("E0,1F0,1B0,E1,1F1,1B1");
  rank.durations = {absl::Milliseconds(35), absl::Milliseconds(20)};
  EXPECT_EQ(rank.Run(), "E0@0 1F0@35 1B0@45 E1@55 1F1@100 1B1@110");
  EXPECT_EQ(rank.Run(), "E0@0 1F0@35 1B0@45 E1@55 1F1@100 1B1@110");
}

TEST(PieceRuleTest, AReadyActionIsDelayedByNoMoreThanThePieceInHand) {
  LastRank rank("1F0,1B0,E0,E1,1F1,1B1");
  rank.ForwardsArrive(10, 55);
  // 1F1 comes while E0 runs: E1, next in the plan, lets it go first.
  EXPECT_EQ(rank.Run(), "1F0@10 1B0@20 E0@30 E1@50 1F1@70 1B1@80");
  rank.ForwardsArrive(10, 45);
  EXPECT_EQ(rank.Run(), "1F0@10 1B0@20 E0@30 1F1@50 1B1@60 E1@70");
}

TEST(PieceRuleTest, AGapThatShrinksDelaysOnce) {
  LastRank rank("1F0,1B0,1F1,1B1,E0,E1");
  rank.Run();
  rank.ForwardsArrive(5, 100);
  EXPECT_EQ(rank.Run(), "E0@0 1F0@20 1B0@30 E1@40 1F1@100 1B1@110");
  EXPECT_EQ(rank.Run(), "1F0@5 1B0@15 E0@25 E1@45 1F1@100 1B1@110");
}

TEST(PieceRuleTest, APieceWhoseInputsAreMissingIsNotStartedEarly) {
  LastRank rank("1F0,1B0,1F1,1B1,E0,E1", /*reads=*/true);
  rank.transport.arrivals[transport::LaneKind::kFrozen] = {absl::Milliseconds(8)};
  rank.Run();
  EXPECT_EQ(rank.Run(), "E0@8 1F0@30 1B0@40 E1@50 1F1@100 1B1@110");
  // Too late for the first gap: what is left of it is shorter than the piece.
  rank.transport.arrivals[transport::LaneKind::kFrozen] = {absl::Milliseconds(15)};
  EXPECT_EQ(rank.Run(), "1F0@30 1B0@40 E0@50 E1@70 1F1@100 1B1@110");
}

TEST(PieceRuleTest, NobodyLooksAgainForAPieceThatDoesNotFit) {
  LastRank rank("1F0,1B0,1F1,1B1,E0,E1", /*reads=*/true);
  rank.transport.arrivals[transport::LaneKind::kFrozen] = {absl::Milliseconds(8)};
  rank.Run();
  EXPECT_EQ(rank.transport.glances, 0);  // nothing is known of the gaps yet
  rank.Run();
  EXPECT_EQ(rank.transport.glances, 16);  // half a millisecond each until the piece can run
  rank.transport.glances = 0;
  rank.transport.arrivals[transport::LaneKind::kFrozen] = {absl::Milliseconds(25)};
  EXPECT_EQ(rank.Run(), "1F0@30 1B0@40 E0@50 E1@70 1F1@100 1B1@110");
  EXPECT_EQ(rank.transport.glances, 21);  // until 10.5 ms: 20 ms no longer fit before 30
}

TEST(PieceRuleTest, AReadyActionGoesBeforeAPieceWhoseInputsAreMissing) {
  LastRank rank("E0,1F0,1B0,1F1,1B1,E1", /*reads=*/true);
  rank.transport.arrivals[transport::LaneKind::kFrozen] = {absl::Milliseconds(33)};
  EXPECT_EQ(rank.Run(), "1F0@30 1B0@40 1F1@100 1B1@110 E0@120 E1@140");
  EXPECT_EQ(rank.Run(), "1F0@30 1B0@40 E0@50 E1@70 1F1@100 1B1@110");  // the gap is known now
}

TEST(PieceRuleTest, TheGapsOfOneScheduleSayNothingOfTheOther) {
  LastRank rank("1F0,1B0,1F1,1B1,E0,E1");
  rank.SelfCondition("0C0,0C1,0F0,0F1,0B0,0B1\n1C0,1C1,1F0,1B0,1F1,1B1,E0,E1\n");
  rank.transport.arrivals[transport::LaneKind::kSelfConditioning] = {absl::Milliseconds(5), absl::Milliseconds(70)};
  rank.ForwardsArrive(90, 100);
  const Iteration self_conditioned{.self_conditioned = true};
  EXPECT_EQ(rank.Run(self_conditioned), "1C0@5 1C1@70 1F0@90 1B0@100 1F1@110 1B1@120 E0@130 E1@150");
  // The gap before C1 holds both; before F0 of the other schedule there is one too, of which nothing is known yet.
  EXPECT_EQ(rank.Run(self_conditioned), "1C0@5 E0@15 E1@35 1C1@70 1F0@90 1B0@100 1F1@110 1B1@120");
  rank.ForwardsArrive(30, 100);
  EXPECT_EQ(rank.Run(), "1F0@30 1B0@40 1F1@100 1B1@110 E0@120 E1@140");
  EXPECT_EQ(rank.Run(), "E0@0 1F0@30 1B0@40 E1@50 1F1@100 1B1@110");
  rank.ForwardsArrive(90, 100);
  EXPECT_EQ(rank.Run(self_conditioned), "1C0@5 E0@15 E1@35 1C1@70 1F0@90 1B0@100 1F1@110 1B1@120");
}

TEST(PieceRuleTest, OnADeviceEverythingKeepsItsPlace) {
  LastRank rank("E0,1F0,1B0,1F1,1B1,E1", /*reads=*/true);
  rank.transport.arrivals[transport::LaneKind::kFrozen] = {absl::Milliseconds(33)};
  rank.engine = std::make_unique<Engine>(rank.plan, 1, rank.compute.get(), &rank.transport, &rank.clock,
                                         EngineOptions{.frozen = rank.frozen.get(), .move_pieces = false});
  for (int i = 0; i < 2; ++i) EXPECT_EQ(rank.Run(), "E0@33 1F0@53 1B0@63 1F1@100 1B1@110 E1@120");
}

}  // namespace
}  // namespace atl::engine
