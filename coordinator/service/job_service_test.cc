// JobService and ModelService over real gRPC.
#include <sys/stat.h>

#include <filesystem>
#include <thread>

#include "common/base/errors.h"
#include "coordinator/service/test_support.h"
#include "gmock/gmock.h"

namespace atl::coordinator {
namespace {

using atlpb::job::v1::Job;
using atlpb::job::v1::JobService;
using atlpb::model::v1::ModelService;
using ::testing::HasSubstr;

class JobServiceTest : public CoordinatorFixture {
 protected:
  size_t CountJobs() {
    atlpb::job::v1::ListJobsResponse list;
    EXPECT_TRUE(Call(*jobs_, &JobService::Stub::ListJobs, atlpb::job::v1::ListJobsRequest(), &list).ok());
    return list.jobs_size();
  }
};

TEST_F(JobServiceTest, AMissingDatasetIsNamedBesideTheKnownOnes) {
  WriteDataset("faces", 10);
  const auto job = Submit(SubmitRequest("didgets"));
  EXPECT_EQ(job.status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(ErrorReason(job.status()), "DATASET_UNKNOWN");
  EXPECT_THAT(std::string(job.status().message()), HasSubstr("'didgets'; known: digits, faces"));
}

TEST_F(JobServiceTest, BadSpecsNameTheirField) {
  WriteDataset("tiny", 2);
  struct Case {
    std::function<void(atlpb::job::v1::JobSpec*)> change;
    std::string field;
  };
  const Case cases[] = {
      {[](auto* spec) { spec->clear_experts(); }, "experts"},
      {[](auto* spec) { spec->mutable_training()->set_steps(-1); }, "training.steps"},
      {[](auto* spec) {
         spec->set_dataset("tiny");
         spec->set_experts(3);
       },
       "experts"},
  };
  for (const Case& c : cases) {
    atlpb::job::v1::SubmitJobRequest request = SubmitRequest();
    c.change(request.mutable_spec());
    const auto job = Submit(request);
    EXPECT_EQ(job.status().code(), absl::StatusCode::kInvalidArgument) << job.status();
    EXPECT_EQ(ErrorField(job.status()), c.field) << job.status();
  }
  EXPECT_EQ(CountJobs(), 0u);
}

atlpb::job::v1::FrozenComponent* AddLatent(atlpb::job::v1::JobSpec* spec, const std::string& uri) {
  auto* latent = spec->add_frozen();
  latent->set_name("latent");
  latent->set_output("latent");
  latent->add_torchscript(uri);
  for (const int32_t size : {4, 4, 4}) latent->add_shape(size);
  return latent;
}

TEST_F(JobServiceTest, AJobKeepsTheHashesOfTheFilesThatItNames) {
  const auto encoder = blobs_->Write(blobs_->UriOf("inputs/encoder.pt"), "encoder");
  const auto latent = blobs_->Write(blobs_->UriOf("inputs/latent.pt"), "latent");
  ASSERT_TRUE(encoder.ok() && latent.ok());
  auto request = SubmitRequest();
  request.mutable_spec()->mutable_features()->set_kind("torchscript");
  request.mutable_spec()->mutable_features()->set_encoder_uri(encoder->uri);
  AddLatent(request.mutable_spec(), latent->uri);
  const auto submitted = Submit(request);
  ASSERT_TRUE(submitted.ok()) << submitted.status();
  coordinator_.reset();
  StartCoordinator();
  atlpb::job::v1::GetJobRequest get;
  get.set_job_id(submitted->job_id());
  atlpb::job::v1::GetJobResponse stored;
  ASSERT_TRUE(Call(*jobs_, &JobService::Stub::GetJob, get, &stored).ok());
  EXPECT_EQ(stored.job().spec().features().encoder_sha256(), encoder->sha256);
  EXPECT_THAT(stored.job().spec().frozen(0).file_sha256(), testing::ElementsAre(latent->sha256));
  // A job that gives the same hashes is the same job.
  *request.mutable_spec() = stored.job().spec();
  const auto again = Submit(request);
  ASSERT_TRUE(again.ok()) << again.status();
  EXPECT_EQ(again->spec().SerializeAsString(), stored.job().spec().SerializeAsString());
}

TEST_F(JobServiceTest, FilesThatAreNotThereOrNotTheOnesThatAreMeantAreRefused) {
  const auto file = blobs_->Write(blobs_->UriOf("inputs/a.pt"), "a");
  ASSERT_TRUE(file.ok());
  const std::string other = std::string(64, '0');
  const std::string none = blobs_->UriOf("inputs/none.pt");
  using Spec = atlpb::job::v1::JobSpec;
  const auto encode = [](Spec* spec, const std::string& uri, const std::string& sha256) {
    spec->mutable_features()->set_kind("torchscript");
    spec->mutable_features()->set_encoder_uri(uri);
    spec->mutable_features()->set_encoder_sha256(sha256);
  };
  struct Case {
    std::function<void(Spec*)> change;
    std::string field;
    std::string reason;
    std::string message;
  };
  const Case cases[] = {
      {[&](Spec* spec) { AddLatent(spec, none); }, "frozen[0].torchscript[0]", "JOB_FILE",
       "expected a file, found none at " + none},
      {[&](Spec* spec) { AddLatent(spec, "file:///elsewhere/a.pt"); }, "frozen[0].torchscript[0]", "JOB_FILE",
       "expected a file below " + blobs_->UriOf("inputs/")},
      {[&](Spec* spec) { AddLatent(spec, file->uri)->add_file_sha256(other); }, "frozen[0].file_sha256[0]", "JOB_FILE",
       file->uri + ": expected SHA-256 " + other + " as given, found " + file->sha256},
      {[&](Spec* spec) { AddLatent(spec, file->uri)->add_file_sha256("ABC"); }, "frozen[0].file_sha256[0]",
       "INVALID_SHA256", "expected 64 lower-case hex digits, found 'ABC'"},
      {[&](Spec* spec) { encode(spec, none, ""); }, "features.encoder_uri", "JOB_FILE",
       "expected a file, found none at " + none},
      {[&](Spec* spec) { encode(spec, file->uri, other); }, "features.encoder_sha256", "JOB_FILE",
       "expected SHA-256 " + other + " as given, found " + file->sha256},
  };
  for (const Case& c : cases) {
    auto request = SubmitRequest();
    c.change(request.mutable_spec());
    const auto job = Submit(request);
    EXPECT_EQ(job.status().code(), absl::StatusCode::kInvalidArgument) << job.status();
    EXPECT_EQ(ErrorField(job.status()), c.field) << job.status();
    EXPECT_EQ(ErrorReason(job.status()), c.reason) << job.status();
    EXPECT_THAT(std::string(job.status().message()), HasSubstr(c.message));
  }
  EXPECT_EQ(CountJobs(), 0u);
}

// Islands that run a job get keys for the files that it names.
TEST_F(JobServiceTest, FilesThatAreNotBelowInputsAreRefused) {
  for (const char* path : {"jobs/other/train/1-1/weights", "models/m/v/weights", "datasets/faces/shard", "frozen/key/f",
                           "loose", "inputs/a%2e", "inputs/*", "inputs/a b"}) {
    ASSERT_TRUE(blobs_->Write(blobs_->UriOf(path), "secret").ok()) << path;
  }
  const std::string inputs = blobs_->root().substr(std::string("file://").size()) + "/inputs";
  std::filesystem::create_symlink("../loose", inputs + "/link");
  std::filesystem::create_directory_symlink("../jobs", inputs + "/jobs");
  ASSERT_EQ(mkfifo((inputs + "/pipe").c_str(), 0600), 0);
  const std::string below = "expected a file below " + blobs_->UriOf("inputs/");
  struct Case {
    std::string path;
    std::string message;
  };
  const Case cases[] = {
      {"jobs/other/train/1-1/weights", below},
      {"models/m/v/weights", below},
      {"datasets/faces/shard", below},
      {"frozen/key/f", below},
      {"coordinator/epochs/000000000001", below},
      {"loose", below},
      {"inputs", below},
      {"inputs/", below},
      {"inputs/../loose", below},
      {"inputs/./link", below},
      {"inputs//link", below},
      {"inputs/a%2e", below},
      {"inputs/%2e%2e/loose", below},
      {"inputs/*", below},
      {"inputs/a b", below},
      {"../elsewhere", below},
      {"inputs/link", "expected a plain file, without links on the way to it; found "},
      {"inputs/jobs/other/train/1-1/weights", "expected a plain file, without links on the way to it; found "},
      {"inputs/pipe", "expected a plain file, without links on the way to it; found "},
  };
  using Spec = atlpb::job::v1::JobSpec;
  const std::pair<std::string, std::function<void(Spec*, const std::string&)>> fields[] = {
      {"frozen[0].torchscript[0]", [](Spec* spec, const std::string& uri) { AddLatent(spec, uri); }},
      {"frozen[0].weights",
       [](Spec* spec, const std::string& uri) {
         auto* component = spec->add_frozen();
         component->set_name("labels");
         component->set_input("label");
         component->add_layers()->set_kind("embedding");
         component->mutable_layers(0)->set_width(8);
         component->set_weights(uri);
       }},
      {"features.encoder_uri",
       [](Spec* spec, const std::string& uri) {
         spec->mutable_features()->set_kind("torchscript");
         spec->mutable_features()->set_encoder_uri(uri);
       }},
      // A field that its kind does not use.
      {"features.encoder_uri",
       [](Spec* spec, const std::string& uri) { spec->mutable_features()->set_encoder_uri(uri); }},
  };
  for (const Case& c : cases) {
    for (const auto& [field, name] : fields) {
      auto request = SubmitRequest();
      name(request.mutable_spec(), blobs_->UriOf(c.path));
      const auto job = Submit(request);
      EXPECT_EQ(job.status().code(), absl::StatusCode::kInvalidArgument) << c.path << ": " << job.status();
      EXPECT_EQ(ErrorReason(job.status()), "JOB_FILE") << c.path;
      EXPECT_EQ(ErrorField(job.status()), field) << c.path;
      EXPECT_THAT(std::string(job.status().message()), HasSubstr(c.message)) << c.path;
    }
  }
  EXPECT_EQ(CountJobs(), 0u);
}

TEST_F(JobServiceTest, ValidateOnlyChecksEverythingAndStoresNothing) {
  atlpb::job::v1::SubmitJobRequest request = SubmitRequest();
  request.set_validate_only(true);
  request.set_request_id("r");
  const auto job = Submit(request);
  ASSERT_TRUE(job.ok()) << job.status();
  EXPECT_EQ(job->tasks_size(), 7);
  EXPECT_EQ(job->spec().training().batch_size(), 64) << "defaults are filled in";
  EXPECT_EQ(CountJobs(), 0u);
}

TEST_F(JobServiceTest, ARepeatedSubmissionGetsTheFirstAnswer) {
  atlpb::job::v1::SubmitJobRequest request = SubmitRequest();
  request.set_request_id("r-1");
  const auto first = Submit(request);
  ASSERT_TRUE(first.ok()) << first.status();
  coordinator_.reset();
  StartCoordinator();
  const auto second = Submit(request);
  ASSERT_TRUE(second.ok()) << second.status();
  EXPECT_EQ(second->SerializeAsString(), first->SerializeAsString());
  EXPECT_EQ(CountJobs(), 1u);
  request.mutable_spec()->set_experts(2);
  const auto other = Submit(request);
  EXPECT_EQ(other.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ErrorReason(other.status()), "REQUEST_ID_REUSED");
}

TEST_F(JobServiceTest, PagesEndAndBadTokensAreRefused) {
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(Submit(SubmitRequest()).ok());
  atlpb::job::v1::ListJobsRequest request;
  request.set_page_size(2);
  atlpb::job::v1::ListJobsResponse first;
  ASSERT_TRUE(Call(*jobs_, &JobService::Stub::ListJobs, request, &first).ok());
  EXPECT_EQ(first.jobs_size(), 2);
  ASSERT_NE(first.next_page_token(), "");
  request.set_page_token(first.next_page_token());
  atlpb::job::v1::ListJobsResponse second;
  ASSERT_TRUE(Call(*jobs_, &JobService::Stub::ListJobs, request, &second).ok());
  EXPECT_EQ(second.jobs_size(), 1);
  EXPECT_EQ(second.next_page_token(), "");
  EXPECT_EQ(second.jobs(0).tasks_size(), 0);
  atlpb::job::v1::ListJobsResponse none;
  request.set_page_token("garbage");
  EXPECT_EQ(ErrorReason(Call(*jobs_, &JobService::Stub::ListJobs, request, &none)), "INVALID_PAGE_TOKEN");
  request.clear_page_token();
  request.set_page_size(-1);
  EXPECT_EQ(ErrorReason(Call(*jobs_, &JobService::Stub::ListJobs, request, &none)), "INVALID_PAGE_SIZE");
}

TEST_F(JobServiceTest, LargeSpecsFillPagesAndThoseThatCouldNotBeReadAgainAreRefused) {
  atlpb::job::v1::SubmitJobRequest large = SubmitRequest();
  // These features need no column, so the coordinator does not check it.
  std::string& column = *large.mutable_spec()->mutable_features()->mutable_column();
  column = std::string(2 << 20, 'x');
  const absl::Status refused = Submit(large).status();
  EXPECT_EQ(ErrorReason(refused), "SPEC_TOO_LARGE") << refused;
  column = std::string(1'000'000, 'x');
  for (int i = 0; i < 10; ++i) {
    const auto job = Submit(large);
    ASSERT_TRUE(job.ok()) << job.status();
  }
  atlpb::job::v1::ListJobsRequest request;
  atlpb::job::v1::ListJobsResponse first;
  ASSERT_TRUE(Call(*jobs_, &JobService::Stub::ListJobs, request, &first).ok());
  EXPECT_EQ(first.jobs_size(), 8);
  request.set_page_token(first.next_page_token());
  atlpb::job::v1::ListJobsResponse second;
  ASSERT_TRUE(Call(*jobs_, &JobService::Stub::ListJobs, request, &second).ok());
  EXPECT_EQ(second.jobs_size(), 2);
  EXPECT_EQ(second.next_page_token(), "");
  coordinator_.reset();
  StartCoordinator();
  EXPECT_EQ(CountJobs(), 8u) << "a page of those that were read at the start";
}

TEST_F(JobServiceTest, AWatchSendsEveryStateUntilTheJobEnds) {
  const auto job = Submit(SubmitRequest());
  ASSERT_TRUE(job.ok()) << job.status();
  ASSERT_TRUE(Register("a").ok());
  std::thread island([this] {
    for (int task = 0; task < 7; ++task) FinishNext("a");
  });
  grpc::ClientContext context;
  rpc::SetTimeout(&context, absl::Seconds(20));
  atlpb::job::v1::WatchJobRequest request;
  request.set_job_id(job->job_id());
  const auto reader = jobs_->WatchJob(&context, request);
  atlpb::job::v1::WatchJobResponse response;
  int64_t revision = 0;
  while (reader->Read(&response)) {
    EXPECT_GE(response.job().revision(), revision);
    revision = response.job().revision();
  }
  EXPECT_TRUE(reader->Finish().ok());
  EXPECT_EQ(response.job().state(), Job::STATE_SUCCEEDED);
  EXPECT_EQ(response.job().model_version(), job->job_id());
  island.join();
}

TEST_F(JobServiceTest, AWatchResumesAfterItsRevision) {
  const auto job = Submit(SubmitRequest());
  ASSERT_TRUE(job.ok());
  grpc::ClientContext context;
  rpc::SetTimeout(&context, absl::Seconds(20));
  atlpb::job::v1::WatchJobRequest request;
  request.set_job_id(job->job_id());
  request.set_after_revision(job->revision());
  const auto reader = jobs_->WatchJob(&context, request);
  ASSERT_TRUE(Register("a").ok());
  ASSERT_TRUE(Claim("a").ok());
  atlpb::job::v1::WatchJobResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_GT(response.job().revision(), job->revision()) << "what was seen already is not sent again";
  context.TryCancel();
  while (reader->Read(&response)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(JobServiceTest, ProgressReachesTheWatch) {
  const auto job = Submit(SubmitRequest());
  ASSERT_TRUE(Register("a").ok());
  const auto claim = Claim("a");
  ASSERT_TRUE(claim.ok() && claim->has_grant());
  atlpb::island::v1::ReportProgressRequest report;
  *report.mutable_token() = claim->grant().token();
  report.set_sequence(2);
  report.mutable_progress()->set_step(42);
  atlpb::island::v1::ReportProgressResponse reported;
  using atlpb::island::v1::IslandService;
  ASSERT_TRUE(Call(*islands_, &IslandService::Stub::ReportProgress, report, &reported).ok());
  report.set_sequence(1);  // overtaken on the way
  report.mutable_progress()->set_step(41);
  ASSERT_TRUE(Call(*islands_, &IslandService::Stub::ReportProgress, report, &reported).ok());
  atlpb::job::v1::GetJobRequest request;
  request.set_job_id(job->job_id());
  atlpb::job::v1::GetJobResponse response;
  ASSERT_TRUE(Call(*jobs_, &JobService::Stub::GetJob, request, &response).ok());
  EXPECT_EQ(response.job().tasks(0).progress().step(), 42);
}

TEST_F(JobServiceTest, CallsAboutUnknownThingsSayWhat) {
  atlpb::job::v1::GetJobRequest get;
  atlpb::job::v1::GetJobResponse got;
  EXPECT_EQ(ErrorReason(Call(*jobs_, &JobService::Stub::GetJob, get, &got)), "JOB_UNKNOWN");
  get.set_job_id("nope");
  const absl::Status status = Call(*jobs_, &JobService::Stub::GetJob, get, &got);
  EXPECT_EQ(ErrorReason(status), "JOB_UNKNOWN");
  EXPECT_THAT(std::string(status.message()), HasSubstr("'nope'"));
  atlpb::model::v1::GetModelRequest model;
  model.set_name("nope");
  atlpb::model::v1::GetModelResponse found;
  EXPECT_EQ(ErrorReason(Call(*models_, &ModelService::Stub::GetModel, model, &found)), "MODEL_UNKNOWN");
  grpc::ClientContext context;
  rpc::SetTimeout(&context, absl::Seconds(20));
  atlpb::job::v1::WatchJobRequest watch;
  watch.set_job_id("nope");
  const auto reader = jobs_->WatchJob(&context, watch);
  atlpb::job::v1::WatchJobResponse response;
  EXPECT_FALSE(reader->Read(&response));
  EXPECT_EQ(ErrorReason(rpc::FromGrpc(reader->Finish())), "JOB_UNKNOWN");
}

TEST_F(JobServiceTest, AModelWatchWaitsForTheFirstVersionAndFollowsTheServingRow) {
  grpc::ClientContext context;
  rpc::SetTimeout(&context, absl::Seconds(20));
  atlpb::model::v1::WatchModelRequest request;
  request.set_name("digits");
  const auto reader = models_->WatchModel(&context, request);
  const auto job = Submit(SubmitRequest());
  ASSERT_TRUE(job.ok());
  ASSERT_TRUE(Register("a").ok());
  for (int task = 0; task < 7; ++task) FinishNext("a");
  atlpb::model::v1::WatchModelResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.model().serving_generation(), 1);
  EXPECT_EQ(response.model().serving_version(), job->job_id());
  EXPECT_EQ(response.model().versions(0).uri(), blobs_->UriOf("models/digits/" + job->job_id()));

  atlpb::model::v1::SetServingVersionRequest set;
  set.set_name("digits");
  set.set_version(job->job_id());
  set.set_expected_generation(1);
  set.set_request_id("set-1");
  atlpb::model::v1::SetServingVersionResponse answer;
  ASSERT_TRUE(Call(*models_, &ModelService::Stub::SetServingVersion, set, &answer).ok());
  ASSERT_TRUE(Call(*models_, &ModelService::Stub::SetServingVersion, set, &answer).ok()) << "repeated";
  EXPECT_EQ(answer.model().serving_generation(), 2);
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.model().serving_generation(), 2);
  set.set_request_id("set-2");
  EXPECT_EQ(ErrorReason(Call(*models_, &ModelService::Stub::SetServingVersion, set, &answer)), "STALE_GENERATION");
  context.TryCancel();
  reader->Finish();
}

}  // namespace
}  // namespace atl::coordinator
