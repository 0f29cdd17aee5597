// A thousand races for one task: its holder is paused beyond its lease, another island takes over, and the first one
// wakes up and continues as if nothing had happened. No write of a stale holder is accepted.
#include <array>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <sstream>
#include <string>

#include "gtest/gtest.h"
#include "tests/scenario/coordinator_script.h"

namespace atl::coordinator {
namespace {

constexpr int kRaces = 1000;
constexpr const char* kTask = "j/train_expert-0";
constexpr std::array kProcesses = {"a", "b", "c"};

class LeaseRaces {
 public:
  LeaseRaces(uint64_t seed, const std::string& folder) : random_(seed), script_(folder) {
    Do("job j budget=1000000 keep=2");
    for (const char* process : kProcesses) Do(std::string("register ") + process);
    for (int task = 0; task < 10; ++task) {
      if (Do("claim a").rfind(kTask, 0) == 0) break;
      Do("complete a");
    }
    holder_ = "a";
    // No other task is left to claim.
    Do("claim b");
    Do("commit b step=1");
    Do("complete b");
    EXPECT_EQ(script_.Do("task j/train_router").rfind("SUCCEEDED", 0), 0u) << Trace();
    EXPECT_EQ(script_.Do(std::string("task ") + kTask).rfind("LEASED attempt=1 ", 0), 0u) << Trace();
  }

  void Race() {
    trace_.str("");
    if (Below(2) == 0) Write(holder_);
    const std::string paused = holder_;
    std::string taker = paused;
    while (taker == paused) taker = kProcesses[Below(kProcesses.size())];
    // Shorter pauses than the lease leave the task with its holder; the longest outlive the membership too.
    Do("advance " + std::to_string(1 + Below(40)) + "s");
    if (Below(8) == 0) Do("restart");
    Renew(taker);
    Claim(taker);
    // Both continue, in any order.
    for (int write = 0; write < 4; ++write) {
      Write(Below(2) == 0 ? paused : taker);
      if (::testing::Test::HasFailure()) return;
    }
    // A process that does not hold the lease sometimes registers as a restarted process of its island.
    for (const char* process : kProcesses) {
      if (holder_ != process && Below(4) == 0) {
        Do(std::string("register ") + process + " start=" + process + std::to_string(++starts_));
      }
    }
    CheckStore();
  }

  int64_t taken_over() const { return taken_over_; }
  int64_t refused() const { return refused_; }

 private:
  int64_t Below(int64_t bound) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(bound)); }
  std::string Trace() const { return trace_.str(); }

  std::string Do(const std::string& line) {
    std::string found = script_.Do(line);
    trace_ << "\n  " << line << " -> " << found;
    return found;
  }

  static int64_t Number(const std::string& text, const std::string& name) {
    const size_t at = text.find(name);
    return at == std::string::npos ? 0 : std::atoll(text.c_str() + at + name.size());
  }

  void Renew(const std::string& process) {
    if (Do("heartbeat " + process) == "ok") return;
    Do("register " + process + " start=" + process + std::to_string(++starts_));
  }

  void Claim(const std::string& process) {
    const std::string found = Do("claim " + process);
    if (found.rfind(kTask, 0) != 0) return;
    const int64_t attempt = Number(found, "attempt=");
    if (attempt != attempt_) {
      EXPECT_GT(attempt, attempt_) << "attempts only grow" << Trace();
      ++taken_over_;
    } else {
      EXPECT_EQ(process, holder_) << "one attempt for two processes" << Trace();
    }
    EXPECT_EQ(Number(found, "resume="), committed_) << "a grant resumes from the last commit" << Trace();
    attempt_ = attempt;
    holder_ = process;
  }

  // Makes a call that a holder may make, except a successful completion, so that the races continue.
  void Write(const std::string& process) {
    switch (Below(8)) {
      case 0:
        return void(Do("heartbeat " + process));
      case 1:
        return End("release", process);
      case 2:
        return End("fail", process);
      default:
        return Commit(process);
    }
  }

  void Commit(const std::string& process) {
    const std::string found = Do("commit " + process + " step=" + std::to_string(committed_ + 1));
    if (found == "ok" || found.rfind("superseded", 0) == 0) {
      EXPECT_EQ(process, holder_) << "a stale commit was accepted" << Trace();
      ++committed_;
    } else {
      ++refused_;
      EXPECT_NE(process, holder_) << "the holder's commit was refused" << Trace();
    }
  }

  void End(const std::string& verb, const std::string& process) {
    if (Do(verb + " " + process) != "ok") return void(++refused_);
    // Ending twice is no error and changes nothing; CheckStore sees whether it did.
    if (process != holder_) return;
    holder_.clear();
    // The next holder is the first process to claim.
    std::string next = kProcesses[Below(kProcesses.size())];
    for (int tries = 0; tries < 20 && holder_.empty(); ++tries) {
      Renew(next);
      Claim(next);
      if (holder_.empty()) Do("advance 60s");
    }
  }

  void CheckStore() {
    const std::string found = Do(std::string("task ") + kTask);
    EXPECT_EQ(Number(found, "attempt="), attempt_) << "an attempt that nobody was told of" << Trace();
    EXPECT_EQ(Number(found, "step="), committed_) << "a commit that was not acknowledged, or one lost" << Trace();
  }

  std::mt19937_64 random_;
  CoordinatorScript script_;
  std::ostringstream trace_;  // of this race
  std::string holder_;        // of the newest attempt
  int64_t attempt_ = 1;
  int64_t committed_ = 0;
  int starts_ = 0;
  int64_t taken_over_ = 0;
  int64_t refused_ = 0;
};

TEST(LeaseRaceTest, NoStaleHolderWrites) {
  const uint64_t seed = 20261122;
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::string folder = testing::TempDir() + "atoll_races_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  {
    LeaseRaces races(seed, folder);
    for (int race = 0; race < kRaces && !HasFailure(); ++race) races.Race();
    // Without takeovers and rejected writes there would have been no races.
    EXPECT_GE(races.taken_over(), kRaces / 4);
    EXPECT_GE(races.refused(), kRaces / 4);
    RecordProperty("taken_over", static_cast<int>(races.taken_over()));
    RecordProperty("refused", static_cast<int>(races.refused()));
    printf("%d races: %lld times another took over, %lld writes of stale holders refused\n", kRaces,
           static_cast<long long>(races.taken_over()), static_cast<long long>(races.refused()));
  }
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace atl::coordinator
