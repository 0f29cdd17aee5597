#include "coordinator/serving/expert_servers.h"

#include "common/base/errors.h"
#include "gtest/gtest.h"

namespace atl::serving {
namespace {

constexpr absl::Duration kNow = absl::Seconds(100);

ExpertServer Server(const std::string& id, const std::string& incarnation = "i1") {
  return {.server_id = id, .incarnation = incarnation, .address = id + ":1"};
}

std::vector<std::string> Ids(const ExpertServers& servers) {
  std::vector<std::string> ids;
  for (const ExpertServer* server : servers.servers()) ids.push_back(server->server_id + "/" + server->incarnation);
  return ids;
}

TEST(ExpertServers, NewsAreWhatRoutersSee) {
  ExpertServers servers({});
  EXPECT_TRUE(*servers.TakeHeartbeat(kNow, Server("a"), 1));
  EXPECT_FALSE(*servers.TakeHeartbeat(kNow, Server("a"), 2));
  ExpertServer hosting = Server("a");
  hosting.networks = {{.network = {.model = "m", .version = "v1", .digest = "d1", .expert = 1}}};
  EXPECT_TRUE(*servers.TakeHeartbeat(kNow, hosting, 3));
  hosting.networks[0].state = NetworkState::kReady;
  EXPECT_TRUE(*servers.TakeHeartbeat(kNow, hosting, 4));
  // One that was overtaken on its way.
  EXPECT_FALSE(*servers.TakeHeartbeat(kNow, Server("a"), 3));
  EXPECT_EQ(servers.servers()[0]->networks.size(), 1u);
}

TEST(ExpertServers, ARestartedServerReplacesTheOneBeforeForGood) {
  ExpertServers servers({});
  EXPECT_TRUE(*servers.TakeHeartbeat(kNow, Server("a", "i1"), 9));
  EXPECT_TRUE(*servers.TakeHeartbeat(kNow, Server("a", "i2"), 1));
  EXPECT_EQ(Ids(servers), std::vector<std::string>{"a/i2"});
  EXPECT_EQ(ErrorReason(servers.TakeHeartbeat(kNow, Server("a", "i1"), 10).status()), "STALE_INCARNATION");
  EXPECT_EQ(Ids(servers), std::vector<std::string>{"a/i2"});
}

TEST(ExpertServers, TheSilentAreForgottenAndMayComeBack) {
  ExpertServers servers({});
  EXPECT_EQ(servers.NextExpiry(), absl::InfiniteDuration());
  ASSERT_TRUE(servers.TakeHeartbeat(kNow, Server("a"), 1).ok());
  ASSERT_TRUE(servers.TakeHeartbeat(kNow + absl::Seconds(3), Server("b"), 1).ok());
  EXPECT_EQ(servers.NextExpiry(), kNow + absl::Seconds(7));
  EXPECT_TRUE(servers.Expire(kNow + absl::Seconds(6.9)).empty());
  EXPECT_EQ(servers.Expire(kNow + absl::Seconds(7)), std::vector<std::string>{"a"});
  EXPECT_EQ(Ids(servers), std::vector<std::string>{"b/i1"});
  EXPECT_TRUE(*servers.TakeHeartbeat(kNow + absl::Seconds(8), Server("a"), 2));
  EXPECT_EQ(Ids(servers), (std::vector<std::string>{"a/i1", "b/i1"}));
}

TEST(ExpertServers, OneThatLeavesIsForgottenAtOnceAndItsLateCallsAreStale) {
  ExpertServers servers({});
  ASSERT_TRUE(servers.TakeHeartbeat(kNow, Server("a", "i1"), 1).ok());
  EXPECT_FALSE(servers.Leave("a", "i0")) << "another process of that name";
  EXPECT_FALSE(servers.Leave("b", "i1"));
  EXPECT_EQ(servers.size(), 1u);
  EXPECT_TRUE(servers.Leave("a", "i1"));
  EXPECT_EQ(servers.size(), 0u);
  EXPECT_EQ(ErrorReason(servers.TakeHeartbeat(kNow, Server("a", "i1"), 2).status()), "STALE_INCARNATION");
  EXPECT_TRUE(*servers.TakeHeartbeat(kNow, Server("a", "i2"), 1)) << "started again";
}

TEST(ExpertServers, NonsenseIsRefused) {
  ExpertServers servers({.max_servers = 1});
  ExpertServer negative = Server("a");
  negative.memory_bytes = -1;
  ExpertServer nowhere = Server("a");
  nowhere.address = "";
  ExpertServer nameless = Server("a");
  nameless.networks = {{.network = {.model = "m", .version = "v1", .digest = ""}}};
  ExpertServer weightless = Server("a");
  weightless.networks = {{.network = {.model = "m", .version = "v1", .digest = "d1"}, .bytes = -1}};
  for (const ExpertServer& server :
       {Server(""), Server("a", ""), Server(std::string(300, 'x')), negative, nowhere, nameless, weightless}) {
    EXPECT_EQ(ErrorReason(servers.TakeHeartbeat(kNow, server, 1).status()), "INVALID_EXPERT_SERVER");
  }
  EXPECT_TRUE(servers.TakeHeartbeat(kNow, Server("a"), 1).ok());
  EXPECT_EQ(ErrorReason(servers.TakeHeartbeat(kNow, Server("b"), 1).status()), "TOO_MANY_SERVERS");
}

}  // namespace
}  // namespace atl::serving
