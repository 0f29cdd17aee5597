// A whole job over S3, from the dataset to pictures; and whether a changed byte in what it left is found.
#include <cstdlib>
#include <fstream>
#include <set>
#include <sstream>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "atoll/sample/v1/sample_service.grpc.pb.h"
#include "client/fsck.h"
#include "common/rpc/channel.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/multiproc/cluster.h"
#include "tests/s3/s3_server.h"

namespace atl::testing_s3 {
namespace {

namespace job = atlpb::job::v1;
namespace sample = atlpb::sample::v1;
using testing_cluster::Cluster;

constexpr char kPrefix[] = "whole";

std::string ReadWhole(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::ostringstream bytes;
  bytes << file.rdbuf();
  return bytes.str();
}

// In place, as a disk does it: the object keeps its size and what else the server knows of it.
void Flip(const std::string& path) {
  const std::string bytes = ReadWhole(path);
  const size_t at = bytes.size() / 2;
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(static_cast<std::streamoff>(at));
  file.put(static_cast<char>(bytes[at] ^ 1));
}

int Images(const std::string& router) {
  const auto stub = sample::SampleService::NewStub(rpc::MakeChannel(router));
  sample::SampleRequest request;
  for (const int label : {-1, 3}) request.add_classes(label);
  request.set_mode(sample::SampleRequest::MODE_FULL);
  request.set_steps(3);
  request.set_format(sample::SampleRequest::FORMAT_RAW);
  int images = 0;
  grpc::Status status;
  testing_cluster::Await(absl::Seconds(60), [&] {
    grpc::ClientContext context;
    rpc::SetTimeout(&context, absl::Seconds(60), /*wait_for_ready=*/true);
    const auto stream = stub->Sample(&context, request);
    sample::SampleResponse response;
    images = 0;
    while (stream->Read(&response)) images += response.has_image() ? 1 : 0;
    status = stream->Finish();
    // No model is known yet, or none is loaded.
    return status.error_code() != grpc::StatusCode::FAILED_PRECONDITION &&
           status.error_code() != grpc::StatusCode::UNAVAILABLE;
  });
  EXPECT_TRUE(status.ok()) << status.error_message();
  return images;
}

// The paths of bad files below the root, and all of them.
std::set<std::string> BadFiles(Cluster& cluster, const fsck::FsckOptions& options, int64_t* unnamed) {
  const auto report = fsck::CheckBlobStore(cluster.store(), options);
  EXPECT_TRUE(report.ok()) << report.status();
  std::set<std::string> bad;
  for (const fsck::BadFile& file : report->bad) {
    EXPECT_EQ(file.problem, fsck::BadFile::Problem::kDamaged) << file.uri << ": " << file.detail;
    bad.insert(file.uri.substr(cluster.store()->root().size() + 1));
  }
  *unnamed = report->unnamed_files;
  return bad;
}

TEST(S3Job, IsTrainedAndSampledAndEveryFileThatItLeftIsGuarded) {
  ATOLL_REQUIRE_S3_SERVER();
  const S3Server server;
  for (const std::string& variable : S3Server::Environment()) {
    const size_t equals = variable.find('=');
    setenv(variable.substr(0, equals).c_str(), variable.substr(equals + 1).c_str(), 1);
  }
  Cluster cluster({.islands = 1, .ranks = 2, .blob_store = S3Server::Uri(kPrefix, server.port(), "")});
  cluster.WriteDataset();
  spec::JobSpec spec = testing_cluster::SmallJob(/*experts=*/2, /*steps=*/10, /*checkpoint_every=*/5);
  spec.frozen = {{.name = "encoder", .output = "latent", .layers = {{.kind = "convolution", .width = 2, .stride = 2}}}};
  spec.pipeline.frozen_cache = "always";
  const std::string job_id = cluster.Submit(spec);
  ASSERT_TRUE(cluster.AwaitSuccess(job_id, absl::Seconds(180)));
  EXPECT_EQ(cluster.FinalCheckpoint(job_id, 0).manifest().step, 10);
  EXPECT_EQ(Images(cluster.StartRouter()), 2);
  EXPECT_EQ(cluster.Logs().find(S3Server::kSecretKey), std::string::npos);

  fsck::FsckOptions options;
  const job::Job finished = cluster.GetJob(job_id);
  for (const job::Task& task : finished.tasks()) {
    for (const job::Artifact& output : task.outputs()) {
      if (!output.sha256().empty()) options.known.push_back({output.uri(), output.sha256(), task.task_id()});
    }
  }
  int64_t unnamed = 0;
  EXPECT_EQ(BadFiles(cluster, options, &unnamed), std::set<std::string>());

  // First everything but what names other files, then that: a manifest that is damaged names nothing.
  const auto files = cluster.store()->List(cluster.store()->root());
  ASSERT_TRUE(files.ok()) << files.status();
  std::set<std::string> flipped[2];
  int64_t coordinators = 0;
  for (const storage::FileInfo& file : *files) {
    const std::string path = file.uri.substr(cluster.store()->root().size() + 1);
    if (path.starts_with("coordinator/")) ++coordinators;
    if (path.starts_with("coordinator/") || path.find("/trace/") != std::string::npos || file.bytes == 0) continue;
    const bool names = path.ends_with("manifest.json") || path.ends_with("model_index.json");
    flipped[names ? 1 : 0].insert(path);
  }
  EXPECT_GT(flipped[0].size(), 15u);
  EXPECT_GT(flipped[1].size(), 4u);
  for (const std::set<std::string>& round : flipped) {
    for (const std::string& path : round) Flip(server.FileOf(fmt::format("{}/{}", kPrefix, path)));
    EXPECT_EQ(BadFiles(cluster, options, &unnamed), round);
    for (const std::string& path : round) Flip(server.FileOf(fmt::format("{}/{}", kPrefix, path)));
  }
  EXPECT_EQ(BadFiles(cluster, options, &unnamed), std::set<std::string>());
  EXPECT_GE(unnamed, coordinators);
}

}  // namespace
}  // namespace atl::testing_s3
