// Lanes to the servers that the coordinator lists, and what it is told of the routing, over real gRPC.
#include "router/remote/expert_directory.h"

#include <set>

#include "common/base/errors.h"
#include "common/base/fake_clock.h"
#include "common/rpc/channel.h"
#include "common/rpc/server.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "router/engine/testing/fake_backend.h"
#include "router/engine/testing/inline_lane.h"
#include "router/engine/testing/recorded_events.h"
#include "router/engine/testing/ticked_engine.h"
#include "router/remote/fake_serving_service.h"
#include "router/server/routing_reports.h"

namespace atl::router {
namespace {

namespace pb = atlpb::serving::v1;
using ::testing::ElementsAre;
using ::testing::IsEmpty;

SamplerInfo Info() {
  return {.model = "digits", .version = "v1", .experts = 3, .classes = 10, .channels = 1, .height = 2, .width = 2};
}

NetworkId Expert(int32_t expert) {
  return {.model = "digits", .version = "v1", .digest = "d", .expert = expert};
}

// Registry of the test's lanes, by name.
struct LaneBoard {
  absl::Mutex mutex;
  std::map<std::string, class BoardLane*> lanes ABSL_GUARDED_BY(mutex);
  std::vector<std::string> made ABSL_GUARDED_BY(mutex);  // addresses, in order

  bool Await(const std::set<std::string>& names, TickedEngine* engine) {
    // Removed lanes go when the engine has let go of them.
    for (const absl::Time end = absl::Now() + absl::Seconds(20); absl::Now() < end; engine->RunTick()) {
      absl::MutexLock lock(&mutex);
      std::set<std::string> found;
      for (const auto& [name, lane] : lanes) found.insert(name);
      if (found == names) return true;
    }
    return false;
  }
};

// Hosts what the test says.
class BoardLane : public ExpertLane {
 public:
  BoardLane(std::string name, const std::string& address, std::function<void()> hosting, LaneBoard* board)
      : name_(std::move(name)), hosting_(std::move(hosting)), board_(board) {
    absl::MutexLock lock(&board_->mutex);
    board_->lanes[name_] = this;
    board_->made.push_back(address);
  }
  ~BoardLane() override {
    absl::MutexLock lock(&board_->mutex);
    board_->lanes.erase(name_);
  }
  void Host(const std::vector<NetworkId>& networks) {
    auto hosted = std::make_shared<std::vector<HostedNetwork>>();
    for (const NetworkId& id : networks) hosted->push_back({.id = id});
    {
      absl::MutexLock lock(&mutex_);
      hosted_ = std::move(hosted);
    }
    hosting_();
  }

  LaneInfo info() const override { return {.name = name_, .remote = true}; }
  std::shared_ptr<const std::vector<HostedNetwork>> hosted() const override {
    absl::MutexLock lock(&mutex_);
    return hosted_;
  }
  void Watch(std::function<void()>) override {}
  void Start(std::shared_ptr<const Evaluation>, Done done) override { done(absl::UnavailableError("a fake")); }
  void Cancel(int64_t) override {}

 private:
  const std::string name_;
  const std::function<void()> hosting_;
  LaneBoard* const board_;
  mutable absl::Mutex mutex_;
  std::shared_ptr<const std::vector<HostedNetwork>> hosted_ ABSL_GUARDED_BY(mutex_) =
      std::make_shared<const std::vector<HostedNetwork>>();
};

class RemoteExpertsTest : public ::testing::Test {
 protected:
  void Make(std::vector<std::string> named = {}) {
    experts_ = std::make_unique<RemoteExperts>(
        RemoteExperts::Options{.addresses = std::move(named)},
        [this](const std::string& name, const std::string& address, std::function<void()> hosting) {
          return std::make_shared<BoardLane>(name, address, std::move(hosting), &board_);
        },
        &engine_, &clock_);
  }
  void Host(const std::string& lane, const std::vector<NetworkId>& networks) {
    BoardLane* found = nullptr;
    {
      absl::MutexLock lock(&board_.mutex);
      found = board_.lanes.at(lane);
    }
    found->Host(networks);
  }
  std::vector<std::string> Made() {
    absl::MutexLock lock(&board_.mutex);
    return board_.made;
  }
  static ListedServer Server(const std::string& id, const std::string& incarnation = "1",
                             const std::string& address = "a:1") {
    return {.server_id = id, .incarnation = incarnation, .address = address};
  }

  FakeClock clock_;
  LaneBoard board_;
  TickedEngine engine_{{}, &clock_, nullptr};
  std::unique_ptr<RemoteExperts> experts_;
};

TEST_F(RemoteExpertsTest, NamedAndListedServersStandSideBySide) {
  Make({"a:1", "b:1"});
  ASSERT_TRUE(board_.Await({"a:1", "b:1"}, &engine_));
  experts_->TakeList({.servers = {Server("one", "1", "b:1"), Server("two", "1", "c:1")}});
  ASSERT_TRUE(board_.Await({"a:1", "b:1", "two at c:1"}, &engine_));
  // A named server stays, whatever the list says.
  experts_->TakeList({});
  ASSERT_TRUE(board_.Await({"a:1", "b:1"}, &engine_));
  EXPECT_THAT(experts_->lane_names(), ElementsAre("a:1", "b:1"));
}

TEST_F(RemoteExpertsTest, ANetworkIsThereWhenAnyServerHostsIt) {
  Make({"a:1"});
  experts_->TakeList({.servers = {Server("two", "1", "c:1")}});
  ASSERT_TRUE(board_.Await({"a:1", "two at c:1"}, &engine_));
  const std::vector<NetworkId> all = {Expert(0), Expert(1), Expert(2)};
  EXPECT_THAT(experts_->Needs(all).missing, ElementsAre(0, 1, 2));
  int changes = 0;
  const int64_t watcher = experts_->Watch([&changes] { ++changes; });
  Host("a:1", {Expert(0), Expert(2)});
  EXPECT_EQ(changes, 1);
  EXPECT_THAT(experts_->Needs(all).missing, ElementsAre(1));
  NetworkId other = Expert(1);
  other.digest = "another";
  Host("two at c:1", {other});
  EXPECT_THAT(experts_->Needs(all).missing, ElementsAre(1));
  EXPECT_EQ(ErrorReason(experts_->AwaitHosted(all, absl::ZeroDuration())), "EXPERTS_MISSING");
  Host("two at c:1", {Expert(1)});
  EXPECT_THAT(experts_->Needs(all).missing, IsEmpty());
  EXPECT_TRUE(experts_->AwaitHosted(all, absl::ZeroDuration()).ok());
  experts_->Unwatch(watcher);
}

TEST_F(RemoteExpertsTest, WhatServersLackIsTold) {
  Make();
  ServerList list{.servers = {Server("one")}};
  list.shortages = {{.model = "digits", .version = "v2", .bytes_needed = 1, .bytes_lacking = 1},
                    {.model = "digits", .version = "v1", .bytes_needed = 50, .bytes_lacking = 7, .why = "full"}};
  experts_->TakeList(list);
  const ServerNeeds needs = experts_->Needs({Expert(0), Expert(1)});
  EXPECT_EQ(needs.networks, 2);
  EXPECT_EQ(needs.bytes_needed, 50);
  EXPECT_EQ(needs.bytes_lacking, 7);
  EXPECT_EQ(needs.why, "full");
}

TEST_F(RemoteExpertsTest, ARestartedServerGetsANewLane) {
  Make();
  experts_->TakeList({.servers = {Server("one")}});
  ASSERT_TRUE(board_.Await({"one at a:1"}, &engine_));
  Host("one at a:1", {Expert(0)});
  experts_->TakeList({.servers = {Server("one", "2")}});
  // The new lane takes the place of the old one, which is freed by the time a list without either is carried out.
  const absl::Time end = absl::Now() + absl::Seconds(20);
  while (Made().size() < 2 && absl::Now() < end) engine_.RunTick();
  EXPECT_THAT(Made(), ElementsAre("a:1", "a:1"));
  EXPECT_THAT(experts_->Needs({Expert(0)}).missing, ElementsAre(0));
}

TEST_F(RemoteExpertsTest, AServerThatIsNotListedStaysWhileItHostsSomething) {
  Make();
  experts_->TakeList({.servers = {Server("one"), Server("two", "1", "b:1")}});
  ASSERT_TRUE(board_.Await({"one at a:1", "two at b:1"}, &engine_));
  Host("one at a:1", {Expert(0)});
  experts_->TakeList({});
  ASSERT_TRUE(board_.Await({"one at a:1"}, &engine_));
  EXPECT_FALSE(experts_->Needs({Expert(0)}).without_servers);
  Host("one at a:1", {});
  ASSERT_TRUE(board_.Await({}, &engine_));
  EXPECT_TRUE(experts_->Needs({Expert(0)}).without_servers);
}

TEST_F(RemoteExpertsTest, WhetherThereIsAServerIsKnownWithTheFirstList) {
  Make();
  EXPECT_EQ(ErrorReason(experts_->AwaitAnyServer(absl::ZeroDuration()).status()), "SERVERS_UNKNOWN");
  experts_->TakeList({});
  EXPECT_FALSE(*experts_->AwaitAnyServer(absl::ZeroDuration()));
  experts_->TakeList({.servers = {Server("one")}});
  EXPECT_TRUE(*experts_->AwaitAnyServer(absl::ZeroDuration()));
  Make({"b:1"});
  EXPECT_TRUE(*experts_->AwaitAnyServer(absl::ZeroDuration()));
}

TEST_F(RemoteExpertsTest, AnEngineThatOutlivesItLetsGoOfItsLanes) {
  Make({"a:1"});
  engine_.RunTick();
  experts_.reset();
  EXPECT_TRUE(board_.Await({"a:1"}, &engine_));
  engine_.Stop();
  EXPECT_TRUE(board_.Await({}, &engine_));
}

// Over gRPC, by the machine's clock.
class ExpertDirectoryTest : public RemoteExpertsTest {
 protected:
  void StartCoordinator(const std::string& listen = "127.0.0.1:0") {
    service_ = std::make_unique<FakeServingService>();
    server_ = *rpc::Server::Start(
        {.listen = listen, .services = {{pb::ServingService::service_full_name(), service_.get()}}});
  }
  void StopCoordinator() {
    service_->End();
    server_.reset();
  }
  void Follow() {
    Make();
    directory_ = std::make_unique<ExpertDirectory>(
        rpc::MakeChannel(server_->address()), experts_.get(), Clock::Real(),
        BackoffLimits{.first = absl::Milliseconds(10), .longest = absl::Milliseconds(50)});
  }
  void TearDown() override {
    directory_.reset();
    if (server_ != nullptr) StopCoordinator();
  }

  std::unique_ptr<FakeServingService> service_;
  std::unique_ptr<rpc::Server> server_;
  std::unique_ptr<ExpertDirectory> directory_;
};

pb::WatchServersResponse ListOf(const std::string& id, const std::string& incarnation) {
  pb::WatchServersResponse list;
  pb::ExpertServer* const server = list.add_servers();
  server->set_server_id(id);
  server->set_incarnation(incarnation);
  server->set_address("a:1");
  return list;
}

TEST_F(ExpertDirectoryTest, ServersComeAndGoWithTheList) {
  StartCoordinator();
  service_->List(ListOf("one", "1"));
  Follow();
  ASSERT_TRUE(board_.Await({"one at a:1"}, &engine_));
  service_->List(ListOf("two", "1"));
  ASSERT_TRUE(board_.Await({"two at a:1"}, &engine_));
}

TEST_F(ExpertDirectoryTest, LanesStayWhileTheCoordinatorIsAway) {
  StartCoordinator();
  const std::string address = server_->address();
  service_->List(ListOf("one", "1"));
  Follow();
  ASSERT_TRUE(board_.Await({"one at a:1"}, &engine_));
  Host("one at a:1", {Expert(0)});
  StopCoordinator();
  EXPECT_THAT(experts_->Needs({Expert(0)}).missing, IsEmpty());
  // A coordinator that has just started knows of no server yet.
  StartCoordinator(address);
  int changes = 0;
  absl::Mutex mutex;
  const int64_t watcher = experts_->Watch([&] {
    absl::MutexLock lock(&mutex);
    ++changes;
  });
  {
    absl::MutexLock lock(&mutex);
    const auto changed = [&] { return changes > 0; };
    ASSERT_TRUE(mutex.AwaitWithTimeout(absl::Condition(&changed), absl::Seconds(20)));
  }
  experts_->Unwatch(watcher);
  EXPECT_THAT(experts_->Needs({Expert(0)}).missing, IsEmpty());
  service_->List(ListOf("one", "2"));
  const absl::Time end = absl::Now() + absl::Seconds(20);
  while (Made().size() < 2 && absl::Now() < end) engine_.RunTick();
  EXPECT_THAT(Made(), ElementsAre("a:1", "a:1"));
}

TEST_F(ExpertDirectoryTest, WhatServersLackIsReadFromTheList) {
  StartCoordinator();
  pb::WatchServersResponse list = ListOf("one", "1");
  pb::VersionShortage* const shortage = list.add_shortages();
  shortage->set_model("digits");
  shortage->set_version("v1");
  shortage->set_needed_bytes(30);
  shortage->set_lacking_bytes(10);
  shortage->mutable_error()->set_message("servers are full");
  service_->List(list);
  Follow();
  ASSERT_TRUE(*experts_->AwaitAnyServer(absl::Seconds(20)));
  const ServerNeeds needs = experts_->Needs({Expert(0), Expert(1), Expert(2)});
  EXPECT_EQ(needs.bytes_needed, 30);
  EXPECT_EQ(needs.bytes_lacking, 10);
  EXPECT_EQ(needs.why, "servers are full");
}

TEST_F(ExpertDirectoryTest, RoutingIsReported) {
  StartCoordinator();
  auto backend = std::make_shared<FakeBackend>(Info());
  engine_.AddLane(std::make_shared<InlineLane>(LaneInfo{.name = "here"}, backend, "", Clock::Real()));
  engine_.Serve(std::make_shared<ServedVersion>(ServedVersion{.info = Info()}));
  SampleRequest request{.classes = {-1, -1}, .steps = 2};
  request.format = ImageFormat::kRaw;
  const auto events = std::make_shared<RecordedEvents>();
  const auto ticket = engine_.Submit(request, absl::InfiniteDuration(), events);
  ASSERT_TRUE(ticket.ok()) << ticket.status();
  for (int i = 0; i < 100 && !events->over(); ++i) engine_.RunTick();
  ASSERT_TRUE(events->status().ok()) << events->status();
  const std::vector<int64_t> chosen = events->report().routing.chosen;
  const std::vector<FollowedVersion> versions = {
      {.model = "digits", .version = "v1", .state = VersionState::kServing, .pinned = true, .requests = 4},
      {.model = "digits", .version = "v0", .state = VersionState::kDraining},
      {.model = "digits", .version = "v2", .state = VersionState::kReady}};
  RoutingReports reports(
      /*needs_router_networks=*/false, rpc::MakeChannel(server_->address()), [&] { return versions; }, &engine_,
      Clock::Real(), absl::Milliseconds(10));
  const auto report = service_->AwaitReport(0);
  ASSERT_TRUE(report.has_value());
  ASSERT_EQ(report->uses_size(), 3);
  EXPECT_THAT(report->uses(0).chosen(), ::testing::ElementsAreArray(chosen));
  EXPECT_EQ(report->uses(0).requests(), 4);
  EXPECT_EQ(report->uses(0).state(), pb::VersionUse::STATE_SERVING);
  EXPECT_TRUE(report->uses(0).pinned());
  EXPECT_EQ(report->uses(1).state(), pb::VersionUse::STATE_DRAINING);
  EXPECT_EQ(report->uses(2).state(), pb::VersionUse::STATE_LOADING);
  EXPECT_FALSE(report->needs_router_networks());
  const auto next = service_->AwaitReport(1);
  ASSERT_TRUE(next.has_value());
  EXPECT_THAT(next->uses(0).chosen(), IsEmpty());
  EXPECT_EQ(next->router_id(), report->router_id());
}

}  // namespace
}  // namespace atl::router
