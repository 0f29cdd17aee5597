// chaos_run --folder DIR --programs DIR [--minutes N] [--seed S]: breaks a cluster by a schedule, and says what it
// cost.
//
// Started by run.sh, which gives it namespaces of its own. Exits with 1 when a job was lost, an invariant was violated,
// a wrong image came, or a kill cost more than it may.
#include <algorithm>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "CLI/CLI.hpp"
#include "absl/time/clock.h"
#include "atoll/job/v1/job_service.grpc.pb.h"
#include "common/dataset/testing.h"
#include "common/rpc/channel.h"
#include "common/wire/spec_wire.h"
#include "tests/chaos/sampler.h"
#include "tests/chaos/schedule.h"
#include "tests/chaos/watcher.h"
#include "tests/chaos/world.h"
#include "tests/invariants/invariants.h"

namespace atl::chaos {
namespace {

namespace pb = atlpb::job::v1;

constexpr absl::Duration kTick = absl::Milliseconds(50);
constexpr absl::Duration kPoll = absl::Milliseconds(100);
// For the run without faults before, and for what is left to train after.
constexpr absl::Duration kAround = absl::Seconds(180);
// After the detection of a lost island or rank, which may take the lease and two seconds, it must train again within 15
// s.
constexpr absl::Duration kAfterDetection = absl::Seconds(15);

// The signal that asks for the end. As the first process of its namespace the program must handle what is to end it.
volatile std::sig_atomic_t interrupted = 0;

void HandleSignals() {
  struct sigaction action = {};
  action.sa_handler = [](int signal) { interrupted = signal; };
  for (const int signal : {SIGHUP, SIGINT, SIGTERM}) sigaction(signal, &action, nullptr);
}

struct Flags {
  std::string folder;
  std::string programs;
  int minutes = 20;
  int cycles = 0;
  uint64_t seed = 1;
  int steps = 300;
  int checkpoint_every = 10;
};

class Chaos {
 public:
  explicit Chaos(const Flags& flags) : flags_(flags) {
    schedule_.seed = flags.seed;
    const absl::Duration time = absl::Minutes(flags.minutes) - kAround;
    schedule_.cycles = flags.cycles > 0 ? flags.cycles : std::max<int>(1, static_cast<int>(time / schedule_.cycle));
    faults_ = MakeSchedule(schedule_);
  }

  int Run() {
    std::printf("seed %llu: %d cycles\n", static_cast<unsigned long long>(flags_.seed), schedule_.cycles);
    for (const Fault& fault : faults_) std::printf("%s\n", ToString(fault).c_str());
    std::fflush(stdout);
    auto world = World::Make({.folder = flags_.folder,
                              .programs = flags_.programs,
                              .islands = schedule_.islands,
                              .ranks = schedule_.ranks,
                              .machine_per_rank = std::getenv("UCX_TLS") != nullptr,
                              .lease = schedule_.lease});
    if (!world.ok()) {
      std::fprintf(stderr, "chaos: %s\n", world.status().ToString().c_str());
      return 1;
    }
    world_ = *std::move(world);
    jobs_ = pb::JobService::NewStub(rpc::MakeChannel(world_->coordinator_address()));
    WriteDataset();
    const absl::Time began = absl::Now();
    Say("a job without faults");
    if (!TrainReference()) return Report();
    Say(fmt::format("done in {:.0f} s; now with faults", absl::ToDoubleSeconds(absl::Now() - began)));
    sampler_ = std::make_unique<Sampler>(world_->router_address(), "served", job_id_);
    start_ = absl::Now();
    job_id_.clear();
    Break();
    Say("no more faults");
    const absl::Time deadline = absl::Now() + kAround;
    while (problems_.empty() && absl::Now() < deadline && !AllDone()) Tick(/*submit=*/false);
    if (problems_.empty() && !AllDone()) problems_.push_back("the last job did not end");
    images_ = sampler_->counts();
    sampler_.reset();
    const absl::Duration patience = interrupted != 0 ? absl::ZeroDuration() : absl::Seconds(30);
    for (const std::string& late : world_->Stop(patience)) {
      if (interrupted == 0) problems_.push_back(late + " did not stop");
    }
    CheckInvariants();
    return Report();
  }

 private:
  void Say(const std::string& text) const {
    std::printf("%s\n", text.c_str());
    std::fflush(stdout);
  }

  void WriteDataset() {
    storage::BlobStore* const store = world_->blobs();
    dataset::DatasetManifest manifest{.name = "patterns", .channels = 1, .height = 8, .width = 8};
    for (int label = 0; label < 10; ++label) manifest.classes.push_back(fmt::format("{}", label));
    for (int shard = 0; shard < 2; ++shard) {
      manifest.shards.push_back(
          dataset::WritePatternShard(store, fmt::format("datasets/patterns/train-{}.parquet", shard), 64, 64 * shard));
    }
    const auto written = store->Write(dataset::DatasetManifestUri(*store, "patterns"), dataset::ToJson(manifest));
    if (!written.ok()) problems_.push_back(written.status().ToString());
  }

  spec::JobSpec Spec(const std::string& model) const {
    spec::JobSpec spec;
    spec.model_name = model;
    spec.dataset = "patterns";
    spec.experts = schedule_.islands;
    spec.seed = 7;
    spec.failure_budget = 20;
    spec.clustering.method = "random";
    spec.model = {.patch = 2, .width = 96, .depth = 4, .heads = 4, .mlp_ratio = 4.0};
    spec.training.steps = flags_.steps;
    spec.training.batch_size = 16;
    spec.training.checkpoint_every = flags_.checkpoint_every;
    spec.training.keep_checkpoints = 2;
    spec.training.warmup_steps = 5;
    spec.pipeline.micro_batches = 4;
    spec.router_model = {.patch = 2, .width = 32, .depth = 2, .heads = 2, .mlp_ratio = 2.0};
    spec.router_training = spec.training;
    spec.router_training.steps = std::max(flags_.steps / 4, 1);
    return spec;
  }

  // Returns "" while the coordinator is unreachable. Repeated calls with one number submit one job.
  std::string TrySubmit(int number, const std::string& model) {
    pb::SubmitJobRequest request;
    wire::ToProto(Spec(model), request.mutable_spec());
    request.set_request_id(fmt::format("{:08x}-0000-4000-8000-000000000000", number));
    pb::SubmitJobResponse response;
    grpc::ClientContext context;
    rpc::SetTimeout(&context, absl::Seconds(1));
    if (!jobs_->SubmitJob(&context, request, &response).ok()) return "";
    acknowledged_.jobs.insert(response.job().job_id());
    return response.job().job_id();
  }

  std::optional<pb::Job> TryGet(const std::string& job_id) {
    pb::GetJobRequest request;
    request.set_job_id(job_id);
    pb::GetJobResponse response;
    grpc::ClientContext context;
    rpc::SetTimeout(&context, absl::Seconds(1));
    if (!jobs_->GetJob(&context, request, &response).ok()) return std::nullopt;
    return response.job();
  }

  bool TrainReference() {
    const absl::Time deadline = absl::Now() + kAround;
    while (absl::Now() < deadline && problems_.empty()) {
      Supervise();
      if (job_id_.empty()) job_id_ = TrySubmit(0, "served");
      const std::optional<pb::Job> job = job_id_.empty() ? std::nullopt : TryGet(job_id_);
      if (job.has_value() && job->state() == pb::Job::STATE_SUCCEEDED) {
        for (const pb::Task& task : job->tasks()) {
          if (task.kind() != pb::TASK_KIND_TRAIN_EXPERT && task.kind() != pb::TASK_KIND_TRAIN_ROUTER) continue;
          references_.push_back(task.outputs(0).uri().substr(std::string("file://").size()));
        }
        return true;
      }
      if (job.has_value() && job->state() == pb::Job::STATE_FAILED) problems_.push_back(job->message());
      absl::SleepFor(kPoll);
    }
    if (problems_.empty()) problems_.push_back("the job without faults did not end");
    return false;
  }

  void Break() {
    std::vector<Fault> begun;
    size_t next = 0;
    const absl::Duration end = schedule_.cycles * schedule_.cycle;
    while (problems_.empty() && absl::Now() - start_ < end) {
      const absl::Duration now = absl::Now() - start_;
      for (; next < faults_.size() && faults_[next].at <= now; ++next) {
        Say(ToString(faults_[next]));
        watcher_.OnFault(faults_[next]);
        Expect(world_->Begin(faults_[next]));
        begun.push_back(faults_[next]);
      }
      std::erase_if(begun, [&](const Fault& fault) {
        if (fault.at + fault.lasts > now) return false;
        Expect(world_->End(fault));
        return true;
      });
      Tick(/*submit=*/true);
    }
    for (const Fault& fault : begun) Expect(world_->End(fault));
  }

  void Expect(const absl::Status& status) {
    if (!status.ok()) problems_.push_back(status.ToString());
  }

  void Supervise() {
    if (interrupted != 0 && problems_.empty()) problems_.push_back("ended by a signal, before its time");
    for (const std::string& end : world_->Supervise()) {
      Say(fmt::format("  {}", end));
      ends_.push_back(end);
      // A program that ends itself says with 1 why; a signal is a crash.
      if (end.find("with -") != std::string::npos) problems_.push_back(end);
    }
  }

  void Tick(bool submit) {
    Supervise();
    const absl::Time now = absl::Now();
    if (now - polled_ >= kPoll) {
      polled_ = now;
      if (job_id_.empty() && submit) job_id_ = TrySubmit(++submitted_, "chaos");
      const std::optional<pb::Job> job = job_id_.empty() ? std::nullopt : TryGet(job_id_);
      if (job.has_value()) OnJob(*job);
    }
    absl::SleepFor(kTick);
  }

  void OnJob(const pb::Job& job) {
    watcher_.OnJob(job, absl::Now() - start_);
    if (job.state() == pb::Job::STATE_SUCCEEDED) {
      for (const pb::Task& task : job.tasks()) {
        acknowledged_.completed[task.task_id()] = task.outputs().empty() ? "" : task.outputs(0).sha256();
      }
      ++succeeded_;
      job_id_.clear();
    } else if (job.state() == pb::Job::STATE_FAILED || job.state() == pb::Job::STATE_CANCELLED) {
      problems_.push_back(fmt::format("job {} is lost: {}", job.job_id(), job.message()));
    }
  }

  bool AllDone() const { return job_id_.empty(); }

  void CheckInvariants() {
    for (const std::string& path : world_->LeaderLogs()) {
      std::ifstream log(path);
      testing_invariants::AddFromLog(std::string(std::istreambuf_iterator<char>(log), {}), &acknowledged_);
    }
    if (acknowledged_.commits.empty() && succeeded_ > 0) problems_.push_back("the leaders' logs tell of no commit");
    const auto violations = testing_invariants::CheckInvariants({.store = world_->store_path(),
                                                                 .blobs = world_->blobs()->root(),
                                                                 .acknowledged = &acknowledged_,
                                                                 .references = references_});
    for (const auto& violation : violations) problems_.push_back(violation.rule + ": " + violation.what);
  }

  int Report() {
    absl::Duration slowest;
    int64_t most_repeated = 0;  // after kills alone
    // Measured separately: while the coordinator is unreachable or cannot write, steps continue but nothing is
    // committed.
    int64_t most_beside_others = 0;
    const absl::Duration allowed = schedule_.lease + absl::Seconds(2) + kAfterDetection;
    for (const auto& [cycle, cost] : watcher_.cycles()) {
      std::vector<std::string> what;
      for (const Fault& fault : cost.faults) what.push_back(ToString(fault));
      std::printf("cycle %d: %s: %d attempts ended, %lld steps repeated at most", cycle,
                  fmt::format("{}", fmt::join(what, "; ")).c_str(), cost.ended_attempts,
                  static_cast<long long>(cost.repeated_steps));
      if (cost.first_new_step > absl::ZeroDuration()) {
        std::printf(", first new step %.1f s after the kill", absl::ToDoubleSeconds(cost.first_new_step));
      }
      std::printf("\n");
      slowest = std::max(slowest, cost.first_new_step);
      const bool killed = cost.faults.size() == 1 && cost.faults[0].kind == FaultKind::kKill;
      if (killed && cost.first_new_step > allowed) {
        problems_.push_back(fmt::format("cycle {}: the first new step came after {:.1f} s, expected at most {:.1f}",
                                        cycle, absl::ToDoubleSeconds(cost.first_new_step),
                                        absl::ToDoubleSeconds(allowed)));
      }
      if (killed && cost.repeated_steps > flags_.checkpoint_every + 1) {
        problems_.push_back(fmt::format("cycle {}: {} steps were repeated, expected at most {}", cycle,
                                        cost.repeated_steps, flags_.checkpoint_every + 1));
      }
      int64_t& most = killed ? most_repeated : most_beside_others;
      most = std::max(most, cost.repeated_steps);
    }
    for (const Fault& fault : watcher_.unanswered()) problems_.push_back("no new step after " + ToString(fault));
    if (!images_.wrong.empty()) problems_.push_back("the router: " + images_.wrong);
    if (images_.answered == 0 && problems_.empty()) problems_.push_back("the router never answered");
    std::printf(
        "%d jobs succeeded; goodput %.3f; repeated steps at most %lld after a kill alone, %lld beside other faults; "
        "kill to first new step at most %.1f s\n",
        succeeded_, watcher_.goodput(), static_cast<long long>(most_repeated),
        static_cast<long long>(most_beside_others), absl::ToDoubleSeconds(slowest));
    std::printf("images: %lld answered, %lld refused; processes that ended by themselves: %zu\n",
                static_cast<long long>(images_.answered), static_cast<long long>(images_.refused), ends_.size());
    for (const std::string& problem : problems_) std::printf("PROBLEM %s\n", problem.c_str());
    std::printf("%s\n", problems_.empty() ? "nothing was lost" : "chaos: FAILED");
    if (interrupted != 0) return 128 + interrupted;
    return problems_.empty() ? 0 : 1;
  }

  const Flags flags_;
  ScheduleOptions schedule_;
  std::vector<Fault> faults_;
  std::unique_ptr<World> world_;
  std::unique_ptr<pb::JobService::Stub> jobs_;
  std::unique_ptr<Sampler> sampler_;
  Sampler::Counts images_;
  Watcher watcher_;
  testing_invariants::Acknowledged acknowledged_;
  std::vector<std::string> references_;
  std::vector<std::string> problems_;
  std::vector<std::string> ends_;
  absl::Time start_ = absl::Now();
  absl::Time polled_;
  std::string job_id_;  // empty: none runs
  int submitted_ = 0;
  int succeeded_ = 0;
};

}  // namespace
}  // namespace atl::chaos

int main(int argc, char** argv) {
  atl::chaos::Flags flags;
  CLI::App app("Breaks a cluster by a seeded schedule; see run.sh.");
  app.add_option("--folder", flags.folder, "An empty folder for everything")->required();
  app.add_option("--programs", flags.programs, "Folder of the programs")->required()->check(CLI::ExistingDirectory);
  app.add_option("--minutes", flags.minutes, "How long the whole may take")->check(CLI::Range(4, 100'000));
  app.add_option("--cycles", flags.cycles, "Cycles of up to two faults, in place of what fits")
      ->check(CLI::Range(0, 100'000));
  app.add_option("--seed", flags.seed, "Of the schedule");
  app.add_option("--steps", flags.steps, "Steps of each expert")->check(CLI::Range(1, 1'000'000));
  CLI11_PARSE(app, argc, argv);
  atl::chaos::HandleSignals();
  return atl::chaos::Chaos(flags).Run();
}
