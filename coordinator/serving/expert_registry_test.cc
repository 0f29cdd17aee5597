// The registry on a fake clock, without threads: reading weights is answered when a test says so.
#include "coordinator/serving/expert_registry.h"

#include <algorithm>
#include <optional>

#include "common/base/errors.h"
#include "common/base/fake_clock.h"
#include "gmock/gmock.h"

namespace atl::coordinator {
namespace {

using serving::ExpertServer;
using serving::NetworkState;
using serving::UseState;
using ::testing::HasSubstr;

using Experts = std::vector<std::string>;  // "v1/0"

class ExpertRegistryTest : public testing::Test {
 protected:
  ExpertRegistryTest() { Start(/*settles=*/false); }

  void Start(bool settles, ExpertRegistryOptions options = {}) {
    options.watch_interval = interval_;
    sequence_ = 0;
    reads_.clear();
    experts_ = std::make_unique<ExpertRegistry>(
        options, settles, &clock_, &metrics_,
        [this](const std::string& uri, const std::string& digest, ExpertRegistry::WeightsCallback done) {
          EXPECT_EQ(uri, "file:///models/" + digest);
          reads_.emplace_back(digest, std::move(done));
          return true;
        });
    experts_->WatchServers([this](const absl::StatusOr<std::shared_ptr<const ServersView>>& view, bool last) {
      if (view.ok()) view_ = **view;
      ended_ = last ? view.status() : absl::OkStatus();
    });
    experts_->Tick();
  }

  // Versions v1 and v2.
  void Serve(const std::string& version) {
    store::Model model{.name = "m", .serving = {.name = "m", .version = version}};
    for (const std::string one : {"v2", "v1"}) {
      model.versions.push_back({.name = "m",
                                .version = one,
                                .uri = "file:///models/d-" + one,
                                .digest = "d-" + one,
                                .experts = experts_of_each_});
    }
    experts_->TakeModel(model);
    experts_->Tick();
  }

  // Answers every read that waits.
  void Read(const absl::StatusOr<serving::VersionWeights>& weights = serving::VersionWeights{
                {-1, 1}, {0, 10}, {1, 10}}) {
    const auto reads = std::exchange(reads_, {});
    for (const auto& [digest, done] : reads) done(weights);
    experts_->Tick();
  }

  // Sends a heartbeat of a server that hosts all its assigned networks, ready; returns its new assignment. "undecided"
  // when it must keep its networks.
  Experts Beat(const std::string& id, int64_t memory = 0, NetworkState state = NetworkState::kReady) {
    ExpertServer server{.server_id = id, .incarnation = "i", .address = id + ":1", .memory_bytes = memory};
    for (const NetworkId& network : hosting_[id]) {
      server.networks.push_back({.network = network, .state = state, .bytes = 10});
    }
    const auto answer = experts_->Heartbeat(server, ++sequence_, /*leaving=*/false);
    EXPECT_TRUE(answer.ok()) << answer.status();
    experts_->Tick();
    if (answer->undecided) return {"undecided"};
    hosting_[id].clear();
    Experts experts;
    for (const AssignedNetwork& assigned : answer->assigned) {
      hosting_[id].push_back(assigned.network);
      EXPECT_EQ(assigned.uri, "file:///models/" + assigned.network.digest);
      experts.push_back(assigned.network.version + "/" + std::to_string(assigned.network.expert));
    }
    return experts;
  }

  void Report(const std::map<std::string, UseState>& uses, const std::vector<int64_t>& chosen = {}) {
    serving::RoutingReport report{.router_id = "r"};
    for (const auto& [version, state] : uses) {
      report.uses.push_back({.model = "m", .version = version, .state = state, .chosen = chosen});
    }
    EXPECT_TRUE(experts_->ReportRouting(report).ok());
    experts_->Tick();
  }

  void Pass(absl::Duration time) {
    clock_.Advance(time);
    experts_->Tick();
    EXPECT_GT(experts_->NextWake(), clock_.Monotonic()) << "the thread would spin";
  }

  FakeClock clock_;
  std::unique_ptr<metrics::Registry> registry_ = metrics::Registry::Create("test");
  ExpertRegistryMetrics metrics_{registry_.get()};
  std::unique_ptr<ExpertRegistry> experts_;
  std::vector<std::pair<std::string, ExpertRegistry::WeightsCallback>> reads_;
  std::map<std::string, std::vector<NetworkId>> hosting_;
  ServersView view_;
  absl::Status ended_;
  int64_t sequence_ = 0;
  int32_t experts_of_each_ = 2;
  absl::Duration interval_ = absl::ZeroDuration();
};

TEST_F(ExpertRegistryTest, WithoutServersNothingIsReadAndNothingLacks) {
  Serve("v1");
  Report({{"v1", UseState::kServing}});
  EXPECT_TRUE(reads_.empty());
  EXPECT_TRUE(view_.plan.shortages.empty());
  EXPECT_THAT(registry_->Text(), HasSubstr("atoll_coordinator_networks_unplaced 0"));
}

TEST_F(ExpertRegistryTest, AServerLearnsItsNetworksOnceTheirWeightsAreKnown) {
  Serve("v1");
  EXPECT_EQ(Beat("a"), Experts{});
  ASSERT_EQ(reads_.size(), 1u);
  EXPECT_EQ(Beat("a"), Experts{}) << "still being read";
  ASSERT_EQ(reads_.size(), 1u) << "asked once";
  Read();
  EXPECT_EQ(Beat("a"), (Experts{"v1/0", "v1/1"}));
  EXPECT_EQ(view_.plan.assigned.at("a").size(), 2u);
  EXPECT_TRUE(reads_.empty());
}

TEST_F(ExpertRegistryTest, ASilentServersNetworksGoToOthers) {
  Start(false, {.replicas = 1});
  Serve("v1");
  Beat("a");
  Beat("b");
  Read();
  EXPECT_EQ(Beat("a"), Experts{"v1/0"});
  EXPECT_EQ(Beat("b"), Experts{"v1/1"});
  Pass(absl::Seconds(4));
  EXPECT_EQ(Beat("b"), Experts{"v1/1"});
  Pass(absl::Seconds(4));
  ASSERT_EQ(view_.servers.size(), 1u);
  EXPECT_EQ(Beat("b"), (Experts{"v1/0", "v1/1"}));
}

TEST_F(ExpertRegistryTest, AServerThatLeavesIsForgottenAtOnce) {
  Serve("v1");
  Beat("a", 10);
  Beat("b", 10);
  Read();
  Beat("a", 10);
  const ExpertServer b{.server_id = "b", .incarnation = "i", .address = "b:1"};
  const auto answer = experts_->Heartbeat(b, ++sequence_, /*leaving=*/true);
  ASSERT_TRUE(answer.ok());
  EXPECT_TRUE(answer->undecided && answer->assigned.empty());
  experts_->Tick();
  ASSERT_EQ(view_.servers.size(), 1u);
  EXPECT_EQ(view_.plan.lacking_bytes, 10);
  EXPECT_THAT(registry_->Text(), HasSubstr("atoll_coordinator_lacking_bytes 10"));
  // After the last server has left, no server is expected any more.
  const ExpertServer a{.server_id = "a", .incarnation = "i", .address = "a:1"};
  ASSERT_TRUE(experts_->Heartbeat(a, ++sequence_, /*leaving=*/true).ok());
  experts_->Tick();
  EXPECT_TRUE(view_.plan.shortages.empty());
}

TEST_F(ExpertRegistryTest, AfterARestartNothingMovesThatIsHosted) {
  Start(false, {.replicas = 1});
  Serve("v1");
  Beat("a");
  Beat("b");
  Read();
  EXPECT_EQ(Beat("a"), Experts{"v1/0"});
  EXPECT_EQ(Beat("b"), Experts{"v1/1"});
  Start(/*settles=*/true, {.replicas = 1});
  Serve("v1");
  // The one that comes first is given nothing, and nothing is taken away.
  EXPECT_EQ(Beat("b"), Experts{"undecided"});
  Pass(absl::Seconds(3));
  EXPECT_EQ(Beat("a"), Experts{"undecided"});
  EXPECT_TRUE(reads_.empty());
  Pass(absl::Seconds(3));
  EXPECT_EQ(Beat("b"), Experts{"undecided"});
  Pass(absl::Seconds(1));
  EXPECT_EQ(Beat("a"), Experts{"v1/0"}) << "before its weights are known again";
  Read();
  EXPECT_EQ(Beat("a"), Experts{"v1/0"});
  EXPECT_EQ(Beat("b"), Experts{"v1/1"});
}

TEST_F(ExpertRegistryTest, AnOldVersionStaysUntilRoutersHaveLeftIt) {
  Serve("v1");
  Beat("a", 20);
  Read();
  Beat("a", 20);
  Report({{"v1", UseState::kServing}});
  EXPECT_EQ(Beat("a", 20), (Experts{"v1/0", "v1/1"}));
  Serve("v2");
  Read();
  // Both do not fit side by side: the server reads in turn what is asked for.
  EXPECT_EQ(Beat("a", 20), (Experts{"v1/0", "v1/1", "v2/0", "v2/1"}));
  EXPECT_EQ(view_.plan.over_memory_bytes, 20);
  EXPECT_EQ(Beat("a", 20), (Experts{"v1/0", "v1/1", "v2/0", "v2/1"}));
  Report({{"v1", UseState::kDraining}, {"v2", UseState::kServing}});
  Pass(absl::Seconds(5));
  Beat("a", 20);
  Pass(absl::Seconds(6));
  EXPECT_EQ(Beat("a", 20), (Experts{"v1/0", "v1/1", "v2/0", "v2/1"})) << "a request still runs on it";
  Report({{"v2", UseState::kServing}});
  EXPECT_EQ(Beat("a", 20), (Experts{"v2/0", "v2/1"}));
  EXPECT_EQ(view_.plan.over_memory_bytes, 0);
}

TEST_F(ExpertRegistryTest, ARouterThatIsSilentForLongHoldsNothing) {
  Serve("v1");
  Beat("a");
  Read();
  Beat("a");
  Report({{"v1", UseState::kServing}});
  Serve("v2");
  Read();
  for (int i = 0; i < 7; ++i) {
    EXPECT_EQ(Beat("a"), (Experts{"v1/0", "v1/1", "v2/0", "v2/1"})) << i;
    Pass(absl::Seconds(4));
  }
  Pass(absl::Seconds(2));
  EXPECT_EQ(Beat("a"), (Experts{"v2/0", "v2/1"}));
}

TEST_F(ExpertRegistryTest, WithoutReportsAnOldVersionStaysUntilItsSuccessorIsReadyForAWhile) {
  Serve("v1");
  Beat("a");
  Read();
  Beat("a");
  Beat("a");
  Serve("v2");
  Read();
  EXPECT_EQ(Beat("a").size(), 4u);
  for (int i = 0; i < 4; ++i) {
    Pass(absl::Seconds(5));
    EXPECT_EQ(Beat("a", 0, NetworkState::kLoading).size(), 4u) << i;
  }
  EXPECT_EQ(Beat("a").size(), 4u) << "ready now";
  Pass(absl::Seconds(6));
  EXPECT_EQ(Beat("a").size(), 4u);
  Pass(absl::Seconds(4));
  EXPECT_EQ(Beat("a"), (Experts{"v2/0", "v2/1"}));
}

TEST_F(ExpertRegistryTest, AVersionThatDoesNotFitTakesNothingFromTheOneThatServes) {
  Serve("v1");
  Beat("a", 20);
  Beat("b", 20);
  Read();
  Beat("a", 20);
  Beat("b", 20);
  Report({{"v1", UseState::kServing}});
  Serve("v2");
  Read(serving::VersionWeights{{-1, 1}, {0, 20}, {1, 30}});
  EXPECT_EQ(Beat("a", 20), (Experts{"v1/0", "v1/1"}));
  EXPECT_EQ(Beat("b", 20), (Experts{"v1/0", "v1/1"}));
  const serving::Shortage& shortage = view_.plan.shortages.at({"m", "v2"});
  EXPECT_EQ(shortage.networks, (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(shortage.lacking_bytes, 30);
  EXPECT_EQ(ErrorReason(shortage.error), "EXPERT_SERVERS_FULL");
  EXPECT_THAT(registry_->Text(), HasSubstr("atoll_coordinator_networks_unplaced 2"));
  // Another server with the room: it is begun.
  EXPECT_EQ(Beat("c", 40), (Experts{"v1/1", "v2/1"}));
}

TEST_F(ExpertRegistryTest, ReplicasFollowWhatIsAskedButNotEveryReport) {
  Start(false, {.replicas = 1});
  experts_of_each_ = 3;
  Serve("v1");
  const std::vector<std::string> ids = {"a", "b", "c"};
  for (const std::string& id : ids) Beat(id);
  Read(serving::VersionWeights{{-1, 1}, {0, 10}, {1, 10}, {2, 10}});
  const auto replicas = [&] {
    std::vector<int> count(3);
    for (const auto& [server, networks] : view_.plan.assigned) {
      for (const NetworkId& network : networks) ++count[static_cast<size_t>(network.expert)];
    }
    return count;
  };
  Report({{"v1", UseState::kServing}}, {10, 10, 10});
  EXPECT_EQ(replicas(), (std::vector<int>{1, 1, 1}));
  Report({{"v1", UseState::kServing}}, {0, 900'000, 0});
  EXPECT_EQ(replicas(), (std::vector<int>{1, 1, 1})) << "not yet";
  for (int i = 0; i < 3; ++i) {
    Pass(absl::Seconds(5));
    for (const std::string& id : ids) Beat(id);
  }
  EXPECT_EQ(replicas(), (std::vector<int>{1, 2, 1})) << "almost three times its share";
  for (const std::string& id : ids) Beat(id);
  // Less hot, but not by much: nothing is given up.
  Report({{"v1", UseState::kServing}}, {400'000, 0, 0});
  for (int i = 0; i < 3; ++i) {
    Pass(absl::Seconds(5));
    for (const std::string& id : ids) Beat(id);
  }
  EXPECT_EQ(replicas(), (std::vector<int>{1, 2, 1}));
}

TEST_F(ExpertRegistryTest, WhatAServerCannotLoadGoesToAnother) {
  Start(false, {.replicas = 1});
  Serve("v1");
  Beat("a");
  Read();
  EXPECT_EQ(Beat("a"), (Experts{"v1/0", "v1/1"}));
  EXPECT_EQ(Beat("a", 0, NetworkState::kFailed), (Experts{"v1/0", "v1/1"})) << "nobody else is there";
  EXPECT_EQ(Beat("b"), (Experts{"v1/0", "v1/1"}));
  EXPECT_EQ(Beat("b"), (Experts{"v1/0", "v1/1"}));
  EXPECT_EQ(Beat("a", 0, NetworkState::kFailed), Experts{});
  // It does not come back once the failed ones are off its list.
  EXPECT_EQ(Beat("a"), Experts{});
}

TEST_F(ExpertRegistryTest, WhatAServerCannotLoadAndNobodyWantsIsNotRemembered) {
  Start(false, {.replicas = 1});
  Serve("v1");
  Beat("a");
  Read();
  EXPECT_EQ(Beat("a"), (Experts{"v1/0", "v1/1"}));
  std::vector<NetworkId> told;
  for (int32_t expert = 0; expert < 2'000; ++expert) {
    told.push_back({.model = "m", .version = "none", .digest = "none", .expert = expert});
  }
  told.insert(told.end(), hosting_["a"].begin(), hosting_["a"].end());
  hosting_["a"] = told;
  EXPECT_EQ(Beat("a", 0, NetworkState::kFailed), (Experts{"v1/0", "v1/1"})) << "nobody else is there";
  Beat("b");
  EXPECT_EQ(Beat("b"), (Experts{"v1/0", "v1/1"})) << "those that were not invented are remembered";
  EXPECT_EQ(Beat("a", 0, NetworkState::kFailed), Experts{});
}

TEST_F(ExpertRegistryTest, ManyChangesAtOnceAreOneDecision) {
  interval_ = absl::Milliseconds(100);
  Start(false);
  Serve("v1");
  Pass(interval_);
  EXPECT_EQ(Beat("a"), Experts{"undecided"});
  Pass(interval_);
  Read();
  Pass(interval_);
  EXPECT_EQ(Beat("a"), (Experts{"v1/0", "v1/1"}));
  // When two servers come at the same time, the second must retry soon and keeps its networks until then.
  Pass(interval_);
  EXPECT_EQ(Beat("b"), (Experts{"v1/0", "v1/1"}));
  const auto c = experts_->Heartbeat({.server_id = "c", .incarnation = "i", .address = "c:1"}, 1, /*leaving=*/false);
  ASSERT_TRUE(c.ok());
  EXPECT_TRUE(c->undecided && c->assigned.empty());
  EXPECT_EQ(c->interval, interval_);
  Pass(interval_);
  EXPECT_EQ(Beat("c"), (Experts{"v1/0", "v1/1"}));
}

TEST_F(ExpertRegistryTest, AnIndexThatCannotBeReadIsNamedAndReadAgain) {
  Serve("v1");
  Beat("a");
  ASSERT_EQ(reads_.size(), 1u);
  Read(MakeError(absl::StatusCode::kNotFound, "FILE_NOT_FOUND", "there is no model_index.json"));
  const serving::Shortage shortage = view_.plan.shortages.at({"m", "v1"});
  EXPECT_EQ(ErrorReason(shortage.error), "FILE_NOT_FOUND");
  EXPECT_THAT(std::string(shortage.error.message()), HasSubstr("version 'v1'"));
  EXPECT_EQ(shortage.networks, (std::vector<int32_t>{0, 1}));
  EXPECT_TRUE(reads_.empty());
  EXPECT_EQ(experts_->NextWake(), clock_.Monotonic() + absl::Seconds(1));
  for (const int wait : {1, 2, 4}) {
    Beat("a");
    Pass(absl::Seconds(wait) - absl::Milliseconds(1));
    EXPECT_TRUE(reads_.empty()) << wait;
    Pass(absl::Milliseconds(1));
    ASSERT_EQ(reads_.size(), 1u) << wait;
    if (wait < 4) Read(MakeError(absl::StatusCode::kUnavailable, "UNAVAILABLE", "no route"));
  }
  Read();
  EXPECT_TRUE(view_.plan.shortages.empty());
  EXPECT_EQ(Beat("a"), (Experts{"v1/0", "v1/1"}));
}

TEST_F(ExpertRegistryTest, WatchesEndWithTheCoordinator) {
  experts_->EndWatches();
  EXPECT_EQ(ErrorReason(ended_), "COORDINATOR_STOPPING");
  view_ = {};
  Serve("v1");
  Beat("a");
  EXPECT_TRUE(view_.servers.empty()) << "nobody watches";
}

}  // namespace
}  // namespace atl::coordinator
