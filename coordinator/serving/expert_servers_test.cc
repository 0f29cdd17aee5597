#include "coordinator/serving/expert_servers.h"

#include <limits>

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
  ExpertServers servers;
  EXPECT_TRUE(*servers.TakeHeartbeat(kNow, Server("a"), 1));
  EXPECT_FALSE(*servers.TakeHeartbeat(kNow, Server("a"), 2));
  ExpertServer hosting = Server("a");
  hosting.networks = {{.network = {.model = "m", .version = "v1", .digest = "d1", .expert = 1}}};
  EXPECT_TRUE(*servers.TakeHeartbeat(kNow, hosting, 3));
  hosting.networks[0].state = NetworkState::kReady;
  EXPECT_TRUE(*servers.TakeHeartbeat(kNow, hosting, 4));
  // A heartbeat that a newer one overtook.
  EXPECT_FALSE(*servers.TakeHeartbeat(kNow, Server("a"), 3));
  EXPECT_EQ(servers.servers()[0]->networks.size(), 1u);
}

TEST(ExpertServers, ARestartedServerReplacesTheOneBeforeForGood) {
  ExpertServers servers;
  EXPECT_TRUE(*servers.TakeHeartbeat(kNow, Server("a", "i1"), 9));
  EXPECT_TRUE(*servers.TakeHeartbeat(kNow, Server("a", "i2"), 1));
  EXPECT_EQ(Ids(servers), std::vector<std::string>{"a/i2"});
  EXPECT_EQ(ErrorReason(servers.TakeHeartbeat(kNow, Server("a", "i1"), 10).status()), "STALE_INCARNATION");
  EXPECT_EQ(Ids(servers), std::vector<std::string>{"a/i2"});
}

TEST(ExpertServers, TheSilentAreForgottenAndMayComeBack) {
  ExpertServers servers;
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
  ExpertServers servers;
  ASSERT_TRUE(servers.TakeHeartbeat(kNow, Server("a", "i1"), 1).ok());
  EXPECT_FALSE(*servers.Leave(Server("a", "i0"))) << "another process of that name";
  EXPECT_FALSE(*servers.Leave(Server("b", "i1")));
  EXPECT_EQ(servers.size(), 1u);
  EXPECT_TRUE(*servers.Leave(Server("a", "i1")));
  EXPECT_EQ(servers.size(), 0u);
  EXPECT_EQ(ErrorReason(servers.TakeHeartbeat(kNow, Server("a", "i1"), 2).status()), "STALE_INCARNATION");
  EXPECT_TRUE(*servers.TakeHeartbeat(kNow, Server("a", "i2"), 1)) << "started again";
}

TEST(ExpertServers, WhoActsForAServerIsItsSubjectOrOneWhoIsNamedForIt) {
  struct Case {
    std::string known;   // its owner; empty: any subject named for the server
    std::string caller;  // likewise
    bool may;
  };
  for (const Case& c : std::vector<Case>{
           {"ann", "ann", true}, {"ann", "bob", false}, {"ann", "", true}, {"", "", true}, {"", "bob", false}}) {
    ExpertServers servers;
    ExpertServer known = Server("a", "i1");
    known.owner = c.known;
    ASSERT_TRUE(servers.TakeHeartbeat(kNow, known, 1).ok());
    for (const std::string incarnation : {"i1", "i2"}) {
      ExpertServer called = Server("a", incarnation);
      called.owner = c.caller;
      EXPECT_EQ(servers.TakeHeartbeat(kNow, called, 2).ok(), c.may) << c.known << " and " << c.caller;
      if (c.may) continue;
      EXPECT_EQ(ErrorReason(servers.TakeHeartbeat(kNow, called, 2).status()), "EXPERT_SERVER_NOT_YOURS");
      EXPECT_EQ(ErrorReason(servers.Leave(called).status()), "EXPERT_SERVER_NOT_YOURS");
      EXPECT_EQ(Ids(servers), std::vector<std::string>{"a/i1"});
    }
  }
}

TEST(ExpertServers, AFreedNameIsAnybodys) {
  ExpertServers servers;
  ExpertServer ann = Server("a", "i1");
  ann.owner = "ann";
  ASSERT_TRUE(servers.TakeHeartbeat(kNow, ann, 1).ok());
  ASSERT_TRUE(*servers.Leave(ann));
  ExpertServer bob = Server("a", "i2");
  bob.owner = "bob";
  EXPECT_TRUE(*servers.TakeHeartbeat(kNow, bob, 1));
}

TEST(ExpertServers, RoutersAreGivenAddressesAlone) {
  ExpertServers servers;
  for (const std::string address : {"unix:/tmp/x", "unix:///tmp/x", "file:///etc/passwd", "dns:a:1", "ipv4:10.0.0.1:1",
                                    "a", "a:", "a:0", "a:70000", "a b:1", "a\n:1", "a,b:1", "[/tmp]:1"}) {
    ExpertServer server = Server("a");
    server.address = address;
    const absl::Status status = servers.TakeHeartbeat(kNow, server, 1).status();
    EXPECT_EQ(ErrorReason(status), "INVALID_EXPERT_SERVER") << address;
    EXPECT_EQ(ErrorField(status), "server.address") << address;
  }
  for (const std::string address : {"node-b:7201", "10.0.0.1:1", "[fd00::1]:7201"}) {
    ExpertServer server = Server("a", address);
    server.address = address;
    EXPECT_TRUE(servers.TakeHeartbeat(kNow, server, 1).ok()) << address;
  }
}

TEST(ExpertServers, NonsenseIsRefused) {
  ExpertServers servers;
  ExpertServer negative = Server("a");
  negative.memory_bytes = -1;
  ExpertServer nowhere = Server("a");
  nowhere.address = "";
  ExpertServer nameless = Server("a");
  nameless.networks = {{.network = {.model = "m", .version = "v1", .digest = ""}}};
  ExpertServer weightless = Server("a");
  weightless.networks = {{.network = {.model = "m", .version = "v1", .digest = "d1"}, .bytes = -1}};
  ExpertServer endless = Server("a");
  endless.memory_bytes = std::numeric_limits<int64_t>::max();
  ExpertServer heavy = weightless;
  heavy.networks[0].bytes = std::numeric_limits<int64_t>::max();
  for (const ExpertServer& server : {Server(""), Server("a", ""), Server(std::string(300, 'x')), negative, nowhere,
                                     nameless, weightless, endless, heavy}) {
    EXPECT_EQ(ErrorReason(servers.TakeHeartbeat(kNow, server, 1).status()), "INVALID_EXPERT_SERVER");
  }
  for (size_t i = 0; i < kMaxServers; ++i) {
    ASSERT_TRUE(servers.TakeHeartbeat(kNow, Server(std::to_string(i)), 1).ok());
  }
  EXPECT_EQ(ErrorReason(servers.TakeHeartbeat(kNow, Server("b"), 1).status()), "TOO_MANY_SERVERS");
}

}  // namespace
}  // namespace atl::serving
