// Shared by the service tests: a coordinator in this process on temporary folders, with a dataset, and calls to it.
#pragma once

#include <memory>
#include <string>

#include "atoll/island/v1/island_service.grpc.pb.h"
#include "atoll/job/v1/job_service.grpc.pb.h"
#include "atoll/model/v1/model_service.grpc.pb.h"
#include "common/dataset/dataset.h"
#include "common/formats/checkpoint.h"
#include "common/rpc/channel.h"
#include "common/storage/testing.h"
#include "common/wire/status.h"
#include "common/wire/time_wire.h"
#include "coordinator/service/coordinator.h"
#include "gtest/gtest.h"

namespace atl::coordinator {

class CoordinatorFixture : public testing::Test {
 protected:
  CoordinatorFixture() { StartCoordinator(); }

  void StartCoordinator(bool restored = false, bool adopt = false,
                        std::shared_ptr<const rpc::Security> security = nullptr) {
    CoordinatorOptions options;
    options.store = folder_.File("store.db");
    options.blob_store = "file://" + folder_.File("blobs");
    options.collector.min_age = absl::ZeroDuration();
    options.watch_interval = absl::Milliseconds(1);
    options.audit_log = audit_log();
    options.security = std::move(security);
    options.restored = restored;
    options.adopt = adopt;
    options.storage_grants = storage_grants_;
    auto coordinator = Coordinator::Start(std::move(options));
    ASSERT_TRUE(coordinator.ok()) << coordinator.status();
    coordinator_ = *std::move(coordinator);
    auto blobs = storage::BlobStore::Open("file://" + folder_.File("blobs"));
    ASSERT_TRUE(blobs.ok()) << blobs.status();
    blobs_ = *std::move(blobs);
    WriteDataset("digits", 1000);
    const auto channel = rpc::MakeChannel(coordinator_->address());
    jobs_ = atlpb::job::v1::JobService::NewStub(channel);
    islands_ = atlpb::island::v1::IslandService::NewStub(channel);
    models_ = atlpb::model::v1::ModelService::NewStub(channel);
  }

  std::string audit_log() const { return folder_.File("audit.log"); }

  void WriteDataset(const std::string& name, int64_t rows) {
    dataset::DatasetManifest manifest;
    manifest.name = name;
    manifest.channels = 1;
    manifest.height = manifest.width = 8;
    manifest.classes = {"0", "1"};
    manifest.shards = {{blobs_->UriOf("datasets/" + name + "/0.parquet"), "train", rows, 1, std::string(64, 'a')},
                       {blobs_->UriOf("datasets/" + name + "/1.parquet"), "held_out", 100, 1, std::string(64, 'b')}};
    ASSERT_TRUE(blobs_->Write(dataset::DatasetManifestUri(*blobs_, name), dataset::ToJson(manifest)).ok());
  }

  // Calls `method` of `stub` with a deadline.
  template <typename Stub, typename Request, typename Response>
  absl::Status Call(Stub& stub, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
                    const Request& request, Response* response) {
    grpc::ClientContext context;
    rpc::SetTimeout(&context, absl::Seconds(20));
    return rpc::FromGrpc((stub.*method)(&context, request, response));
  }

  static atlpb::job::v1::SubmitJobRequest SubmitRequest(const std::string& dataset = "digits") {
    atlpb::job::v1::SubmitJobRequest request;
    request.mutable_spec()->set_model_name("digits");
    request.mutable_spec()->set_dataset(dataset);
    request.mutable_spec()->set_experts(1);
    request.mutable_spec()->mutable_features()->set_kind("pixels_pca");
    request.mutable_spec()->mutable_training()->set_steps(100);
    request.mutable_spec()->mutable_training()->set_keep_checkpoints(1);
    return request;
  }

  absl::StatusOr<atlpb::job::v1::Job> Submit(const atlpb::job::v1::SubmitJobRequest& request) {
    atlpb::job::v1::SubmitJobResponse response;
    const absl::Status status = Call(*jobs_, &atlpb::job::v1::JobService::Stub::SubmitJob, request, &response);
    if (!status.ok()) return status;
    return response.job();
  }

  absl::StatusOr<int64_t> Register(const std::string& island_id, const std::string& start = "start") {
    atlpb::island::v1::RegisterIslandRequest request;
    request.set_island_id(island_id);
    request.set_request_id(start);
    auto* capabilities = request.mutable_capabilities();
    capabilities->mutable_protocol()->set_min(1);
    capabilities->mutable_protocol()->set_max(1);
    capabilities->mutable_format()->set_min(1);
    capabilities->mutable_format()->set_max(1);
    capabilities->set_ranks(1);
    capabilities->set_device_kind("cpu");
    atlpb::island::v1::RegisterIslandResponse response;
    const absl::Status status =
        Call(*islands_, &atlpb::island::v1::IslandService::Stub::RegisterIsland, request, &response);
    if (!status.ok()) return status;
    return response.incarnation();
  }

  static atlpb::island::v1::ClaimTaskRequest ClaimRequestOf(const std::string& island_id, absl::Duration wait) {
    atlpb::island::v1::ClaimTaskRequest request;
    request.set_island_id(island_id);
    request.set_incarnation(1);
    *request.mutable_wait() = wire::ToProto(wait);
    return request;
  }

  absl::StatusOr<atlpb::island::v1::ClaimTaskResponse> Claim(const std::string& island_id,
                                                             absl::Duration wait = absl::ZeroDuration()) {
    atlpb::island::v1::ClaimTaskResponse response;
    const absl::Status status =
        Call(*islands_, &atlpb::island::v1::IslandService::Stub::ClaimTask, ClaimRequestOf(island_id, wait), &response);
    if (!status.ok()) return status;
    return response;
  }

  // Writes a whole checkpoint of made-up tensors for `grant` and commits it; returns the manifest.
  absl::StatusOr<storage::WrittenFile> Commit(const atlpb::island::v1::TaskGrant& grant, int64_t step) {
    const std::string folder = grant.storage().write_prefix() + "/" + std::to_string(step) + "-x/";
    auto tensors = blobs_->Write(folder + "stage-0.safetensors", "tensors");
    if (!tensors.ok()) return tensors;
    storage::CheckpointManifest content;
    content.task_id = grant.token().task_id();
    content.attempt = grant.token().attempt();
    content.step = step;
    content.files = {{"stage-0.safetensors", tensors->bytes, tensors->sha256}};
    auto manifest = blobs_->CreateOnce(folder + "manifest.json", storage::ToJson(content));
    if (!manifest.ok()) return manifest;
    atlpb::island::v1::CommitCheckpointRequest request;
    *request.mutable_token() = grant.token();
    request.mutable_checkpoint()->set_step(step);
    request.mutable_checkpoint()->set_manifest_uri(manifest->uri);
    request.mutable_checkpoint()->set_manifest_sha256(manifest->sha256);
    atlpb::island::v1::CommitCheckpointResponse response;
    const absl::Status status =
        Call(*islands_, &atlpb::island::v1::IslandService::Stub::CommitCheckpoint, request, &response);
    if (!status.ok()) return status;
    return manifest;
  }

  absl::Status Complete(const atlpb::island::v1::TaskGrant& grant, const std::string& name,
                        const storage::WrittenFile& file) {
    atlpb::island::v1::CompleteTaskRequest request;
    *request.mutable_token() = grant.token();
    auto* output = request.add_outputs();
    output->set_name(name);
    output->set_uri(file.uri);
    output->set_bytes(file.bytes);
    output->set_sha256(file.sha256);
    output->set_rows(1);
    request.mutable_progress()->set_step(40);
    request.mutable_progress()->set_loss(0.25);
    atlpb::island::v1::CompleteTaskResponse response;
    return Call(*islands_, &atlpb::island::v1::IslandService::Stub::CompleteTask, request, &response);
  }

  // Claims and finishes the island's next task with a made-up result; returns its id.
  std::string FinishNext(const std::string& island_id) {
    const auto claim = Claim(island_id, absl::Seconds(10));
    if (!claim.ok() || !claim->has_grant()) return "nothing: " + claim.status().ToString();
    const auto& grant = claim->grant();
    static const std::map<int, std::string> names = {{1, "pca"},         {2, "features"},   {3, "centroids"},
                                                     {4, "partition/0"}, {5, "checkpoint"}, {6, "checkpoint"},
                                                     {7, "model_index"}};
    absl::StatusOr<storage::WrittenFile> file;
    if (grant.kind() == 5 || grant.kind() == 6) {
      file = Commit(grant, 100);
    } else if (grant.kind() == 7) {
      file = blobs_->Write(ModelFolder(grant) + "/model_index.json", "index");
    } else {
      file = blobs_->Write(grant.storage().write_prefix() + "/result", "result");
    }
    if (!file.ok()) return file.status().ToString();
    const absl::Status status = Complete(grant, names.at(grant.kind()), *file);
    return status.ok() ? grant.token().task_id() : status.ToString();
  }

  std::string ModelFolder(const atlpb::island::v1::TaskGrant& grant) const {
    return blobs_->UriOf("models/" + grant.spec().model_name() + "/" + grant.job_id());
  }

  storage::TemporaryFolder folder_;
  StorageGrantOptions storage_grants_;  // of the coordinators that are started from now on
  std::unique_ptr<Coordinator> coordinator_;
  std::unique_ptr<storage::BlobStore> blobs_;
  std::unique_ptr<atlpb::job::v1::JobService::Stub> jobs_;
  std::unique_ptr<atlpb::island::v1::IslandService::Stub> islands_;
  std::unique_ptr<atlpb::model::v1::ModelService::Stub> models_;
};

}  // namespace atl::coordinator
