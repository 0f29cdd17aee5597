// Every durable step of a coordinator, a leader and a rank is hit by SIGKILL, an error and a delay while small jobs
// train: jobs succeed, no invariant is violated, and the weights are those of a run without faults.
//
// In CTest every place is hit once, by one of the three. ATOLL_FAILPOINT_REPEATS=N (tests/failpoints.sh) hits each by
// all three, N times; ATOLL_FAILPOINT_SEED makes their order another one, and ATOLL_FAILPOINT_PLACES=REGEX leaves out
// the places in whose names nothing fits.
#include <sys/wait.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <random>
#include <regex>
#include <set>

#include "absl/strings/numbers.h"
#include "common/rpc/channel.h"
#include "common/storage/testing.h"
#include "common/wire/spec_wire.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "gtest/gtest.h"
#include "tests/invariants/invariants.h"
#include "tests/multiproc/cluster.h"
#include "tests/multiproc/coordinator_process.h"

namespace atl::testing_cluster {
namespace {

namespace invariants = testing_invariants;
namespace pb = atlpb::job::v1;

enum class Role { kCoordinator, kLeader, kRank };
constexpr Role kRoles[] = {Role::kCoordinator, Role::kLeader, Role::kRank};
constexpr const char* kActions[] = {"kill", "delay", "error"};
constexpr size_t kHarmless = 2;  // of them: no result is another
// The limits on faults per start of a process; with more, jobs would never reach the places at their end. When at most
// half of the kinds are left, the limits are three times as high: a job reaches their places only once or twice.
constexpr size_t kKillsPerLife = 1;
constexpr size_t kOthersPerLife = 3;
constexpr size_t kTimesAsMany = 3;
// A process is restarted with other faults after this time if none of its faults strikes any more. Actions of other
// processes that happen only at its start, such as its registration, then repeat.
constexpr absl::Duration kLongestLife = absl::Seconds(10);
constexpr absl::Duration kPatience = absl::Minutes(3);
// Then another cluster goes on: collection and the check of invariants look at every file of the store, again and
// again.
constexpr int kJobsPerCluster = 100;

const char* NameOf(Role role) {
  return role == Role::kCoordinator ? "coordinator" : role == Role::kLeader ? "leader" : "rank";
}

// Whether the faults that struck in this life of a process explain its end: minus the signal, or the exit code. After
// an error that is a code that the program documents for errors, so a signal of the process's own, as of abort(), is
// never explained.
bool IsExplained(Role role, int end, const std::set<std::string>& struck) {
  if (end == -SIGKILL) return struck.contains("kill");
  // 3: the coordinator's transaction is in doubt, or another took its place.
  const bool documented = end == 1 || (end == 3 && role == Role::kCoordinator);
  return documented && struck.contains("error");
}

// Which faults must still strike, and which of them a process gets at its next start.
class FaultList {
 public:
  // `repeats` 0: each place once, by one action. The seed says which faults meet in one life of a process.
  FaultList(int repeats, uint32_t seed, const std::string& places)
      : repeats_(repeats), random_(seed), wanted_(places) {}

  void AddPlace(Role role, const std::string& place) {
    if (!std::regex_search(place, wanted_) || !places_.insert({role, place}).second) return;
    // An error there is a loss that is no number: training goes back and leaves samples out, as rollback_test shows,
    // and ends with other weights.
    const size_t actions = place == "trainer.loss" ? kHarmless : std::size(kActions);
    if (repeats_ == 0) {
      left_[{role, place, kActions[places_.size() % actions]}] = 1;
      return;
    }
    for (size_t i = 0; i < actions; ++i) left_[{role, place, kActions[i]}] = repeats_;
  }

  // Places that are found from now on are those that only faults lead to: they are hit as often as they come.
  void Close() { required_ = places_; }

  // The text for ATOLL_FAILPOINTS: some kills and some others, at random. Were those first that are left most often,
  // the places that are seldom reached would keep the others waiting.
  std::string Next(Role role) {
    if (repeats_ > 0 && done()) return "";
    std::vector<const Fault*> waiting;
    size_t kinds = 0;
    // A role that is done goes on in the long form: others reach some places only when it fails.
    const bool all = repeats_ > 0 && !HasLeft(role);
    for (const auto& [fault, left] : left_) {
      if (fault.role != role) continue;
      ++kinds;
      if (all || left > 0) waiting.push_back(&fault);
    }
    std::shuffle(waiting.begin(), waiting.end(), random_);
    // It fails now and then for the sake of the others, who are to come forward meanwhile.
    if (all) waiting.resize(std::min<size_t>(waiting.size(), 1));
    const size_t times = repeats_ > 0 && 2 * waiting.size() <= kinds ? kTimesAsMany : 1;
    std::string text;
    size_t kills = 0;
    size_t others = 0;
    for (const Fault* fault : waiting) {
      const bool kill = fault->action == "kill";
      if (kill ? kills == times * kKillsPerLife : others == times * kOthersPerLife) continue;
      ++(kill ? kills : others);
      const char* action = fault->action == "delay" ? "delay:300ms" : fault->action.c_str();
      // Seldom at the second time: some places are reached once in a life.
      const int at = repeats_ > 0 && random_() % 4 == 0 ? 2 : 1;
      text += fmt::format("{}={}@{};", fault->place, action, at);
    }
    return text;
  }

  // A line of ATOLL_FAILPOINT_LIST: a place that was reached, or "place=action".
  void Read(Role role, const std::string& line) {
    const size_t equals = line.find('=');
    if (equals == std::string::npos) {
      if (required_.empty() || repeats_ > 0) AddPlace(role, line);
      return;
    }
    const auto it = left_.find({role, line.substr(0, equals), line.substr(equals + 1)});
    if (it == left_.end()) return;
    --it->second;
    ++struck_;
  }

  size_t places() const { return places_.size(); }
  int struck() const { return struck_; }
  bool done() const { return left().empty(); }
  std::vector<std::string> left() const {
    std::vector<std::string> left;
    for (const auto& [fault, count] : left_) {
      if (count > 0 && required_.contains({fault.role, fault.place}))
        left.push_back(fmt::format("{} {}={}", NameOf(fault.role), fault.place, fault.action));
    }
    return left;
  }
  bool HasLeft(Role role) const {
    return std::any_of(left_.begin(), left_.end(), [&](const auto& entry) {
      const Fault& fault = entry.first;
      return fault.role == role && entry.second > 0 && required_.contains({fault.role, fault.place});
    });
  }

 private:
  struct Fault {
    Role role;
    std::string place;
    std::string action;
    auto operator<=>(const Fault&) const = default;
  };

  const int repeats_;
  std::mt19937 random_;
  const std::regex wanted_;
  std::set<std::pair<Role, std::string>> places_;
  std::set<std::pair<Role, std::string>> required_;
  std::map<Fault, int> left_;
  int struck_ = 0;
};

// A cluster of one island of two ranks, whose processes are started again, each time with other faults.
class FaultRun {
 public:
  FaultRun(Cluster* cluster, FaultList* faults) : cluster_(*cluster), faults_(*faults) {}

  // Each process is started anew, with faults; to_the_end: without any.
  void Begin(bool without_faults = false) {
    without_faults_ = without_faults;
    for (const Role role : kRoles) Start(role);
  }

  // Restarts processes that ended. Returns false when a process ended and no fault explains it.
  bool Watch() {
    for (const Role role : kRoles) {
      Life& life = lives_[role];
      ReadList(role);
      Process& process = ProcessOf(role);
      if (!process.Running()) {
        ReadList(role);  // what ended it may have struck since
        const int exit = *process.Wait(absl::ZeroDuration());
        if (!IsExplained(role, exit, life.struck)) {
          ADD_FAILURE() << NameOf(role) << " ended with " << exit << " under \"" << life.faults << "\"";
          return false;
        }
        ++ends_;
        Start(role);
      } else if (!without_faults_ && ((faults_.HasLeft(role) && life.struck_count >= life.fault_count) ||
                                      (!faults_.done() && absl::Now() - life.start > kLongestLife))) {
        Start(role);
      }
    }
    return true;
  }

  int ends() const { return ends_; }

 private:
  struct Life {
    std::string faults;
    size_t fault_count = 0;
    size_t struck_count = 0;
    std::set<std::string> struck;  // actions
    absl::Time start;
    std::streamoff read = 0;  // of the list, which all lives share
  };

  Process& ProcessOf(Role role) {
    return role == Role::kCoordinator ? cluster_.coordinator() : cluster_.rank(0, role == Role::kLeader ? 0 : 1);
  }

  std::string ListPath(Role role) const { return fmt::format("{}/places.{}", cluster_.folder(), NameOf(role)); }

  void Start(Role role) {
    Life& life = lives_[role];
    life = Life{.faults = without_faults_ ? "" : faults_.Next(role), .start = absl::Now(), .read = life.read};
    life.fault_count = static_cast<size_t>(std::count(life.faults.begin(), life.faults.end(), ';'));
    const std::vector<std::string> environment = {"ATOLL_FAILPOINTS=" + life.faults,
                                                  "ATOLL_FAILPOINT_LIST=" + ListPath(role)};
    if (role == Role::kCoordinator) {
      cluster_.StartCoordinator(environment);
    } else {
      cluster_.StartRank(0, role == Role::kLeader ? 0 : 1, environment);
    }
  }

  void ReadList(Role role) {
    Life& life = lives_[role];
    std::ifstream file(ListPath(role));
    file.seekg(life.read);
    for (std::string line; std::getline(file, line);) {
      if (file.eof()) break;  // no newline yet
      life.read = file.tellg();
      faults_.Read(role, line);
      if (const size_t equals = line.find('='); equals != std::string::npos) {
        ++life.struck_count;
        life.struck.insert(line.substr(equals + 1));
      }
    }
  }

  Cluster& cluster_;
  FaultList& faults_;
  bool without_faults_ = false;
  std::map<Role, Life> lives_;
  int ends_ = 0;
};

std::string LocalPath(const std::string& uri) {
  return uri.substr(std::string("file://").size());
}

int FromEnvironment(const char* name, int otherwise) {
  const char* text = std::getenv(name);
  int number = 0;
  return text != nullptr && absl::SimpleAtoi(text, &number) ? number : otherwise;
}

int Repeats() {
  return FromEnvironment("ATOLL_FAILPOINT_REPEATS", 0);
}

// A cluster of its own store and the jobs that run there.
class FaultyCluster {
 public:
  explicit FaultyCluster(FaultList* faults)
      : cluster_({.islands = 1,
                  .ranks = 2,
                  .coordinator_flags = {"--lease", "3s", "--collect-every", "300ms", "--collect-age", "1s"},
                  .worker_flags = {"--rejoin-seconds", "5"}}),
        run_(&cluster_, faults) {
    cluster_.WriteDataset(1);
  }

  // The job without faults, whose weights those of the others must be.
  bool RunReference() {
    run_.Begin(/*without_faults=*/true);
    const std::string reference = RunJob(absl::Now() + kPatience);
    if (reference.empty()) return false;
    references_ = FinalManifests(reference);
    return run_.Watch();
  }

  FaultRun& run() { return run_; }
  int jobs() const { return jobs_; }

  // Submits a job and waits for its end, while processes come and go. Empty when it did not succeed.
  std::string RunJob(absl::Time deadline) {
    const int number = jobs_++;
    std::string job_id;
    while (run_.Watch()) {
      if (job_id.empty()) job_id = TrySubmit(number);
      const pb::Job job = job_id.empty() ? pb::Job() : TryGet(job_id);
      if (job.state() == pb::Job::STATE_SUCCEEDED) {
        for (const pb::Task& task : job.tasks()) {
          acknowledged_.completed[task.task_id()] = task.outputs().empty() ? "" : task.outputs(0).sha256();
        }
        return job_id;
      }
      if (job.state() == pb::Job::STATE_FAILED || absl::Now() > deadline) {
        ADD_FAILURE() << "job " << number << " did not succeed: " << job.DebugString();
        return "";
      }
      absl::SleepFor(absl::Milliseconds(20));
    }
    return "";
  }

  void CheckInvariants() {
    std::ifstream log(cluster_.folder() + "/logs/island-0-0.log");
    invariants::AddFromLog(std::string(std::istreambuf_iterator<char>(log), {}), &acknowledged_);
    EXPECT_FALSE(acknowledged_.granted.empty() || acknowledged_.commits.empty()) << "the leader's log says nothing";
    const auto violations = invariants::CheckInvariants({.store = cluster_.folder() + "/coordinator.db",
                                                         .blobs = cluster_.store()->root(),
                                                         .acknowledged = &acknowledged_,
                                                         .references = references_});
    EXPECT_EQ(invariants::ToString(violations), "");
  }

 private:
  // Returns "" while the coordinator is unreachable; the same number is the same job.
  std::string TrySubmit(int number) {
    spec::JobSpec spec = SmallJob(1, 24, 3);
    spec.training.keep_checkpoints = 2;
    spec.failure_budget = 100'000;
    pb::SubmitJobRequest request;
    wire::ToProto(spec, request.mutable_spec());
    request.set_request_id(fmt::format("{:08x}-0000-4000-8000-000000000000", number));
    pb::SubmitJobResponse response;
    grpc::ClientContext context;
    rpc::SetTimeout(&context, absl::Seconds(1));
    if (!cluster_.jobs()->SubmitJob(&context, request, &response).ok()) return "";
    acknowledged_.jobs.insert(response.job().job_id());
    return response.job().job_id();
  }

  // Returns a job without a state while the coordinator is unreachable.
  pb::Job TryGet(const std::string& job_id) {
    pb::GetJobRequest request;
    request.set_job_id(job_id);
    pb::GetJobResponse response;
    grpc::ClientContext context;
    rpc::SetTimeout(&context, absl::Seconds(1));
    const bool answered = cluster_.jobs()->GetJob(&context, request, &response).ok();
    return answered ? response.job() : pb::Job();
  }

  // Final manifests of a job's training tasks.
  std::vector<std::string> FinalManifests(const std::string& job_id) {
    std::vector<std::string> paths;
    const pb::Job job = cluster_.GetJob(job_id);
    for (const auto kind : {pb::TASK_KIND_TRAIN_EXPERT, pb::TASK_KIND_TRAIN_ROUTER}) {
      paths.push_back(LocalPath(TaskOf(job, kind).outputs(0).uri()));
    }
    return paths;
  }

  Cluster cluster_;
  FaultRun run_;
  int jobs_ = 0;
  invariants::Acknowledged acknowledged_;
  std::vector<std::string> references_;
};

TEST(IsExplained, OnlyTheInjectedKillAndDocumentedExitCodesAre) {
  struct Case {
    Role role;
    int end;
    std::set<std::string> struck;
    bool explained;
  };
  const std::vector<Case> cases = {
      {Role::kRank, -SIGKILL, {"kill"}, true},
      {Role::kRank, -SIGKILL, {"error", "delay"}, false},
      {Role::kRank, 1, {"error"}, true},
      {Role::kRank, 1, {"kill", "delay"}, false},
      {Role::kRank, 1, {}, false},
      {Role::kRank, 0, {"error"}, false},
      {Role::kRank, 2, {"error"}, false},
      {Role::kRank, 3, {"error"}, false},
      {Role::kCoordinator, 1, {"error"}, true},
      {Role::kCoordinator, 3, {"error"}, true},
      {Role::kCoordinator, 3, {}, false},
      {Role::kLeader, -SIGABRT, {"error"}, false},
      {Role::kLeader, -SIGSEGV, {"error", "kill", "delay"}, false},
      {Role::kCoordinator, -SIGABRT, {"error"}, false},
  };
  for (const Case& test : cases) {
    EXPECT_EQ(IsExplained(test.role, test.end, test.struck), test.explained)
        << NameOf(test.role) << " " << test.end << " " << fmt::format("{}", test.struck);
  }
  // abort() in the handling of an injected error, of a real process.
  Process process({"/bin/sh", "-c", "kill -ABRT $$"}, testing::TempDir() + "/atoll_abort.log");
  const std::optional<int> end = process.Wait(absl::Seconds(20));
  ASSERT_EQ(end, -SIGABRT);
  EXPECT_FALSE(IsExplained(Role::kLeader, *end, {"error"}));
}

TEST(FailpointTest, EveryPlaceMayFailAndNothingIsLost) {
  const int repeats = Repeats();
  const int seed = FromEnvironment("ATOLL_FAILPOINT_SEED", 7);
  const char* places = std::getenv("ATOLL_FAILPOINT_PLACES");
  std::printf("seed %d\n", seed);
  FaultList faults(repeats, static_cast<uint32_t>(seed), places == nullptr ? "" : places);
  const absl::Time start = absl::Now();
  const absl::Time deadline = start + (repeats == 0 ? 2 * kPatience : absl::Hours(12));
  // A job comes to its end only between faults, and here they do not end.
  const absl::Duration patience = repeats == 0 ? kPatience : absl::Minutes(20);
  absl::Time told = start;
  int jobs = 0;
  int ends = 0;
  do {
    FaultyCluster cluster(&faults);
    ASSERT_TRUE(cluster.RunReference());
    if (jobs == 0) {
      // A place that a run without faults does not reach.
      for (const Role role : {Role::kLeader, Role::kRank}) faults.AddPlace(role, "checkpoint.after_load");
      EXPECT_GE(faults.places(), places == nullptr ? 40u : 1u);
      faults.Close();
    }
    cluster.run().Begin();
    while (!faults.done() && !testing::Test::HasFailure() && absl::Now() < deadline &&
           cluster.jobs() < kJobsPerCluster) {
      cluster.RunJob(absl::Now() + patience);
      if (absl::Now() - told < absl::Minutes(1)) continue;
      told = absl::Now();
      cluster.CheckInvariants();
      std::printf("%.0f s: %d jobs, %d faults struck, %zu kinds left\n", absl::ToDoubleSeconds(told - start),
                  jobs + cluster.jobs(), faults.struck(), faults.left().size());
      std::fflush(stdout);
    }
    if (testing::Test::HasFailure()) return;
    cluster.run().Begin(/*without_faults=*/true);
    EXPECT_NE(cluster.RunJob(absl::Now() + kPatience), "");
    cluster.CheckInvariants();
    jobs += cluster.jobs();
    ends += cluster.run().ends();
  } while (!faults.done() && !testing::Test::HasFailure() && absl::Now() < deadline);
  const std::vector<std::string> left = faults.left();
  EXPECT_TRUE(left.empty()) << left.size() << " kinds of faults never struck: " << testing::PrintToString(left);
  std::printf("%zu places, %d faults struck in %d jobs and %d ends of processes, %.0f s\n", faults.places(),
              faults.struck(), jobs, ends, absl::ToDoubleSeconds(absl::Now() - start));
}

// Whether the coordinator's process serves before it ends or `kPatience` is over.
bool AwaitServing(multiproc::CoordinatorProcess* process) {
  return Await(kPatience, [&] {
    if (process->address().empty()) return false;
    pb::ListJobsResponse response;
    grpc::ClientContext context;
    rpc::SetTimeout(&context, absl::Seconds(1));
    return pb::JobService::NewStub(rpc::MakeChannel(process->address()))->ListJobs(&context, {}, &response).ok();
  });
}

constexpr const char* kEpochPlaces[] = {"epoch.before_create", "epoch.after_create", "store.adopt_epoch.before_commit",
                                        "store.adopt_epoch.after_commit"};
constexpr const char* kEpochActions[] = {"kill", "error", "delay:100ms"};

TEST(EpochFailpointTest, ARestoredStoreTakesAHigherEpochWhereverItStopped) {
  const storage::TemporaryFolder folder;
  multiproc::CoordinatorProcess process(folder.path());
  process.Start();
  ASSERT_TRUE(AwaitServing(&process)) << process.log();
  process.Stop(SIGTERM);
  const std::string store = folder.File("store.db");
  // In CTest every fourth: each action once, at another place.
  const int step = Repeats() == 0 ? 4 : 1;
  for (int number = 0; number < 12 * std::max(1, Repeats()); number += step) {
    const char* place = kEpochPlaces[number / 3 % 4];
    const std::string action = kEpochActions[number % 3];
    SCOPED_TRACE(fmt::format("{}={}", place, action));
    const auto before = invariants::ReadStoryOf(store);
    ASSERT_TRUE(before.ok()) << before.status();
    std::filesystem::remove(folder.File("address"));
    process.Start(fmt::format("{}={}", place, action), {"--restored"});
    if (action.starts_with("delay")) {
      ASSERT_TRUE(AwaitServing(&process)) << process.log();
      process.Stop(SIGTERM);
    } else {
      const std::optional<int> status = process.AwaitEnd(kPatience);
      ASSERT_TRUE(status.has_value());
      EXPECT_EQ(WIFSIGNALED(*status), action == "kill") << process.log();
    }
    // It is still a restored store, even without the flag.
    std::filesystem::remove(folder.File("address"));
    process.Start();
    ASSERT_TRUE(AwaitServing(&process)) << process.log();
    process.Stop(SIGTERM);
    const auto after = invariants::ReadStoryOf(store);
    ASSERT_TRUE(after.ok()) << after.status();
    EXPECT_GT(after->epoch, before->epoch);
    EXPECT_EQ(invariants::ToString(invariants::CheckInvariants({.store = store, .blobs = process.blob_root()})), "");
  }
}

}  // namespace
}  // namespace atl::testing_cluster
