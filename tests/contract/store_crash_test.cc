// A child process writes and is killed at a named point; what it acknowledged must be there afterwards.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>

#include "common/base/failpoint.h"
#include "tests/contract/store_contract.h"

namespace atl::store {
namespace {

constexpr int kJobs = 5;

// Writes kJobs jobs, telling each acknowledged one through `acknowledged`; dies by SIGKILL at the `hit`-th time that
// `point` is reached.
[[noreturn]] void WriteUntilKilled(const std::string& where, const std::string& point, int hit, int acknowledged) {
  if (!SetFailpoints(point + "=kill@" + std::to_string(hit)).ok()) _exit(1);
  const auto store = OpenStore(where);
  if (!store.ok()) _exit(2);
  for (char i = 1; i <= kJobs; ++i) {
    const auto status =
        (*store)->Write("insert", [&](Transaction& t) { return t.InsertJob(SmallJob("j-" + std::to_string(i))); });
    if (!status.ok() || write(acknowledged, &i, 1) != 1) _exit(3);
  }
  _exit(0);
}

class StoreCrashTest : public testing::TestWithParam<std::tuple<StoreKind, std::string, int>> {};

TEST_P(StoreCrashTest, NothingAcknowledgedIsLostAndNothingIsHalfThere) {
  const auto& [kind, point, hit] = GetParam();
  const std::string missing = kind == StoreKind::kPostgres ? testing_postgres::MissingPgServer() : "";
  ATOLL_REQUIRE_FACILITY(missing.empty(), missing);
  TemporaryFolder folder;
  const std::string where = NewStore(kind, folder);
  int pipe_ends[2];
  ASSERT_EQ(pipe(pipe_ends), 0);
  const pid_t child = fork();
  if (child == 0) WriteUntilKilled(where, point, hit, pipe_ends[1]);
  close(pipe_ends[1]);
  int acknowledged = 0;
  for (char job = 0; read(pipe_ends[0], &job, 1) == 1;) acknowledged = job;
  close(pipe_ends[0]);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << status;
  EXPECT_EQ(acknowledged, hit - 1);

  const auto store = OpenStore(where);
  ASSERT_TRUE(store.ok()) << store.status();
  const auto jobs = (*store)->UnfinishedJobs();
  ASSERT_TRUE(jobs.ok()) << jobs.status();
  const size_t durable = point == "store.insert.after_commit" ? hit : hit - 1;
  ASSERT_EQ(jobs->size(), durable);
  for (size_t i = 0; i < durable; ++i) EXPECT_EQ((*jobs)[i], SmallJob("j-" + std::to_string(i + 1)));
}

INSTANTIATE_TEST_SUITE_P(EveryPoint, StoreCrashTest,
                         testing::Combine(testing::Values(StoreKind::kSqlite, StoreKind::kPostgres),
                                          testing::Values("store.insert.before_commit", "store.insert.after_commit"),
                                          testing::Values(1, 3, kJobs)));

}  // namespace
}  // namespace atl::store
