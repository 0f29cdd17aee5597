// Random stories over the coordinator's core: islands that come, go, stall and repeat themselves, and a coordinator
// that dies at any time. Whatever happens, the promises to islands hold.
#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>
#include <set>
#include <sstream>

#include "gtest/gtest.h"
#include "tests/scenario/coordinator_script.h"

namespace atl::coordinator {
namespace {

constexpr int kSteps = 150;

// The answers that islands received and may rely on.
struct Promises {
  struct Holder {
    std::string process;
    int64_t attempt = 0;
  };
  std::map<std::string, Holder> newest;           // by task
  std::map<std::string, int64_t> committed_step;  // by task
  std::map<std::string, int64_t> completed_by;    // by task: the attempt
};

class RandomStory {
 public:
  RandomStory(uint64_t seed, const std::string& folder) : random_(seed), script_(folder) {
    Do("job j experts=2 budget=1000");
    for (const char* process : {"a", "b", "c"}) Do(std::string("register ") + process);
  }

  void Step() {
    const std::string process(1, static_cast<char>('a' + Below(3)));
    switch (Below(14)) {
      case 0:
        return void(Do("advance " + std::to_string(1 + Below(15)) + "s"));
      case 1:
        return Restart();
      case 2:
        return void(Do("heartbeat " + process));
      case 12:
        return void(Do("register " + process + " start=" + process + std::to_string(++starts_)));
      case 13:
        return Rollback(process);
      case 3:
        return End("release", process);
      case 4:
        return End("fail", process);
      case 5:
      case 6:
        return Complete(process);
      case 7:
      case 8:
        return Commit(process);
      default:
        return Claim(process);
    }
  }

  void CheckPromises() {
    for (const auto& [task, step] : promises_.committed_step) {
      EXPECT_GE(Number(script_.Do("task " + task), "step="), step) << task << " lost a commit" << trace_.str();
    }
    for (const auto& [task, attempt] : promises_.completed_by) {
      const std::string found = script_.Do("task " + task);
      EXPECT_EQ(found.substr(0, found.find(' ')), "SUCCEEDED") << task << trace_.str();
      EXPECT_EQ(Number(found, "attempt="), attempt) << task << trace_.str();
    }
  }

  // One island works alone until the job has ended.
  void Finish() {
    Do("advance 2m");
    Do("register z");
    for (int task = 0; task < 50 && script_.Do("job j") == "RUNNING"; ++task) {
      if (Claim("z"), holding_["z"].empty()) Do("advance 2m");
      Commit("z");
      Complete("z");
    }
    EXPECT_EQ(script_.Do("job j"), "SUCCEEDED") << trace_.str();
    EXPECT_EQ(script_.Do("serving digits"), "j generation=1") << trace_.str();
  }

 private:
  int64_t Below(int64_t bound) { return static_cast<int64_t>(random_() % static_cast<uint64_t>(bound)); }

  std::string Do(const std::string& line) {
    std::string found = script_.Do(line);
    trace_ << "\n  " << line << " -> " << found;
    return found;
  }

  static int64_t Number(const std::string& text, const std::string& name) {
    const size_t at = text.find(name);
    return at == std::string::npos ? 0 : std::atoll(text.c_str() + at + name.size());
  }

  void Restart() { Do(Below(8) == 0 ? "restore" : "restart"); }

  void Claim(const std::string& process) {
    const std::string found = Do("claim " + process);
    const size_t space = found.find(" attempt=");
    if (space == std::string::npos) return;
    const std::string task = found.substr(0, space);
    const int64_t attempt = Number(found, "attempt=");
    Promises::Holder& newest = promises_.newest[task];
    if (attempt == newest.attempt) {
      EXPECT_EQ(process, newest.process) << "one attempt of " << task << " for two processes" << trace_.str();
    } else {
      EXPECT_GT(attempt, newest.attempt) << "attempts of " << task << " only grow" << trace_.str();
    }
    EXPECT_FALSE(promises_.completed_by.contains(task)) << task << " was finished already" << trace_.str();
    EXPECT_GE(Number(found, "resume="), promises_.committed_step[task]) << trace_.str();
    newest = {process, attempt};
    holding_[process] = task;
    attempt_[process] = attempt;
  }

  // Whether the process's token is of the newest attempt of its task.
  bool IsNewest(const std::string& process) {
    const Promises::Holder& newest = promises_.newest[holding_[process]];
    return newest.process == process && newest.attempt == attempt_[process];
  }

  void Commit(const std::string& process) {
    const std::string& task = holding_[process];
    if (task.empty()) return;
    const int64_t step = promises_.committed_step[task] + 1;
    const std::string found = Do("commit " + process + " step=" + std::to_string(step));
    if (found != "ok" && found.rfind("superseded", 0) != 0) return;
    EXPECT_TRUE(IsNewest(process)) << process << " committed with a stale token" << trace_.str();
    promises_.committed_step[task] = step;
  }

  // Training diverged in the step after the last commit, or in that one; or the checkpoint is damaged.
  void Rollback(const std::string& process) {
    const std::string& task = holding_[process];
    const int64_t step = promises_.committed_step[task];
    if (task.find("train") == std::string::npos || rollbacks_[task] == 2) return;
    const std::string bad = "rollback " + process + " bad=" + std::to_string(step + Below(2));
    const std::string found = Do(Below(2) == 0 ? bad : bad + " through=" + std::to_string(step + 1));
    if (found.rfind("to=", 0) != 0) return;
    // A repeated one is answered as the first was, and changes nothing.
    if (!rolled_back_.insert({task, attempt_[process]}).second) return;
    EXPECT_TRUE(IsNewest(process)) << process << " rolled back with a stale token" << trace_.str();
    EXPECT_LE(Number(found, "to="), step) << trace_.str();
    promises_.committed_step[task] = Number(found, "to=");
    if (found.find("skip=") != std::string::npos) ++rollbacks_[task];
  }

  void Complete(const std::string& process) {
    const std::string& task = holding_[process];
    if (task.empty() || Do("complete " + process) != "ok") return;
    const auto [it, first] = promises_.completed_by.try_emplace(task, attempt_[process]);
    EXPECT_EQ(it->second, attempt_[process]) << task << " was finished by two attempts" << trace_.str();
    EXPECT_TRUE(!first || IsNewest(process)) << process << " completed with a stale token" << trace_.str();
  }

  void End(const std::string& verb, const std::string& process) {
    if (!holding_[process].empty()) Do(verb + " " + process);
  }

  std::mt19937_64 random_;
  int starts_ = 0;
  CoordinatorScript script_;
  Promises promises_;
  std::map<std::string, std::string> holding_;  // by process: the task of its last grant
  std::map<std::string, int64_t> attempt_;
  std::map<std::string, int> rollbacks_;                   // by task, that skip data
  std::set<std::pair<std::string, int64_t>> rolled_back_;  // task, attempt
  std::ostringstream trace_;
};

class CoordinatorRandomTest : public testing::TestWithParam<uint64_t> {};

TEST_P(CoordinatorRandomTest, PromisesHoldWhateverHappens) {
  SCOPED_TRACE("seed " + std::to_string(GetParam()));
  std::string folder = testing::TempDir() + "atoll_random_XXXXXX";
  ASSERT_NE(mkdtemp(folder.data()), nullptr);
  {
    RandomStory story(GetParam(), folder);
    for (int step = 0; step < kSteps && !HasFailure(); ++step) {
      story.Step();
      story.CheckPromises();
    }
    if (!HasFailure()) story.Finish();
  }
  std::filesystem::remove_all(folder);
}

INSTANTIATE_TEST_SUITE_P(Seeds, CoordinatorRandomTest, testing::Range(uint64_t{1}, uint64_t{9}));

}  // namespace
}  // namespace atl::coordinator
