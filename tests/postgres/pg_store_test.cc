// The behaviour that only a PostgreSQL store has: a lease between coordinators, lost answers, and servers that restart,
// are copied, or do not keep what they acknowledge.
#include "coordinator/store/pg_store.h"

#include <atomic>
#include <chrono>
#include <future>
#include <mutex>
#include <thread>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "coordinator/store/migrations.h"
#include "coordinator/store/test_support.h"
#include "gmock/gmock.h"
#include "tests/facility.h"
#include "tests/postgres/pg_server.h"

namespace atl::store {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using testing_postgres::PgServer;

// Far longer than a test, so that no lease expires.
constexpr absl::Duration kLong = absl::Minutes(10);

TEST(PgUriTest, IsTakenApartAndKeepsNoPassword) {
  EXPECT_TRUE(IsPgUri("postgres://h/d"));
  EXPECT_TRUE(IsPgUri("postgresql://h/d"));
  EXPECT_FALSE(IsPgUri("/var/lib/atoll/store.db"));
  const auto target = ParsePgUri("postgres://atoll@db.example:6543/store?sslmode=verify-full");
  ASSERT_TRUE(target.ok()) << target.status();
  EXPECT_EQ(target->name, "postgres://atoll@db.example:6543/store");
  for (const char* uri :
       {"postgres://atoll:hunter2@h/d", "postgres://h/d?password=hunter2", "postgres://h/d?sslpassword=hunter2"}) {
    const absl::Status status = ParsePgUri(uri).status();
    EXPECT_EQ(ErrorReason(status), "STORE_PASSWORD_IN_URI") << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("PGPASSFILE"));
    EXPECT_THAT(std::string(status.message()), Not(HasSubstr("hunter2")));
  }
  const absl::Status broken = ParsePgUri("postgres://a:hunter2@h:port/d?nonsense=1").status();
  EXPECT_EQ(ErrorReason(broken), "STORE_URI_INVALID") << broken;
  EXPECT_THAT(std::string(broken.message()), Not(HasSubstr("hunter2")));
}

TEST(PgSqlTest, ParametersAreNumberedButInQuotes) {
  EXPECT_EQ(NumberParameters("SELECT a FROM t WHERE b = ? AND c = '?' AND d = ?"),
            "SELECT a FROM t WHERE b = $1 AND c = '?' AND d = $2");
}

TEST(PgSqlTest, ErrorsAreNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"53100", "STORE_FULL"},        {"58030", "STORE_IO"},      {"57P01", "STORE_UNREACHABLE"},
      {"08006", "STORE_UNREACHABLE"}, {"57014", "STORE_LOCKED"},  {"40P01", "STORE_LOCKED"},
      {"25006", "STORE_READ_ONLY"},   {"XX001", "STORE_CORRUPT"}, {"XX000", "STORE_ERROR"},
      {"3D000", "STORE_CANNOT_OPEN"}, {"", "STORE_ERROR"},        {"23505", "STORE_ERROR"},
  };
  for (const auto& [state, reason] : cases) EXPECT_EQ(ErrorReason(PgError(state, "doing", "text")), reason) << state;
}

TEST(LeaseTest, WhoMayTakeItAndWhatThatMeans) {
  struct Case {
    LeaseState state;
    bool may;
    bool promoted;
    bool moved;
  };
  const Case cases[] = {
      {{"", false, true, ""}, true, false, false},      // new, or let go of
      {{"b", false, true, "o"}, false, true, false},    // another lives
      {{"b", true, true, "o"}, true, true, false},      // another died
      {{"a", false, true, "o"}, true, false, false},    // this one, started again
      {{"a", false, false, "o"}, true, true, false},    // started again before it had its epoch
      {{"", false, false, "o"}, true, true, false},     // stopped before it had its epoch
      {{"", false, true, "other"}, true, false, true},  // the database was copied
      {{"b", true, false, "other"}, true, true, true},  // copied while another had it
  };
  for (const Case& c : cases) {
    SCOPED_TRACE(c.state.holder + (c.state.expired ? " expired" : " alive"));
    EXPECT_EQ(MayTake(c.state, "a"), c.may);
    EXPECT_EQ(Judge(c.state, "a", "o").promoted, c.promoted);
    EXPECT_EQ(Judge(c.state, "a", "o").moved, c.moved);
  }
}

class PgStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::string missing = testing_postgres::MissingPgServer();
    ATOLL_REQUIRE_FACILITY(missing.empty(), missing);
    uri_ = server().NewDatabase();
  }

  static PgServer& server() { return PgServer::Shared(); }

  // Ends the test process where it cannot be opened.
  std::unique_ptr<PgStore> OpenOrDie(const std::string& holder, OnStoreLost on_lost = nullptr) {
    auto store = PgStore::Open({.uri = uri_, .holder = holder, .lease_duration = kLong, .on_lost = std::move(on_lost)});
    if (!store.ok()) {
      ADD_FAILURE() << store.status();
      std::abort();
    }
    return *std::move(store);
  }

  absl::Status OpenStatus(const std::string& holder) {
    return PgStore::Open({.uri = uri_, .holder = holder, .lease_duration = kLong}).status();
  }

  static absl::Status Insert(Store& store, const std::string& job_id) {
    return store.Write("insert", [&](Transaction& t) { return t.InsertJob(SmallJob(job_id)); });
  }

  // As if its holder had been away for longer than the lease lasts.
  void Expire() { server().Ask(uri_, "UPDATE coordinator_lease SET expires = 0"); }

  // The server ends every connection that a store has.
  void Cut() {
    const std::string connections =
        " FROM pg_stat_activity WHERE application_name = 'atoll-coordinator' AND datname = current_database()";
    server().Ask(uri_, "SELECT pg_terminate_backend(pid)" + connections);
    EXPECT_TRUE(testing_cluster::Await(absl::Seconds(30), [&] {
      return server().Ask(uri_, "SELECT pid" + connections).empty();
    })) << "they are gone";
  }

  std::string uri_;
};

TEST_F(PgStoreTest, OneHasTheLeaseAndTheOtherIsToldWho) {
  auto first = OpenOrDie("host-a");
  const absl::Status status = OpenStatus("host-b");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ErrorReason(status), "STORE_IN_USE") << status;
  EXPECT_THAT(std::string(status.message()), HasSubstr("host-a"));
  first.reset();
  const auto second = OpenOrDie("host-b");
  EXPECT_FALSE(second->promoted()) << "the first let go";
}

TEST_F(PgStoreTest, WhoSleptBeyondTheLeaseCanWriteNothing) {
  std::vector<std::string> lost;
  const auto first = OpenOrDie("host-a", [&](const absl::Status& why) { lost.push_back(ErrorReason(why)); });
  ASSERT_TRUE(first->AdoptEpoch(1).ok());
  ASSERT_TRUE(Insert(*first, "j-1").ok());
  Expire();
  const auto second = OpenOrDie("host-b");
  EXPECT_TRUE(second->promoted());
  EXPECT_EQ(second->store_id(), first->store_id()) << "the store is the same";

  const absl::Status status = Insert(*first, "j-2");
  EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ErrorReason(status), "STORE_SUPERSEDED") << status;
  EXPECT_EQ(ErrorReason(Insert(*first, "j-3")), "STORE_SUPERSEDED");
  EXPECT_THAT(lost, ElementsAre("STORE_SUPERSEDED")) << "said once";
  ASSERT_TRUE(Insert(*second, "j-4").ok());
  const auto jobs = second->UnfinishedJobs();
  ASSERT_TRUE(jobs.ok()) << jobs.status();
  ASSERT_EQ(jobs->size(), 2U);
  EXPECT_EQ((*jobs)[1].job.job_id, "j-4");
}

TEST_F(PgStoreTest, ATransactionThatIsUnderWayEndsBeforeAnotherTakesOver) {
  const auto first = OpenOrDie("host-a");
  ASSERT_TRUE(first->AdoptEpoch(1).ok());
  Expire();
  absl::StatusOr<std::unique_ptr<PgStore>> second = absl::UnknownError("not yet");
  std::thread taker;
  const absl::Status status = first->Write("insert", [&](Transaction& t) {
    taker = std::thread([&] { second = PgStore::Open({.uri = uri_, .holder = "host-b", .lease_duration = kLong}); });
    EXPECT_TRUE(testing_cluster::Await(absl::Seconds(30), [&] {
      return server()
                 .Ask(uri_,
                      "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = "
                      "current_database()")
                 .size() == 1;
    })) << "the taker waits for the row";
    return t.InsertJob(SmallJob("j-1"));
  });
  taker.join();
  EXPECT_TRUE(status.ok()) << status;
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_TRUE((*second)->GetJob("j-1").ok()) << "the new one sees everything that was acknowledged";
  EXPECT_EQ(ErrorReason(Insert(*first, "j-2")), "STORE_SUPERSEDED");
}

TEST_F(PgStoreTest, ATransactionThatIsUnderWayDoesNotHoldUpTheRenewal) {
  const auto store = OpenOrDie("host-a");
  const absl::Status status = store->Write("insert", [&](Transaction& t) {
    EXPECT_THAT(
        server().Ask(uri_,
                     "SET lock_timeout = '30s'; UPDATE coordinator_lease SET expires = expires + 1 WHERE holder "
                     "= 'host-a' RETURNING id"),
        ElementsAre("1"));
    return t.InsertJob(SmallJob("j-1"));
  });
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_TRUE(Insert(*store, "j-2").ok());
}

TEST_F(PgStoreTest, TheServersIsolationDoesNotMatter) {
  server().Ask(
      uri_, "ALTER DATABASE " + PgServer::DatabaseOf(uri_) + " SET default_transaction_isolation = 'repeatable read'");
  const auto store = OpenOrDie("host-a");
  const absl::Status status = store->Write("insert", [&](Transaction& t) {
    server().Ask(uri_, "UPDATE meta SET value = '41' WHERE key = 'revision'");
    const absl::StatusOr<int64_t> revision = t.NextRevision();
    EXPECT_TRUE(revision.ok()) << revision.status();
    return t.InsertJob(SmallJob("j-1"));
  });
  EXPECT_TRUE(status.ok()) << status;
}

TEST_F(PgStoreTest, TheRenewalFindsOutThatAnotherHasTheLease) {
  std::promise<std::string> lost;
  auto store = PgStore::Open({.uri = uri_,
                              .holder = "host-a",
                              .lease_duration = absl::Milliseconds(500),
                              .on_lost = [&](const absl::Status& why) { lost.set_value(ErrorReason(why)); }});
  ASSERT_TRUE(store.ok()) << store.status();
  server().Ask(uri_, "UPDATE coordinator_lease SET fencing = fencing + 1, holder = 'host-b'");
  auto reason = lost.get_future();
  ASSERT_EQ(reason.wait_for(std::chrono::seconds(30)), std::future_status::ready);
  EXPECT_EQ(reason.get(), "STORE_SUPERSEDED");
  store->reset();
  EXPECT_THAT(server().Ask(uri_, "SELECT holder FROM coordinator_lease"), ElementsAre("host-b")) << "not let go of";
}

TEST_F(PgStoreTest, ARenewedLeaseOutlivesItsDuration) {
  auto store = PgStore::Open({.uri = uri_, .holder = "host-a", .lease_duration = absl::Milliseconds(500)});
  ASSERT_TRUE(store.ok()) << store.status();
  const auto expires = [&] { return std::stoll(server().Ask(uri_, "SELECT expires FROM coordinator_lease")[0]); };
  const int64_t first = expires();
  ASSERT_TRUE(testing_cluster::Await(absl::Seconds(30), [&] { return expires() > first + 500'000; }));
  EXPECT_EQ(ErrorReason(OpenStatus("host-b")), "STORE_IN_USE");
}

TEST_F(PgStoreTest, AStandbyWaitsAndTakesOver) {
  auto first = OpenOrDie("host-a");
  ASSERT_TRUE(first->AdoptEpoch(1).ok());
  std::atomic<int> waits{0};
  std::string told;
  absl::StatusOr<std::unique_ptr<PgStore>> second = absl::UnknownError("not yet");
  std::thread standby([&] {
    second =
        PgStore::Open({.uri = uri_, .holder = "host-b", .lease_duration = kLong, .keep_waiting = [&](const auto& who) {
                         told = who;
                         absl::SleepFor(absl::Milliseconds(10));
                         return ++waits < 3'000;
                       }});
  });
  EXPECT_TRUE(testing_cluster::Await(absl::Seconds(30), [&] { return waits > 2; }));
  Expire();
  standby.join();
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(told, "host-a");
  EXPECT_TRUE((*second)->promoted());

  const auto given_up = PgStore::Open(
      {.uri = uri_, .holder = "host-c", .lease_duration = kLong, .keep_waiting = [](const auto&) { return false; }});
  EXPECT_EQ(ErrorReason(given_up.status()), "COORDINATOR_STOPPING");
}

TEST_F(PgStoreTest, AStandbyWaitsUntilTheDatabaseHasFailedOver) {
  auto first = OpenOrDie("host-a");
  ASSERT_TRUE(first->AdoptEpoch(1).ok());
  std::atomic<int> waits{0};
  std::atomic<int> away{0};
  absl::StatusOr<std::unique_ptr<PgStore>> second = absl::UnknownError("not yet");
  std::thread standby([&] {
    second =
        PgStore::Open({.uri = uri_, .holder = "host-b", .lease_duration = kLong, .keep_waiting = [&](const auto& who) {
                         if (who.empty()) ++away;
                         absl::SleepFor(absl::Milliseconds(10));
                         return ++waits < 3'000;
                       }});
  });
  EXPECT_TRUE(testing_cluster::Await(absl::Seconds(30), [&] { return waits > 2; }));
  // As a replica answers: whoever looks may, whoever takes the lease may not.
  const std::string other = server().NewDatabase();
  const std::string alter = "ALTER DATABASE " + PgServer::DatabaseOf(uri_);
  const std::string cut =
      "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'atoll-coordinator' AND datname "
      "= '" +
      PgServer::DatabaseOf(uri_) + "'";
  server().Ask(other, alter + " SET default_transaction_read_only = on");
  server().Ask(other, cut);
  server().Ask(uri_, "BEGIN READ WRITE; UPDATE coordinator_lease SET expires = 0; COMMIT");
  EXPECT_TRUE(testing_cluster::Await(absl::Seconds(30), [&] { return away > 2; }));
  server().Ask(other, alter + " RESET default_transaction_read_only");
  server().Ask(other, cut);
  standby.join();
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_TRUE(Insert(**second, "j-1").ok());
}

TEST(PgDatabaseTest, AnotherServerThanTheExpectedOneIsRefused) {
  const std::string missing = testing_postgres::MissingPgServer();
  ATOLL_REQUIRE_FACILITY(missing.empty(), missing);
  const auto target = ParsePgUri(PgServer::Shared().NewDatabase());
  ASSERT_TRUE(target.ok()) << target.status();
  const auto database = PgDatabase::Unconnected(*target, kLong);
  EXPECT_EQ(database->origin(), "");
  EXPECT_TRUE(database->Execute("SELECT 1").ok());
  EXPECT_NE(database->origin(), "");
  const auto other = PgDatabase::Unconnected(*target, kLong);
  other->ExpectOrigin(database->origin());
  EXPECT_TRUE(other->Execute("SELECT 1").ok());
  const auto replaced = PgDatabase::Unconnected(*target, kLong);
  replaced->ExpectOrigin("1/2/00000003");
  EXPECT_EQ(ErrorReason(replaced->Execute("SELECT 1")), "STORE_SUPERSEDED");
}

TEST_F(PgStoreTest, APromotedStoreStaysSoUntilItHasItsEpoch) {
  { ASSERT_TRUE(OpenOrDie("host-a")->AdoptEpoch(1).ok()); }
  server().Ask(uri_, "UPDATE coordinator_lease SET holder = 'host-x'");
  Expire();
  { EXPECT_TRUE(OpenOrDie("host-a")->promoted()); }
  {
    const auto store = OpenOrDie("host-a");
    EXPECT_TRUE(store->promoted()) << "it ended before it had an epoch";
    ASSERT_TRUE(store->AdoptEpoch(2).ok());
    EXPECT_FALSE(store->promoted());
  }
  EXPECT_FALSE(OpenOrDie("host-a")->promoted());
}

TEST_F(PgStoreTest, OfManyThatOpenAnEmptyDatabaseOneGetsIt) {
  constexpr int kMany = 8;
  std::vector<absl::StatusOr<std::unique_ptr<PgStore>>> stores(kMany);
  std::vector<std::thread> threads;
  for (int i = 0; i < kMany; ++i) {
    threads.emplace_back([&, i] {
      stores[i] = PgStore::Open({.uri = uri_, .holder = "host-" + std::to_string(i), .lease_duration = kLong});
    });
  }
  for (std::thread& thread : threads) thread.join();
  int opened = 0;
  for (const auto& store : stores) {
    if (store.ok()) {
      ++opened;
    } else {
      EXPECT_EQ(ErrorReason(store.status()), "STORE_IN_USE") << store.status();
    }
  }
  EXPECT_EQ(opened, 1);
}

TEST_F(PgStoreTest, ACommitWhoseAnswerIsLostIsNeitherDoneNorFailed) {
  std::vector<std::string> lost;
  const auto store = OpenOrDie("host-a", [&](const absl::Status& why) { lost.push_back(ErrorReason(why)); });
  // The server ends the connection in the middle of COMMIT.
  server().Ask(uri_,
               "CREATE FUNCTION cut() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN PERFORM "
               "pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(5); RETURN NULL; END $$; CREATE CONSTRAINT "
               "TRIGGER cut AFTER INSERT ON jobs DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION cut()");
  const absl::Status status = Insert(*store, "j-1");
  EXPECT_EQ(status.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReason(status), "STORE_OUTCOME_UNKNOWN") << status;
  EXPECT_THAT(lost, ElementsAre("STORE_OUTCOME_UNKNOWN"));
}

TEST_F(PgStoreTest, AConnectionThatIsCutBetweenTransactionsIsMadeAnew) {
  const auto store = OpenOrDie("host-a");
  ASSERT_TRUE(Insert(*store, "j-1").ok());
  Cut();
  EXPECT_TRUE(Insert(*store, "j-2").ok()) << "nothing was under way, so nothing is in doubt";
  Cut();
  const auto jobs = store->UnfinishedJobs();
  ASSERT_TRUE(jobs.ok()) << jobs.status();
  EXPECT_EQ(jobs->size(), 2U);
  // In a body it is an error, and the next transaction is well.
  const absl::Status status = store->Write("insert", [&](Transaction& t) {
    Cut();
    return t.InsertJob(SmallJob("j-3"));
  });
  EXPECT_EQ(ErrorReason(status), "STORE_UNREACHABLE") << status;
  EXPECT_TRUE(Insert(*store, "j-3").ok());
}

TEST_F(PgStoreTest, ACopyOfADatabaseIsARestoredStore) {
  std::string store_id;
  {
    const auto store = OpenOrDie("host-a");
    ASSERT_TRUE(store->AdoptEpoch(1).ok());
    ASSERT_TRUE(Insert(*store, "j-1").ok());
    store_id = store->store_id();
  }
  uri_ = server().NewDatabase(PgServer::DatabaseOf(uri_));
  {
    const auto copy = OpenOrDie("host-a");
    EXPECT_TRUE(copy->restored());
    EXPECT_NE(copy->store_id(), store_id);
    EXPECT_TRUE(copy->GetJob("j-1").ok());
    ASSERT_TRUE(copy->AdoptEpoch(2).ok());
    EXPECT_TRUE(copy->collection_held());
  }
  const auto again = OpenOrDie("host-a");
  EXPECT_FALSE(again->restored()) << "it is what it is now";
  EXPECT_TRUE(again->collection_held());
}

TEST_F(PgStoreTest, AServerThatLosesWhatItAcknowledgesIsRefused) {
  const std::string set = "ALTER DATABASE " + PgServer::DatabaseOf(uri_) + " SET synchronous_commit = ";
  for (const char* value : {"off", "local", "remote_write"}) {
    server().Ask(uri_, set + value);
    const absl::Status status = OpenStatus("host-a");
    EXPECT_EQ(status.code(), absl::StatusCode::kFailedPrecondition);
    EXPECT_EQ(ErrorReason(status), "STORE_NOT_DURABLE") << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string("synchronous_commit is ") + value));
  }
  for (const char* value : {"on", "remote_apply"}) {
    server().Ask(uri_, set + value);
    EXPECT_TRUE(OpenStatus("host-a").ok()) << value;
  }
}

TEST_F(PgStoreTest, AServerThatWasRefusedIsNotWrittenToByTheNextCall) {
  const auto store = OpenOrDie("host-a");
  const std::string alter = "ALTER DATABASE " + PgServer::DatabaseOf(uri_);
  server().Ask(uri_, alter + " SET synchronous_commit = off");
  Cut();
  for (const char* id : {"j-1", "j-2"}) {
    const absl::Status status = Insert(*store, id);
    EXPECT_EQ(ErrorReason(status), "STORE_NOT_DURABLE") << id << ": " << status;
    EXPECT_EQ(ErrorReason(store->UnfinishedJobs().status()), "STORE_NOT_DURABLE") << "nor is it read";
  }
  server().Ask(uri_, alter + " RESET synchronous_commit");
  EXPECT_TRUE(Insert(*store, "j-3").ok());
  const auto jobs = store->UnfinishedJobs();
  ASSERT_TRUE(jobs.ok()) << jobs.status();
  EXPECT_EQ(jobs->size(), 1U);
}

TEST_F(PgStoreTest, AnotherProgramsDatabaseIsLeftAlone) {
  server().Ask(uri_, "CREATE TABLE recipes (name TEXT)");
  EXPECT_EQ(ErrorReason(OpenStatus("host-a")), "STORE_CORRUPT");
  EXPECT_THAT(server().Ask(uri_, "SELECT tablename FROM pg_tables WHERE schemaname = 'public'"),
              ElementsAre("recipes"));
}

TEST_F(PgStoreTest, ANewerSchemaIsRefusedUntouched) {
  { OpenOrDie("host-a"); }
  server().Ask(uri_, "INSERT INTO schema_version VALUES (99, 0)");
  const auto fencing = server().Ask(uri_, "SELECT fencing FROM coordinator_lease");
  EXPECT_EQ(ErrorReason(OpenStatus("host-a")), "STORE_TOO_NEW");
  EXPECT_EQ(server().Ask(uri_, "SELECT fencing FROM coordinator_lease"), fencing);
}

TEST_F(PgStoreTest, ServersThatAreNotThereAndDatabasesThatAreNot) {
  const std::string server_uri = uri_;
  uri_ = "postgres://atoll@/store?host=/tmp/atoll_no_such_folder";
  EXPECT_EQ(ErrorReason(OpenStatus("host-a")), "STORE_UNREACHABLE");
  uri_ = server_uri;
  uri_.replace(uri_.find(PgServer::DatabaseOf(uri_)), PgServer::DatabaseOf(uri_).size(), "missing");
  const absl::Status status = OpenStatus("host-a");
  EXPECT_THAT(std::string(status.message()), HasSubstr("database \"missing\" does not exist"));
}

TEST_F(PgStoreTest, TextThatNoDatabaseOfItsKindCanKeepIsRefused) {
  const auto store = OpenOrDie("host-a");
  leases::Island island{std::string("a\0b", 3), 1, "start", {}, {}, 0};
  const absl::Status status = store->Write("register", [&](Transaction& t) { return t.PutIsland(island, kNow); });
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ErrorReason(status), "TEXT_NOT_STORABLE") << status;
  EXPECT_THAT(store->Islands().value(), IsEmpty());
  EXPECT_TRUE(Insert(*store, "j-1").ok());
}

// A server of its own: others must not notice.
TEST(PgServerTest, WhatWasAcknowledgedIsThereAfterTheServerWasKilled) {
  const std::string missing = testing_postgres::MissingPgServer();
  ATOLL_REQUIRE_FACILITY(missing.empty(), missing);
  PgServer server;
  std::atomic<bool> lost{false};
  auto store = PgStore::Open(
      {.uri = server.NewDatabase(), .holder = "host-a", .lease_duration = kLong, .on_lost = [&](const auto&) {
         lost = true;
       }});
  ASSERT_TRUE(store.ok()) << store.status();
  const auto insert = [&](const std::string& id) {
    return (*store)->Write("insert", [&](Transaction& t) { return t.InsertJob(SmallJob(id)); });
  };
  ASSERT_TRUE(insert("j-1").ok());
  server.Kill();
  const absl::Status away = insert("j-2");
  EXPECT_EQ(away.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReason(away), "STORE_UNREACHABLE") << away;
  server.Start();
  ASSERT_TRUE(insert("j-3").ok());
  const auto jobs = (*store)->UnfinishedJobs();
  ASSERT_TRUE(jobs.ok()) << jobs.status();
  ASSERT_EQ(jobs->size(), 2U);
  EXPECT_EQ((*jobs)[1].job.job_id, "j-3");
  EXPECT_FALSE(lost);
}

TEST(PgServerTest, ASessionKeepsTheDurabilityThatItWasCheckedFor) {
  const std::string missing = testing_postgres::MissingPgServer();
  ATOLL_REQUIRE_FACILITY(missing.empty(), missing);
  PgServer server;
  const std::string uri = server.NewDatabase();
  const auto target = ParsePgUri(uri);
  ASSERT_TRUE(target.ok()) << target.status();
  const auto database = PgDatabase::Connect(*target, kLong);
  ASSERT_TRUE(database.ok()) << database.status();
  server.Ask(uri, "ALTER SYSTEM SET synchronous_commit = off");
  server.Ask(uri, "SELECT pg_reload_conf()");
  const std::string show = "SHOW synchronous_commit";
  ASSERT_TRUE(testing_cluster::Await(absl::Seconds(30), [&] { return server.Ask(uri, show).at(0) == "off"; }));
  Statement row = (*database)->Prepare(show);
  const auto found = row.Step();
  ASSERT_TRUE(found.ok() && *found) << found.status();
  EXPECT_EQ(row.Text(), "on");
}

TEST(PgServerTest, OneThatHangsIsGivenUp) {
  const std::string missing = testing_postgres::MissingPgServer();
  ATOLL_REQUIRE_FACILITY(missing.empty(), missing);
  PgServer server;
  std::promise<std::string> lost;
  auto store = PgStore::Open({.uri = server.NewDatabase(),
                              .holder = "host-a",
                              .lease_duration = absl::Seconds(2),
                              .on_lost = [&](const absl::Status& why) { lost.set_value(ErrorReason(why)); }});
  ASSERT_TRUE(store.ok()) << store.status();
  const auto insert = [&](const std::string& id) {
    return (*store)->Write("insert", [&](Transaction& t) { return t.InsertJob(SmallJob(id)); });
  };
  ASSERT_TRUE(testing_cluster::Await(absl::Seconds(60), [&] { return insert("j-1").ok(); }));
  server.Pause();
  const absl::Status hung = insert("j-2");
  EXPECT_EQ(hung.code(), absl::StatusCode::kUnavailable);
  EXPECT_EQ(ErrorReason(hung), "STORE_UNREACHABLE") << hung;
  auto reason = lost.get_future();
  ASSERT_EQ(reason.wait_for(std::chrono::seconds(60)), std::future_status::ready)
      << "so is the connection that renews the lease";
  EXPECT_EQ(reason.get(), "STORE_UNREACHABLE");
  server.Resume();
  EXPECT_TRUE(testing_cluster::Await(absl::Seconds(60), [&] { return insert("j-3").ok(); }));
  EXPECT_EQ((*store)->GetJob("j-2").status().code(), absl::StatusCode::kNotFound);
}

TEST(PgServerTest, ACommitThatWaitsForAReplicaThatIsAwayIsNeitherDoneNorFailed) {
  const std::string missing = testing_postgres::MissingPgServer();
  ATOLL_REQUIRE_FACILITY(missing.empty(), missing);
  PgServer server;
  const std::string uri = server.NewDatabase();
  std::mutex mutex;
  std::vector<std::string> lost;
  auto store = PgStore::Open(
      {.uri = uri, .holder = "host-a", .lease_duration = absl::Seconds(2), .on_lost = [&](const absl::Status& why) {
         const std::lock_guard lock(mutex);
         lost.push_back(ErrorReason(why));
       }});
  ASSERT_TRUE(store.ok()) << store.status();
  server.Ask(uri, "ALTER SYSTEM SET synchronous_standby_names = 'replica'");
  server.Ask(uri, "SELECT pg_reload_conf()");
  // The server's processes learn it one after the other.
  int jobs = 0;
  absl::Status status;
  EXPECT_TRUE(testing_cluster::Await(absl::Seconds(60), [&] {
    status =
        (*store)->Write("insert", [&](Transaction& t) { return t.InsertJob(SmallJob("j-" + std::to_string(++jobs))); });
    return ErrorReason(status) == "STORE_OUTCOME_UNKNOWN";
  })) << status;
  const std::lock_guard lock(mutex);
  EXPECT_THAT(lost, Contains("STORE_OUTCOME_UNKNOWN"));
}

}  // namespace
}  // namespace atl::store
