// For tests: the command line as a whole, in process, against services of the test.
#pragma once

#include <unistd.h>

#include <filesystem>
#include <map>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "atoll/job/v1/job_service.grpc.pb.h"
#include "atoll/model/v1/model_service.grpc.pb.h"
#include "atoll/sample/v1/sample_service.grpc.pb.h"
#include "client/commands/app.h"
#include "common/base/errors.h"
#include "common/base/files.h"
#include "common/dataset/image_codec.h"
#include "common/rpc/server.h"
#include "common/wire/status.h"
#include "google/rpc/error_details.pb.h"
#include "google/rpc/status.pb.h"
#include "grpcpp/support/error_details.h"
#include "gtest/gtest.h"

namespace atl::client {

using atlpb::job::v1::Job;

inline constexpr char kSpec[] = "model_name: digits\ndataset: digits\nexperts: 2\ntraining: {steps: 40}\n";

inline grpc::Status Error(absl::StatusCode code, const char* reason, const char* message) {
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
    absl::MutexLock lock(&mutex_);
    *response->mutable_job() = JobAt(1);
    if (tells_more_ != 0) response->mutable_job()->MergeFrom(more_);
    if (tells_more_ > 0) --tells_more_;
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
  Job more_ ABSL_GUARDED_BY(mutex_);             // that GetJob tells
  int tells_more_ ABSL_GUARDED_BY(mutex_) = -1;  // how often; -1: always
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
    response->set_channels(1);
    response->set_height(2);
    response->set_width(2);
    response->set_max_images_per_request(3);
    response->mutable_defaults()->set_mode(atlpb::sample::v1::SampleRequest::MODE_NUCLEUS);
    response->mutable_defaults()->set_nucleus_p(0.9);
    response->mutable_defaults()->set_steps(30);
    for (const char* name : {"cat", "dog", "frog", "newt"}) response->add_class_names(name);
    return grpc::Status::OK;
  }
  grpc::Status Sample(grpc::ServerContext*, const atlpb::sample::v1::SampleRequest* request,
                      grpc::ServerWriter<atlpb::sample::v1::SampleResponse>* writer) override {
    {
      absl::MutexLock lock(&mutex_);
      requests_.push_back(*request);
      if (taken_first_ > 0) {
        --taken_first_;
      } else if (refusals_-- > 0) {
        return Refusal();
      }
      if (latent_) return rpc::ToGrpc(FieldError("format", "LATENT_MODEL", "expected raw, found PNG"));
    }
    atlpb::sample::v1::SampleResponse progress;
    progress.mutable_queued()->set_position(0);
    writer->Write(progress);
    progress.mutable_progress()->set_step(1);
    progress.mutable_progress()->set_total_steps(2);
    if (request->preview_every() > 0) *progress.mutable_progress()->add_previews() = ImageOf(*request, 0);
    writer->Write(progress);
    for (int i = request->classes_size() - 1; i >= 0; --i) {
      atlpb::sample::v1::SampleResponse response;
      *response.mutable_image() = ImageOf(*request, i);
      writer->Write(response);
    }
    {
      absl::MutexLock lock(&mutex_);
      if (incomplete_) return grpc::Status::OK;
    }
    atlpb::sample::v1::SampleResponse response;
    response.mutable_done()->set_version("v2");
    response.mutable_done()->mutable_routing()->add_chosen(request->classes_size());
    response.mutable_done()->mutable_routing()->set_image_steps(request->classes_size());
    response.mutable_done()->mutable_routing()->set_switches(1);
    writer->Write(response);
    return grpc::Status::OK;
  }

  static atlpb::sample::v1::Image ImageOf(const atlpb::sample::v1::SampleRequest& request, int index) {
    atlpb::sample::v1::Image image;
    image.set_index(index);
    image.set_class_label(request.classes(index));
    image.set_seed(request.seeds(index));
    image.set_channels(1);
    image.set_height(2);
    image.set_width(2);
    const dataset::Image pixels{
        .channels = 1, .height = 2, .width = 2, .pixels = {static_cast<uint8_t>(request.classes(index)), 0, 0, 0}};
    image.set_data(*dataset::EncodePng(pixels));
    return image;
  }

  // As a router whose queue is full: with a delay.
  static grpc::Status Refusal() {
    google::rpc::Status wire;
    wire.set_code(static_cast<int>(absl::StatusCode::kResourceExhausted));
    wire.set_message("the queue is full");
    google::rpc::ErrorInfo info;
    info.set_reason("QUEUE_FULL");
    info.set_domain(rpc::kErrorDomain);
    wire.add_details()->PackFrom(info);
    google::rpc::RetryInfo retry;
    retry.mutable_retry_delay()->set_seconds(2);
    wire.add_details()->PackFrom(retry);
    grpc::Status status;
    grpc::SetErrorDetails(wire, &status);
    return status;
  }

  absl::Mutex mutex_;
  int not_yet_ ABSL_GUARDED_BY(mutex_) = 0;
  bool incomplete_ ABSL_GUARDED_BY(mutex_) = false;
  bool latent_ ABSL_GUARDED_BY(mutex_) = false;
  int taken_first_ ABSL_GUARDED_BY(mutex_) = 0;  // requests before the refusals
  int refusals_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<atlpb::sample::v1::SampleRequest> requests_ ABSL_GUARDED_BY(mutex_);
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
  Outcome Run(const std::vector<std::string>& arguments, bool terminal = false) {
    std::map<std::string, std::string> environment = {{"HOME", folder_},
                                                      {"ATOLL_COORDINATOR", server_->address()},
                                                      {"ATOLL_ROUTER", server_->address()},
                                                      {"ATOLL_BLOB_STORE", "file://" + folder_ + "/blobs"}};
    return RunWith(arguments, environment, terminal);
  }
  static Outcome RunWith(const std::vector<std::string>& arguments, std::map<std::string, std::string> environment,
                         bool terminal = false) {
    std::ostringstream out;
    std::ostringstream err;
    Session session;
    session.out = &out;
    session.err = &err;
    session.terminal = terminal;
    session.width = terminal ? 80 : 0;
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

}  // namespace atl::client
