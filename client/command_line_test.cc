// The command line as a whole, in process, against services of the test.
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "absl/synchronization/mutex.h"
#include "atoll/job/v1/job_service.grpc.pb.h"
#include "atoll/model/v1/model_service.grpc.pb.h"
#include "atoll/sample/v1/sample_service.grpc.pb.h"
#include "client/app.h"
#include "client/cluster_file.h"
#include "client/files.h"
#include "common/base/errors.h"
#include "common/dataset/image_codec.h"
#include "common/planner/profile.h"
#include "common/rpc/server.h"
#include "common/rpc/status.h"
#include "common/schedule/generators.h"
#include "common/storage/blob_store.h"
#include "common/storage/profile_file.h"
#include "common/storage/step_trace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace atl::client {
namespace {

using atlpb::job::v1::Job;
using ::testing::HasSubstr;
using ::testing::Not;

constexpr char kSpec[] = "model_name: digits\ndataset: digits\nexperts: 2\ntraining: {steps: 40}\n";

grpc::Status Error(absl::StatusCode code, const char* reason, const char* message) {
  return rpc::ToGrpc(MakeError(code, reason, message));
}

// Knows one job, "j1", which ends after its second version. The first stream of a watch breaks after one version.
class FakeJobs : public atlpb::job::v1::JobService::Service {
 public:
  grpc::Status SubmitJob(grpc::ServerContext*, const atlpb::job::v1::SubmitJobRequest* request,
                         atlpb::job::v1::SubmitJobResponse* response) override {
    absl::MutexLock lock(&mutex_);
    if (refusals_-- > 0) return Error(absl::StatusCode::kUnavailable, "STARTING", "not yet");
    submitted_.push_back(*request);
    *response->mutable_job() = JobAt(1);
    *response->mutable_job()->mutable_spec() = request->spec();
    return grpc::Status::OK;
  }
  grpc::Status GetJob(grpc::ServerContext*, const atlpb::job::v1::GetJobRequest* request,
                      atlpb::job::v1::GetJobResponse* response) override {
    if (request->job_id() != "j1") return Error(absl::StatusCode::kNotFound, "JOB_UNKNOWN", "there is no job 'x'");
    *response->mutable_job() = JobAt(1);
    return grpc::Status::OK;
  }
  grpc::Status ListJobs(grpc::ServerContext*, const atlpb::job::v1::ListJobsRequest* request,
                        atlpb::job::v1::ListJobsResponse* response) override {
    *response->add_jobs() = JobAt(1);
    if (request->page_token().empty()) response->set_next_page_token("second");
    return grpc::Status::OK;
  }
  grpc::Status CancelJob(grpc::ServerContext*, const atlpb::job::v1::CancelJobRequest*,
                         atlpb::job::v1::CancelJobResponse*) override {
    return Error(absl::StatusCode::kFailedPrecondition, "JOB_ENDED", "job j1 has succeeded");
  }
  grpc::Status DeleteJob(grpc::ServerContext*, const atlpb::job::v1::DeleteJobRequest*,
                         atlpb::job::v1::DeleteJobResponse*) override {
    return grpc::Status::OK;
  }
  grpc::Status WatchJob(grpc::ServerContext*, const atlpb::job::v1::WatchJobRequest* request,
                        grpc::ServerWriter<atlpb::job::v1::WatchJobResponse>* writer) override {
    atlpb::job::v1::WatchJobResponse response;
    if (request->after_revision() == 0) {
      *response.mutable_job() = JobAt(1);
      writer->Write(response);
      return Error(absl::StatusCode::kUnavailable, "STOPPING", "the coordinator stops");
    }
    absl::MutexLock lock(&mutex_);
    *response.mutable_job() = JobAt(2);
    response.mutable_job()->set_state(outcome_);
    if (outcome_ == Job::STATE_FAILED) response.mutable_job()->set_message("no such labels");
    writer->Write(response);
    return grpc::Status::OK;
  }

  static Job JobAt(int64_t revision) {
    Job job;
    job.set_job_id("j1");
    job.set_state(Job::STATE_RUNNING);
    job.set_revision(revision);
    job.mutable_spec()->set_model_name("digits");
    auto* task = job.add_tasks();
    task->set_task_id("j1/train_expert-0");
    task->set_kind(atlpb::job::v1::TASK_KIND_TRAIN_EXPERT);
    task->set_state(atlpb::job::v1::Task::STATE_LEASED);
    return job;
  }

  absl::Mutex mutex_;
  int refusals_ ABSL_GUARDED_BY(mutex_) = 0;
  Job::State outcome_ ABSL_GUARDED_BY(mutex_) = Job::STATE_SUCCEEDED;
  std::vector<atlpb::job::v1::SubmitJobRequest> submitted_ ABSL_GUARDED_BY(mutex_);
};

// One model of two versions; generation 4.
class FakeModels : public atlpb::model::v1::ModelService::Service {
 public:
  grpc::Status ListModels(grpc::ServerContext*, const atlpb::model::v1::ListModelsRequest*,
                          atlpb::model::v1::ListModelsResponse* response) override {
    *response->add_models() = Digits();
    return grpc::Status::OK;
  }
  grpc::Status GetModel(grpc::ServerContext*, const atlpb::model::v1::GetModelRequest*,
                        atlpb::model::v1::GetModelResponse* response) override {
    *response->mutable_model() = Digits();
    return grpc::Status::OK;
  }
  grpc::Status SetServingVersion(grpc::ServerContext*, const atlpb::model::v1::SetServingVersionRequest* request,
                                 atlpb::model::v1::SetServingVersionResponse* response) override {
    if (request->expected_generation() != 4) {
      return Error(absl::StatusCode::kAborted, "GENERATION_CHANGED", "expected generation 4");
    }
    *response->mutable_model() = Digits();
    response->mutable_model()->set_serving_version(request->version());
    return grpc::Status::OK;
  }

  static atlpb::model::v1::Model Digits() {
    atlpb::model::v1::Model model;
    model.set_name("digits");
    model.set_serving_version("v2");
    model.set_serving_generation(4);
    model.add_versions()->set_version("v2");
    model.add_versions()->set_version("v1");
    return model;
  }
};

// Draws 2 x 2 images whose first pixel is the class; serves at most three per request, and nothing at first.
class FakeSampler : public atlpb::sample::v1::SampleService::Service {
 public:
  grpc::Status GetSamplerInfo(grpc::ServerContext*, const atlpb::sample::v1::GetSamplerInfoRequest*,
                              atlpb::sample::v1::GetSamplerInfoResponse* response) override {
    absl::MutexLock lock(&mutex_);
    if (not_yet_-- > 0) return Error(absl::StatusCode::kFailedPrecondition, "NO_MODEL", "no model yet");
    response->set_model("digits");
    response->set_version("v2");
    response->set_experts(2);
    response->set_classes(4);
    response->set_max_images_per_request(3);
    return grpc::Status::OK;
  }
  grpc::Status Sample(grpc::ServerContext*, const atlpb::sample::v1::SampleRequest* request,
                      grpc::ServerWriter<atlpb::sample::v1::SampleResponse>* writer) override {
    for (int i = request->classes_size() - 1; i >= 0; --i) {
      atlpb::sample::v1::SampleResponse response;
      auto* image = response.mutable_image();
      image->set_index(i);
      image->set_class_label(request->classes(i));
      image->set_seed(request->seeds(i));
      image->set_channels(1);
      image->set_height(2);
      image->set_width(2);
      const dataset::Image pixels{
          .channels = 1, .height = 2, .width = 2, .pixels = {static_cast<uint8_t>(request->classes(i)), 0, 0, 0}};
      image->set_data(*dataset::EncodePng(pixels));
      writer->Write(response);
    }
    absl::MutexLock lock(&mutex_);
    if (incomplete_) return grpc::Status::OK;
    atlpb::sample::v1::SampleResponse response;
    response.mutable_done()->set_version("v2");
    response.mutable_done()->mutable_routing()->add_chosen(request->classes_size());
    response.mutable_done()->mutable_routing()->set_image_steps(request->classes_size());
    writer->Write(response);
    return grpc::Status::OK;
  }

  absl::Mutex mutex_;
  int not_yet_ ABSL_GUARDED_BY(mutex_) = 0;
  bool incomplete_ ABSL_GUARDED_BY(mutex_) = false;
};

struct Outcome {
  int code = -1;
  std::string out;
  std::string err;
};

class CommandLineTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = testing::TempDir() + "/command_line_test." + std::to_string(getpid());
    std::filesystem::remove_all(folder_);
    auto server = rpc::Server::Start({.services = {{"jobs", &jobs_}, {"models", &models_}, {"sampler", &sampler_}}});
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    ASSERT_TRUE(WriteFile(SpecPath(), kSpec).ok());
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  std::string SpecPath() const { return folder_ + "/job.yaml"; }

  // With the services' address in the environment.
  Outcome Run(const std::vector<std::string>& arguments) {
    std::map<std::string, std::string> environment = {{"HOME", folder_},
                                                      {"ATOLL_COORDINATOR", server_->address()},
                                                      {"ATOLL_ROUTER", server_->address()},
                                                      {"ATOLL_BLOB_STORE", "file://" + folder_ + "/blobs"}};
    return RunWith(arguments, environment);
  }
  static Outcome RunWith(const std::vector<std::string>& arguments, std::map<std::string, std::string> environment) {
    std::ostringstream out;
    std::ostringstream err;
    Session session;
    session.out = &out;
    session.err = &err;
    session.width = 0;
    session.env = [environment](const std::string& name) {
      const auto found = environment.find(name);
      return found == environment.end() ? "" : found->second;
    };
    Outcome outcome;
    outcome.code = RunAtoll(arguments, session);
    outcome.out = out.str();
    outcome.err = err.str();
    return outcome;
  }

  FakeJobs jobs_;
  FakeModels models_;
  FakeSampler sampler_;
  std::unique_ptr<rpc::Server> server_;
  std::string folder_;
};

TEST_F(CommandLineTest, WrongCommandLinesExitWithTwoAndOneLineOfReason) {
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{}, "A subcommand is required"},
      {{"jobz"}, "unexpected argument 'jobz'; did you mean 'jobs'?"},
      {{"jobs", "wach", "j1"}, "did you mean 'watch'?"},
      {{"jobs", "list", "--ouput", "json"}, "did you mean '--output'?"},
      {{"jobs", "get"}, "JOB is required"},
      {{"jobs", "list", "--output", "xml"}, "xml not in {table,json}"},
      {{"jobs", "list", "--limit", "0"}, "--limit"},
      {{"submit"}, "FILE is required"},
      {{"sample", "--out", "x.png", "--solver", "rk4"}, "rk4 not in {euler,heun}"},
      {{"plan", "x"}, "--ranks is required"},
      {{"submit", SpecPath(), "--set", "training.steps"}, "expected FIELD=VALUE, found 'training.steps'"},
      {{"completion", "tcsh"}, "tcsh not in {bash,zsh,fish}"},
      {{"datasets", "import", "--help"}, "unexpected argument 'datasets'; did you mean 'dataset'?"},
      {{"jobs", "wach", "--help"}, "did you mean 'watch'?"},
      {{"jobs", "list", "--timeout", "nan"}, "--timeout: expected a number, found nan"},
      {{"sample", "--out", "x.png", "--wait", "nan"}, "--wait: expected a number, found nan"},
      {{"sample", "--out", "x.png", "--threshold", "NaN"}, "--threshold: expected a number, found NaN"},
      {{"sample", "--out", "x.png", "--seed", "-1"}, "--seed"},
      {{"sample", "--out", "x.jpg"}, "--out: expected FILE.png or a folder, found 'x.jpg'"},
      {{"sample", "--out", "x.png", "--raw"}, "--raw: expected a folder for --out, found 'x.png'"},
  };
  for (const auto& [arguments, message] : cases) {
    const Outcome outcome = Run(arguments);
    EXPECT_EQ(outcome.code, 2) << message;
    EXPECT_THAT(outcome.err, HasSubstr(message));
    EXPECT_THAT(outcome.err, HasSubstr("atoll: error: "));
    EXPECT_EQ(outcome.out, "");
  }
}

TEST_F(CommandLineTest, HelpTeachesWithExamplesAndExitCodes) {
  const Outcome outcome = Run({"--help"});
  EXPECT_EQ(outcome.code, 0);
  EXPECT_THAT(outcome.out, HasSubstr("atoll submit job.yaml --wait"));
  EXPECT_THAT(outcome.out, HasSubstr("Exit codes:"));
  for (const char* command : {"up", "down", "dataset", "submit", "jobs", "models", "sample", "plan", "report"}) {
    const Outcome help = Run({command, "--help"});
    EXPECT_EQ(help.code, 0) << command;
    EXPECT_THAT(help.out, HasSubstr("Usage: atoll")) << command;
  }
  EXPECT_EQ(Run({"--version"}).code, 0);
}

TEST_F(CommandLineTest, SubmitSendsEveryFieldAndPrintsTheId) {
  const Outcome outcome = Run({"submit", SpecPath(), "--set", "training.batch_size=32", "--set", "experts=3"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "j1\n");
  absl::MutexLock lock(&jobs_.mutex_);
  ASSERT_EQ(jobs_.submitted_.size(), 1u);
  const auto& request = jobs_.submitted_[0];
  EXPECT_EQ(request.spec().experts(), 3);
  EXPECT_EQ(request.spec().training().batch_size(), 32);
  EXPECT_EQ(request.spec().router_training().steps(), 40);
  EXPECT_EQ(request.request_id().size(), 36u);
  EXPECT_FALSE(request.validate_only());
}

TEST_F(CommandLineTest, SubmitRetriesWithTheSameRequestIdWhileNobodyAnswers) {
  {
    absl::MutexLock lock(&jobs_.mutex_);
    jobs_.refusals_ = 1;
  }
  const Outcome outcome = Run({"submit", SpecPath(), "--request-id", "abc"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  absl::MutexLock lock(&jobs_.mutex_);
  ASSERT_EQ(jobs_.submitted_.size(), 1u);
  EXPECT_EQ(jobs_.submitted_[0].request_id(), "abc");
}

TEST_F(CommandLineTest, DryRunStoresNothingAndShowsTheWholeSpec) {
  const Outcome outcome = Run({"submit", SpecPath(), "--dry-run"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("learning_rate: 0.001"));
  EXPECT_THAT(outcome.out, HasSubstr("nothing was stored"));
  absl::MutexLock lock(&jobs_.mutex_);
  EXPECT_TRUE(jobs_.submitted_.at(0).validate_only());
}

TEST_F(CommandLineTest, BadSpecsNameFileFieldAndLine) {
  ASSERT_TRUE(WriteFile(SpecPath(), std::string(kSpec) + "modle: {}\n").ok());
  Outcome outcome = Run({"submit", SpecPath()});
  EXPECT_EQ(outcome.code, 3);
  EXPECT_EQ(outcome.err,
            "atoll: error: modle: unknown field; did you mean 'model'? (" + SpecPath() + ", line 5) [UNKNOWN_FIELD]\n");
  ASSERT_TRUE(WriteFile(SpecPath(), std::string(kSpec) + "pipeline: {micro_batches: 7}\n").ok());
  outcome = Run({"submit", SpecPath()});
  EXPECT_EQ(outcome.code, 3);
  EXPECT_THAT(outcome.err,
              HasSubstr("training.batch_size: expected a multiple of pipeline.micro_batches (7), found 64"));
  EXPECT_EQ(Run({"submit", folder_ + "/none.yaml"}).code, 4);
}

TEST_F(CommandLineTest, WatchGoesOnAfterTheCoordinatorWasAway) {
  const Outcome outcome = Run({"jobs", "watch", "j1"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("is away; waiting for it"));
  EXPECT_THAT(outcome.out, HasSubstr("job j1 succeeded"));
  EXPECT_THAT(outcome.out, Not(HasSubstr("\x1b")));
}

TEST_F(CommandLineTest, AJobThatFailedGivesItsOwnExitCode) {
  {
    absl::MutexLock lock(&jobs_.mutex_);
    jobs_.outcome_ = Job::STATE_FAILED;
  }
  const Outcome watched = Run({"jobs", "watch", "j1"});
  EXPECT_EQ(watched.code, 10);
  EXPECT_THAT(watched.out, HasSubstr("job j1 failed: no such labels"));
  EXPECT_EQ(watched.err, "atoll: error: job j1 failed\n") << "its message is told once";
  EXPECT_NO_THROW(nlohmann::json::parse(Run({"jobs", "watch", "j1", "--output", "json"}).out));
  EXPECT_EQ(Run({"submit", SpecPath(), "--wait"}).code, 10);
}

TEST_F(CommandLineTest, ListFollowsPagesAndJsonIsJson) {
  EXPECT_THAT(Run({"jobs", "list"}).out, HasSubstr("JOB  STATE    MODEL"));
  const auto json = nlohmann::json::parse(Run({"jobs", "list", "--output", "json"}).out);
  EXPECT_EQ(json.at("jobs").size(), 2u);
  EXPECT_EQ(json.at("jobs")[0].at("job_id"), "j1");
  EXPECT_EQ(nlohmann::json::parse(Run({"jobs", "get", "j1", "--output", "json"}).out).at("state"), "STATE_RUNNING");
  EXPECT_EQ(nlohmann::json::parse(Run({"models", "list", "--output", "json"}).out).at("models").size(), 1u);
  EXPECT_NO_THROW(nlohmann::json::parse(Run({"version", "--output", "json"}).out));
}

TEST_F(CommandLineTest, ErrorsOfTheServiceKeepReasonAndClass) {
  Outcome outcome = Run({"jobs", "get", "x"});
  EXPECT_EQ(outcome.code, 4);
  EXPECT_EQ(outcome.err, "atoll: error: there is no job 'x' [JOB_UNKNOWN]\n");
  outcome = Run({"jobs", "cancel", "j1"});
  EXPECT_EQ(outcome.code, 5);
  EXPECT_THAT(outcome.err, HasSubstr("[JOB_ENDED]"));
  EXPECT_EQ(Run({"jobs", "delete", "j1"}).out, "deleted j1\n");
}

TEST_F(CommandLineTest, ServingIsCompareAndSet) {
  EXPECT_THAT(Run({"models", "get", "digits"}).out, HasSubstr("v2 *"));
  EXPECT_THAT(Run({"models", "serve", "digits", "v1"}).out, HasSubstr("serving  v1"));
  EXPECT_EQ(Run({"models", "serve", "digits", "v1", "--expected-generation", "3"}).code, 5);
}

TEST_F(CommandLineTest, SampleWaitsSplitsAndWritesPictureAndFolder) {
  {
    absl::MutexLock lock(&sampler_.mutex_);
    sampler_.not_yet_ = 2;
  }
  const Outcome outcome = Run({"sample", "--class", "all", "--count", "2", "--seed", "5", "--wait", "30", "--out",
                               folder_ + "/grid.png", "--out", folder_ + "/set", "--report"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("8 images of digits version v2"));
  EXPECT_THAT(outcome.out, HasSubstr("over 8 image-steps"));
  const auto png = ReadFile(folder_ + "/grid.png");
  ASSERT_TRUE(png.ok());
  EXPECT_TRUE(dataset::DecodeImage(*png, "grid.png").ok());
  const auto index = nlohmann::json::parse(*ReadFile(folder_ + "/set/samples.json"));
  ASSERT_EQ(index.at("images").size(), 8u);
  EXPECT_EQ(index.at("images")[7].at("class"), 3);
  EXPECT_EQ(index.at("images")[7].at("seed"), 12);
  EXPECT_TRUE(std::filesystem::exists(folder_ + "/set/00007-class3.png"));
}

TEST_F(CommandLineTest, SampleErrorsAreClear) {
  EXPECT_EQ(Run({"sample", "--class", "9", "--out", folder_ + "/x"}).code, 3);
  EXPECT_EQ(Run({"sample", "--raw", "--class", "1", "--out", folder_ + "/x.png"}).code, 2);
  {
    absl::MutexLock lock(&sampler_.mutex_);
    sampler_.incomplete_ = true;
  }
  const Outcome outcome = Run({"sample", "--class", "1", "--out", folder_ + "/x"});
  EXPECT_EQ(outcome.code, 8);
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/x")) << "nothing half written";
}

TEST_F(CommandLineTest, AddressesComeFromFlagsThenClusterThenEnvironment) {
  const std::string nobody = "127.0.0.1:1";
  ASSERT_TRUE(WriteClusterFile(folder_ + "/c", {.coordinator = server_->address()}).ok());
  const std::map<std::string, std::string> bad = {{"HOME", folder_}, {"ATOLL_COORDINATOR", nobody}};
  EXPECT_EQ(RunWith({"jobs", "get", "j1", "--cluster", folder_ + "/c"}, bad).code, 0);
  EXPECT_EQ(RunWith({"jobs", "get", "j1", "--coordinator", server_->address()}, bad).code, 0);
  EXPECT_EQ(RunWith({"jobs", "get", "j1"}, {{"HOME", folder_}, {"ATOLL_CLUSTER", folder_ + "/c"}}).code, 0);
  const Outcome unreachable = RunWith({"jobs", "get", "j1"}, bad);
  EXPECT_EQ(unreachable.code, 6);
  EXPECT_THAT(unreachable.err, HasSubstr("cannot reach the coordinator at 127.0.0.1:1; is it running?"));
  const Outcome nowhere = RunWith({"jobs", "get", "j1"}, {{"HOME", folder_}});
  EXPECT_EQ(nowhere.code, 5);
  EXPECT_THAT(nowhere.err, HasSubstr("[NO_ADDRESS]"));
  EXPECT_EQ(RunWith({"jobs", "get", "j1", "--cluster", folder_ + "/none"}, bad).code, 4);
}

TEST_F(CommandLineTest, WhatIsNoAddressIsRefusedHere) {
  for (const char* address :
       {"localhost:99999", "localhost:0", "localhost", ":4000", "host:40x", "a:b:4000", "host:"}) {
    const Outcome outcome = Run({"jobs", "list", "--coordinator", address});
    EXPECT_EQ(outcome.code, 3) << address;
    EXPECT_THAT(outcome.err,
                HasSubstr(std::string("expected HOST:PORT with a port from 1 to 65535, found '") + address));
    EXPECT_EQ(Run({"sample", "--out", folder_ + "/x", "--router", address}).code, 3) << address;
  }
  EXPECT_EQ(Run({"jobs", "list", "--coordinator", "[::1]:1"}).code, 6) << "an address, where nobody answers";
}

TEST_F(CommandLineTest, AReaderThatHasGoneIsNoErrorAndAFullDiskIsOne) {
  std::ostream broken(nullptr);
  std::ostringstream err;
  Session session{.out = &broken, .err = &err, .env = [](const std::string&) { return std::string(); }};
  EXPECT_EQ(RunAtoll({"version"}, session), 1);
  EXPECT_THAT(err.str(), HasSubstr("cannot write the output"));
  session.reader_gone = [] { return true; };
  EXPECT_EQ(RunAtoll({"version"}, session), 0);
}

// Two ranks of one boot; rank 1 began 2 ms later.
std::vector<storage::StepTrace> TracesOf(int64_t step) {
  std::vector<storage::StepTrace> traces;
  const auto ms = [](int64_t n) { return absl::Milliseconds(n); };
  for (const int32_t rank : {0, 1}) {
    storage::StepTrace trace{.task_id = "j1/train_expert-0", .attempt = 2, .step = step, .rank = rank, .ranks = 2};
    trace.pipeline_ranks = 2;
    trace.generator = "1f1b";
    trace.boot_id = "boot";
    trace.start_monotonic = absl::Seconds(5) + ms(2 * rank);
    trace.start_time = absl::FromUnixSeconds(1'700'000'000);
    trace.step_duration = ms(100 - 2 * rank);
    trace.actions = {{{schedule::ActionKind::kForward, rank, 0}, ms(18 * rank), ms(18 * rank), ms(38), ms(38)},
                     {{schedule::ActionKind::kBackward, rank, 0}, ms(58), ms(58), ms(88), ms(88)}};
    traces.push_back(trace);
  }
  return traces;
}

TEST_F(CommandLineTest, TraceShowsTheLatestWholeStepOfTheLatestAttempt) {
  const auto store = *storage::BlobStore::Open("file://" + folder_ + "/blobs");
  const auto write = [&](const char* attempt, const storage::StepTrace& trace) {
    const std::string prefix = store->UriOf(std::string("jobs/j1/train_expert-0/") + attempt);
    ASSERT_TRUE(store->Write(storage::StepTraceUri(prefix, trace.step, trace.rank), storage::ToJson(trace)).ok());
  };
  Outcome outcome = Run({"jobs", "trace", "j1"});
  EXPECT_EQ(outcome.code, 4);
  EXPECT_THAT(outcome.err, HasSubstr("expected traces of j1/train_expert-0, found none"));
  EXPECT_THAT(outcome.err, HasSubstr("[TRACE_UNKNOWN]"));

  for (const auto& trace : TracesOf(30)) write("1-1", trace);
  for (const auto& trace : TracesOf(10)) write("1-2", trace);
  write("1-2", TracesOf(20)[0]);  // rank 1 has not written its own yet
  outcome = Run({"jobs", "trace", "j1"});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_THAT(outcome.out, HasSubstr("step     10, 100.00 ms"));
  EXPECT_THAT(outcome.out, HasSubstr("1f1b over 2 ranks"));
  EXPECT_THAT(outcome.out, HasSubstr("0     2        68.00 ms  68.0 %"));
  EXPECT_THAT(outcome.out, HasSubstr("rank 0: FFFF"));
  EXPECT_THAT(outcome.out, HasSubstr("rank 1: ..."));
  EXPECT_THAT(outcome.out, HasSubstr("BB==="));

  outcome = Run({"jobs", "trace", "j1", "--task", "expert 0", "--step", "30", "--output", "json"});
  const auto json = nlohmann::json::parse(outcome.out);
  ASSERT_EQ(json.at("ranks").size(), 2u);
  EXPECT_EQ(json.at("ranks")[1].at("aligned_start_us"), 2000);
  EXPECT_EQ(json.at("ranks")[1].at("step"), 30);

  outcome = Run({"jobs", "trace", "j1", "--format", "svg"});
  EXPECT_THAT(outcome.out, HasSubstr("<svg "));
  EXPECT_THAT(outcome.out, HasSubstr("j1/train_expert-0, step 10"));
  EXPECT_THAT(outcome.out, HasSubstr("norm and optimizer 11.0 %"));
  const std::string path = folder_ + "/trace.json";
  outcome = Run({"jobs", "trace", "j1", "--format", "chrome", "--out", path});
  EXPECT_EQ(outcome.code, 0) << outcome.err;
  EXPECT_EQ(outcome.out, "");
  const auto chrome = nlohmann::json::parse(*ReadFile(path));
  const auto events = [&](const char* phase) {
    const auto& all = chrome.at("traceEvents");
    return std::count_if(all.begin(), all.end(), [&](const auto& event) { return event.at("ph") == phase; });
  };
  EXPECT_EQ(events("X"), 6) << "two actions and what follows them, twice";
  EXPECT_EQ(events("s"), 2) << "rank 1 waited for its input, rank 0 for its gradient";

  outcome = Run({"jobs", "trace", "j1", "--step", "11"});
  EXPECT_EQ(outcome.code, 4);
  EXPECT_THAT(outcome.err, HasSubstr("expected a step that left traces (10, 20, 30), found 11"));
  outcome = Run({"jobs", "trace", "j1", "--step", "20"});
  EXPECT_EQ(outcome.code, 8);
  EXPECT_THAT(outcome.err, HasSubstr("step 20: expected the traces of 2 ranks, found only rank 0 [TRACE_INCOMPLETE]"));
  outcome = Run({"jobs", "trace", "j1", "--task", "train_expert-7"});
  EXPECT_EQ(outcome.code, 4);
  EXPECT_THAT(outcome.err, HasSubstr("expected a task that trains (j1/train_expert-0), found 'train_expert-7'"));

  const std::string torn = storage::StepTraceUri(store->UriOf("jobs/j1/train_expert-0/1-2"), 10, 1);
  ASSERT_TRUE(store->Write(torn, storage::ToJson(TracesOf(10)[1]).substr(0, 200)).ok());
  outcome = Run({"jobs", "trace", "j1"});
  EXPECT_EQ(outcome.code, 8);
  EXPECT_THAT(outcome.err, HasSubstr(torn + ": expected a JSON object"));
}

TEST_F(CommandLineTest, PlanComparesEverySchedule) {
  const Outcome text = Run({"plan", SpecPath(), "--ranks", "2", "--image", "1x8x8"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_THAT(text.out, HasSubstr("1f1b *"));
  EXPECT_THAT(text.out, HasSubstr("gpipe"));
  EXPECT_THAT(text.out, HasSubstr("rank 1: 1F0,1B0"));
  const auto json =
      nlohmann::json::parse(Run({"plan", SpecPath(), "--ranks", "2", "--image", "1x8x8", "--output", "json"}).out);
  EXPECT_GE(json.at("schedules").size(), schedule::Generators().size());
  EXPECT_EQ(json.at("plan").at("schedule"), "1f1b");
  // The V schedules on as many ranks as the job's two stages have.
  const Outcome wide =
      Run({"plan", SpecPath(), "--ranks", "4", "--image", "1x8x8", "--set", "pipeline.stages=2", "--format", "csv"});
  EXPECT_THAT(wide.out, HasSubstr("1f1b,true,2,2,"));
  EXPECT_THAT(wide.out, HasSubstr("v-half,false,2,4,"));
  EXPECT_THAT(Run({"plan", SpecPath(), "--ranks", "2", "--image", "1x8x8", "--format", "csv"}).out,
              HasSubstr("schedule,chosen,ranks,stages,replicas,micro_batches"));
  const Outcome picture = Run({"plan", SpecPath(), "--ranks", "2", "--image", "1x8x8", "--format", "svg"});
  EXPECT_EQ(picture.code, 0) << picture.err;
  EXPECT_THAT(picture.out, HasSubstr("1f1b over 2 ranks"));
  EXPECT_THAT(picture.out, HasSubstr("Memory, each rank up to"));
  const std::string profile = folder_ + "/profile.json";
  std::ofstream(profile) << storage::ToJson(planner::CountedProfile(spec::ModelSpec{}, 16, 1));
  const Outcome measured = Run({"plan", SpecPath(), "--ranks", "2", "--profile", profile});
  EXPECT_EQ(measured.code, 0) << measured.err;
  EXPECT_THAT(measured.out, Not(HasSubstr("counted")));
  const Outcome other = Run({"plan", SpecPath(), "--ranks", "2", "--profile", profile, "--set", "model.depth=3"});
  EXPECT_EQ(other.code, 3);
  EXPECT_THAT(other.err, HasSubstr("expected a profile of 5 layers"));
  EXPECT_THAT(other.err, HasSubstr("[PROFILE_MISMATCH]"));
  EXPECT_EQ(Run({"plan", SpecPath(), "--ranks", "2", "--image", "8x8"}).code, 2);
  EXPECT_EQ(Run({"plan", SpecPath(), "--ranks", "2", "--image", "1x7x7"}).code, 3);
  EXPECT_EQ(Run({"plan", SpecPath(), "--ranks", "2"}).code, 4) << "the dataset is not there";
}

TEST_F(CommandLineTest, DatasetsAreImportedListedAndInspected) {
  std::string csv;
  for (int row = 0; row < 40; ++row) {
    for (int pixel = 0; pixel < 64; ++pixel) csv += std::to_string((row * 7 + pixel) % 17) + ",";
    csv += std::to_string(row % 10) + "\n";
  }
  ASSERT_TRUE(WriteFile(folder_ + "/digits.csv", csv).ok());
  const Outcome imported = Run({"dataset", "import", folder_ + "/digits.csv", "--name", "digits"});
  EXPECT_EQ(imported.code, 0) << imported.err;
  EXPECT_THAT(imported.out, HasSubstr("images    1 x 8 x 8"));
  EXPECT_EQ(Run({"dataset", "import", folder_ + "/digits.csv", "--name", "digits"}).code, 5);
  EXPECT_EQ(Run({"dataset", "import", folder_ + "/none.csv", "--name", "other", "--format", "digits-csv"}).code, 4);
  EXPECT_EQ(Run({"dataset", "import", folder_ + "/digits.csv", "--name", "../x"}).code, 3);
  EXPECT_EQ(Run({"dataset", "inspect", "digits", "--sheet", folder_ + "/sheet.png"}).code, 0);
  EXPECT_TRUE(dataset::DecodeImage(*ReadFile(folder_ + "/sheet.png"), "sheet.png").ok());
  const Outcome missing = Run({"dataset", "inspect", "nope"});
  EXPECT_EQ(missing.code, 4);
  EXPECT_THAT(missing.err, HasSubstr("found digits"));
  EXPECT_EQ(nlohmann::json::parse(Run({"dataset", "list", "--output", "json"}).out).size(), 1u);
}

TEST_F(CommandLineTest, CompletionKnowsEveryCommandAndFlag) {
  for (const char* shell : {"bash", "zsh", "fish"}) {
    const Outcome outcome = Run({"completion", shell});
    EXPECT_EQ(outcome.code, 0);
    EXPECT_THAT(outcome.out, HasSubstr("watch")) << shell;
    EXPECT_THAT(outcome.out, HasSubstr("limit-bad")) << shell;
  }
}

TEST_F(CommandLineTest, DownWithoutAClusterSaysSo) {
  const Outcome outcome = Run({"down", "--dir", folder_ + "/c"});
  EXPECT_EQ(outcome.code, 4);
  EXPECT_THAT(outcome.err, HasSubstr("[CLUSTER_NOT_FOUND]"));
}

}  // namespace
}  // namespace atl::client
