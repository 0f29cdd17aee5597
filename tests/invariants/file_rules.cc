// Rules that read the files behind the rows.
#include <set>

#include <fmt/format.h>

#include "common/formats/checkpoint.h"
#include "common/formats/model_index.h"
#include "common/spec/data_cursor.h"
#include "coordinator/core/epoch.h"
#include "coordinator/jobs/retention.h"
#include "coordinator/jobs/task_graph.h"
#include "tests/invariants/invariants.h"

namespace atl::testing_invariants {
namespace {

class FileRules {
 public:
  FileRules(const Story& story, storage::BlobStore* blobs) : story_(story), blobs_(*blobs) {}

  std::vector<Violation> Run() {
    CheckEpoch();
    for (const jobs::JobRecord& record : story_.jobs) {
      for (const jobs::Task& task : record.tasks) {
        for (const spec::Artifact& output : task.outputs) CheckOutput(task, output);
        const auto rows = story_.checkpoints.find(task.task_id);
        if (rows == story_.checkpoints.end()) continue;
        for (const store::CheckpointRow& row : rows->second) {
          if (row.state == store::CheckpointState::kCommitted) CheckCheckpoint(record.job, task, row);
        }
      }
    }
    for (const store::Model& model : story_.models) {
      for (const store::ModelVersionRow& version : model.versions) CheckVersion(version);
    }
    return std::move(violations_);
  }

 private:
  void Violated(std::string_view rule, std::string what) {
    violations_.push_back({std::string(rule), std::move(what)});
  }

  void CheckEpoch() {
    const absl::StatusOr<coordinator::EpochHolder> newest = coordinator::NewestEpoch(blobs_);
    if (!newest.ok()) return Violated("epoch", newest.status().ToString());
    // One above the store's is a process's that died between taking it and writing it down.
    if (newest->store_id != story_.store_id || newest->epoch < story_.epoch) {
      Violated("epoch", fmt::format("store {} has epoch {}, but the newest is {}, of store {}", story_.store_id,
                                    story_.epoch, newest->epoch, newest->store_id));
    }
  }

  void CheckOutput(const jobs::Task& task, const spec::Artifact& output) {
    const absl::StatusOr<std::string> bytes = blobs_.ReadVerified(output.uri, output.sha256);
    if (!bytes.ok()) return Violated("files", fmt::format("{}: {}", task.task_id, bytes.status().ToString()));
    if (static_cast<int64_t>(bytes->size()) != output.bytes) {
      Violated("files",
               fmt::format("{}: {} has {} bytes, expected {}", task.task_id, output.uri, bytes->size(), output.bytes));
    }
  }

  void CheckCheckpoint(const jobs::Job& job, const jobs::Task& task, const store::CheckpointRow& row) {
    const spec::CommittedCheckpoint& checkpoint = row.checkpoint;
    const absl::StatusOr<storage::CheckpointReader> reader =
        storage::CheckpointReader::Open(&blobs_, checkpoint.manifest_uri, checkpoint.manifest_sha256);
    if (!reader.ok()) return Violated("files", fmt::format("{}: {}", task.task_id, reader.status().ToString()));
    const storage::CheckpointManifest& manifest = reader->manifest();
    if (manifest.task_id != task.task_id || manifest.attempt != row.attempt || manifest.step != checkpoint.step) {
      Violated("files", fmt::format("{} attempt {} step {}: its manifest is of {} attempt {} step {}", task.task_id,
                                    row.attempt, checkpoint.step, manifest.task_id, manifest.attempt, manifest.step));
    }
    const spec::TrainingSpec& training =
        task.kind == spec::TaskKind::kTrainRouter ? job.spec.router_training : job.spec.training;
    // A window that was skipped begins after the checkpoints that its rollback kept.
    const int64_t consumed = spec::UnskippedStep(checkpoint.step, jobs::SkippedBy(task)) * training.batch_size;
    if (manifest.samples_consumed != consumed) {
      Violated("cursor", fmt::format("{} step {}: {} samples are consumed, expected {}", task.task_id, checkpoint.step,
                                     manifest.samples_consumed, consumed));
    }
  }

  void CheckVersion(const store::ModelVersionRow& version) {
    const std::string uri = version.uri + "/model_index.json";
    const absl::StatusOr<std::string> json = blobs_.ReadVerified(uri, version.digest);
    if (!json.ok()) return Violated("files", fmt::format("{}: {}", version.version, json.status().ToString()));
    const absl::StatusOr<storage::ModelIndex> index = storage::ParseModelIndex(*json, uri);
    if (!index.ok()) return Violated("files", fmt::format("{}: {}", version.version, index.status().ToString()));
    for (const storage::CheckpointFile& file : index->files) {
      const absl::Status whole = blobs_.ReadVerified(version.uri + "/" + file.name, file.sha256).status();
      if (!whole.ok()) Violated("files", fmt::format("{}: {}", version.version, whole.ToString()));
    }
  }

  const Story& story_;
  storage::BlobStore& blobs_;
  std::vector<Violation> violations_;
};

// "train_expert-0" of "j/train_expert-0".
std::string_view PartOfJob(std::string_view task_id) {
  return task_id.substr(task_id.find('/') + 1);
}

// The checkpoint behind a manifest's local path.
absl::StatusOr<storage::CheckpointReader> OpenReference(const std::string& path,
                                                        std::unique_ptr<storage::BlobStore>* store) {
  const std::string folder = path.substr(0, path.rfind('/'));
  absl::StatusOr<std::unique_ptr<storage::BlobStore>> opened = storage::BlobStore::Open("file://" + folder);
  if (!opened.ok()) return opened.status();
  *store = *std::move(opened);
  const std::string uri = "file://" + path;
  const absl::StatusOr<std::string> manifest = (*store)->Read(uri);
  if (!manifest.ok()) return manifest.status();
  return storage::CheckpointReader::Open(store->get(), uri, storage::Sha256(*manifest));
}

// Empty when both hold the same tensors bit for bit, else the first difference.
std::string Difference(const storage::CheckpointReader& found, const storage::CheckpointReader& expected) {
  for (const auto& [name, tensor] : expected.tensors()) {
    const auto it = found.tensors().find(name);
    if (it == found.tensors().end()) return name + " is missing";
    if (tensor.shape != it->second.shape || tensor.dtype != it->second.dtype) return name + " has another shape";
    if (tensor.bytes != it->second.bytes) return name + " differs";
  }
  return found.tensors().size() == expected.tensors().size() ? "" : "there are more tensors than expected";
}

}  // namespace

std::vector<Violation> CheckFiles(const Story& story, storage::BlobStore* blobs) {
  return FileRules(story, blobs).Run();
}

std::vector<Violation> CheckWeights(const Story& story, storage::BlobStore* blobs,
                                    const std::vector<std::string>& references) {
  std::vector<Violation> violations;
  for (const std::string& path : references) {
    std::unique_ptr<storage::BlobStore> store;
    const absl::StatusOr<storage::CheckpointReader> expected = OpenReference(path, &store);
    if (!expected.ok()) {
      violations.push_back({"weights", fmt::format("reference {}: {}", path, expected.status().ToString())});
      continue;
    }
    int compared = 0;
    for (const jobs::JobRecord& record : story.jobs) {
      if (record.job.state != jobs::JobState::kSucceeded) continue;
      for (const jobs::Task& task : record.tasks) {
        if (PartOfJob(task.task_id) != PartOfJob(expected->manifest().task_id) || task.outputs.empty()) continue;
        ++compared;
        const auto found = storage::CheckpointReader::Open(blobs, task.outputs[0].uri, task.outputs[0].sha256);
        const std::string difference = found.ok() ? Difference(*found, *expected) : found.status().ToString();
        if (!difference.empty()) violations.push_back({"weights", fmt::format("{}: {}", task.task_id, difference)});
      }
    }
    if (compared == 0) {
      violations.push_back({"weights", fmt::format("no job that has succeeded has a task {}, as reference {} is of",
                                                   PartOfJob(expected->manifest().task_id), path)});
    }
  }
  return violations;
}

}  // namespace atl::testing_invariants
