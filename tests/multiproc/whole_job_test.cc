// A whole job over real processes: two islands of two ranks.
#include <gtest/gtest.h>

#include <map>
#include <set>

#include "atoll/sample/v1/sample_service.grpc.pb.h"
#include "common/formats/model_index.h"
#include "common/rpc/channel.h"
#include "tests/multiproc/cluster.h"

namespace atl::testing_cluster {
namespace {

namespace sample = atlpb::sample::v1;

// The pixels of the images, as soon as the router serves a model.
std::vector<std::string> Sample(const std::string& address, const sample::SampleRequest& request) {
  const auto stub = sample::SampleService::NewStub(rpc::MakeChannel(address));
  std::vector<std::string> images(request.classes_size());
  grpc::Status status;
  Await(absl::Seconds(60), [&] {
    grpc::ClientContext context;
    rpc::SetTimeout(&context, absl::Seconds(60), /*wait_for_ready=*/true);
    const auto stream = stub->Sample(&context, request);
    sample::SampleResponse response;
    while (stream->Read(&response)) {
      if (response.has_image()) images[response.image().index()] = response.image().data();
    }
    status = stream->Finish();
    // No model is known yet, or none is loaded.
    return status.error_code() != grpc::StatusCode::FAILED_PRECONDITION &&
           status.error_code() != grpc::StatusCode::UNAVAILABLE;
  });
  EXPECT_TRUE(status.ok()) << status.error_message();
  return images;
}

TEST(WholeJob, TwoIslandsOfTwoRanksPublishAModel) {
  Cluster cluster({.islands = 2, .ranks = 2});
  cluster.WriteDataset();
  const std::string job_id = cluster.Submit(SmallJob(/*experts=*/2, /*steps=*/30, /*checkpoint_every=*/10));
  ASSERT_TRUE(cluster.AwaitSuccess(job_id, absl::Seconds(120)));
  const atlpb::job::v1::Job job = cluster.GetJob(job_id);
  EXPECT_FALSE(job.model_version().empty());
  for (const atlpb::job::v1::Task& task : job.tasks()) {
    EXPECT_EQ(task.state(), atlpb::job::v1::Task::STATE_SUCCEEDED) << task.DebugString();
    EXPECT_EQ(task.attempt(), 1) << task.DebugString();
  }
  for (int expert = 0; expert < 2; ++expert) {
    const storage::CheckpointReader checkpoint = cluster.FinalCheckpoint(job_id, expert);
    EXPECT_EQ(checkpoint.manifest().step, 30);
    EXPECT_EQ(checkpoint.manifest().samples_consumed, 240);
    EXPECT_EQ(checkpoint.manifest().files.size(), 2u) << "one per stage";
  }
}

TEST(WholeJob, ASelfConditionedModelIsTrainedByAPipelineAndSampled) {
  Cluster cluster({.islands = 1, .ranks = 2});
  cluster.WriteDataset();
  spec::JobSpec spec = SmallJob(/*experts=*/2, /*steps=*/12, /*checkpoint_every=*/6);
  spec.model.self_conditioning = true;
  const std::string job_id = cluster.Submit(spec);
  ASSERT_TRUE(cluster.AwaitSuccess(job_id, absl::Seconds(120)));
  const std::string folder = storage::ModelFolderUri(*cluster.store(), spec.model_name, job_id);
  const auto index = storage::ParseModelIndex(*cluster.store()->Read(folder + "/model_index.json"), "index");
  ASSERT_TRUE(index.ok()) << index.status();
  EXPECT_TRUE(index->self_conditioning);
  EXPECT_NE(cluster.store()->Read(folder + "/expert_0/config.json")->find("\"self_conditioning\": true"),
            std::string::npos);

  const std::string router = cluster.StartRouter();
  sample::SampleRequest request;
  for (const int label : {-1, 3, 7}) request.add_classes(label);
  request.set_mode(sample::SampleRequest::MODE_FULL);
  request.set_steps(4);
  request.set_format(sample::SampleRequest::FORMAT_RAW);
  const std::vector<std::string> images = Sample(router, request);
  EXPECT_EQ(std::set<std::string>(images.begin(), images.end()).size(), 3u);
  for (const std::string& image : images) EXPECT_EQ(image.size(), 8u * 8 * sizeof(float));
  request.set_steps(1);
  EXPECT_NE(Sample(router, request)[1], images[1]);
}

TEST(WholeJob, KeptFrozenOutputsAreComputedOnceByTheRanksTogether) {
  Cluster cluster({.islands = 1, .ranks = 2});
  cluster.WriteDataset();
  spec::JobSpec spec = SmallJob(/*experts=*/2, /*steps=*/6, /*checkpoint_every=*/6);
  spec.frozen = {{.name = "encoder", .output = "latent", .layers = {{.kind = "convolution", .width = 2, .stride = 2}}},
                 {.name = "labels",
                  .input = "label",
                  .output = "condition",
                  .layers = {{.kind = "embedding", .width = spec.model.width}}}};
  spec.pipeline.frozen_cache = "always";
  const std::string job_id = cluster.Submit(spec);
  ASSERT_TRUE(cluster.AwaitSuccess(job_id, absl::Seconds(120)));
  const auto files = cluster.store()->List(cluster.store()->UriOf("frozen"));
  ASSERT_TRUE(files.ok()) << files.status();
  std::map<std::string, std::set<std::string>> folders;  // by kind of input
  for (const storage::FileInfo& file : *files) {
    const size_t name_at = file.uri.rfind('/') + 1;
    const std::string name = file.uri.substr(name_at);
    folders[name.substr(0, name.find('-'))].insert(file.uri.substr(0, name_at));
  }
  EXPECT_EQ(folders["image"].size(), 3u) << "two experts and the router network";
  EXPECT_EQ(folders["label"].size(), 2u) << "the router network reads no condition";
}

}  // namespace
}  // namespace atl::testing_cluster
