#include "worker/tasks/publish_task.h"

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include <fmt/format.h>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/formats/checkpoint.h"
#include "common/formats/frozen_files.h"
#include "common/formats/model_index.h"
#include "common/model/frozen.h"
#include "common/model/weights.h"
#include "common/spec/frozen.h"
#include "common/storage/safetensors.h"
#include "worker/tasks/held_out_modes.h"
#include "worker/tasks/task_files.h"

namespace atl::tasks {
namespace {

constexpr std::string_view kEmaPrefix = "ema/";
constexpr std::string_view kClassEmbedding = "embed.class.weight";
constexpr char kIndexFile[] = "model_index.json";
// Inputs of one run of a frozen component: what an encoder holds of an image is many times the image.
constexpr int64_t kFrozenBatch = 8;

// Runs `inputs` through the frozen component with this output and all components before it. Returns an undefined tensor
// if the job has no such component.
absl::StatusOr<at::Tensor> RunFrozen(const TaskContext& context, const dataset::DatasetManifest& manifest,
                                     std::string_view output, const at::Tensor& inputs) {
  const spec::JobSpec& job = context.grant.spec;
  const auto last = spec::FrozenWithOutput(job.frozen, output);
  if (!last.has_value()) return at::Tensor();
  model::FrozenSource source{.image = {manifest.channels, manifest.height, manifest.width},
                             .classes = static_cast<int32_t>(manifest.classes.size()),
                             .seed = job.seed};
  source.components = job.frozen;
  ATOLL_ASSIGN_OR_RETURN(auto files, storage::ReadFrozenFiles(context.store, spec::FrozenFileFields(job.frozen)));
  source.files = std::make_shared<const std::map<std::string, std::string>>(std::move(files));
  ATOLL_ASSIGN_OR_RETURN(const std::vector<model::FrozenComponent> components, model::LoadFrozen(source));
  std::vector<at::Tensor> outputs;
  for (int64_t first = 0; first < inputs.size(0); first += kFrozenBatch) {
    ATOLL_RETURN_IF_ERROR(CheckCancelled(context));
    at::Tensor flow = inputs.slice(0, first, std::min(first + kFrozenBatch, inputs.size(0)));
    for (const int32_t i : spec::FrozenChain(job.frozen, *last)) {
      const model::FrozenComponent& component = components[static_cast<size_t>(i)];
      ATOLL_ASSIGN_OR_RETURN(flow, component.Run(flow, 0, component.layer_count()));
    }
    outputs.push_back(flow.to(at::kFloat));
  }
  return at::cat(outputs);
}

// Returns the values that a frozen condition adds to the conditioning of every class, the null class last: [classes +
// 1, width].
absl::StatusOr<at::Tensor> ConditionTable(const TaskContext& context, const dataset::DatasetManifest& manifest) {
  return RunFrozen(context, manifest, "condition",
                   at::arange(static_cast<int64_t>(manifest.classes.size()) + 1, at::kLong));
}

// The class embedding with the condition added: sampling then knows nothing of frozen components.
absl::Status AddCondition(const at::Tensor& table, const std::string& uri, std::vector<storage::TensorView>* weights,
                          at::Tensor* sum) {
  for (storage::TensorView& weight : *weights) {
    if (weight.name != kClassEmbedding) continue;
    ATOLL_ASSIGN_OR_RETURN(const at::Tensor embedding, model::ToTensor(weight));
    if (embedding.sizes() != table.sizes()) break;
    *sum = embedding + table;
    weight = model::ToView(weight.name, *sum);
    return absl::OkStatus();
  }
  return MakeError(absl::StatusCode::kDataLoss, "CHECKPOINT_INCOMPLETE",
                   fmt::format("{}: expected a class embedding [{}, {}] to add the condition to, found none", uri,
                               table.size(0), table.size(1)));
}

// The EMA weights under their canonical names, with `condition` where it is defined.
absl::StatusOr<std::string> EmaWeights(const storage::CheckpointReader& checkpoint, std::string_view manifest_uri,
                                       const at::Tensor& condition) {
  std::vector<storage::TensorView> weights;
  for (const auto& [name, tensor] : checkpoint.tensors()) {
    if (!name.starts_with(kEmaPrefix)) continue;
    storage::TensorView& weight = weights.emplace_back(tensor);
    weight.name = name.substr(kEmaPrefix.size());
  }
  if (weights.empty()) {
    return MakeError(absl::StatusCode::kDataLoss, "CHECKPOINT_INCOMPLETE",
                     fmt::format("{}: expected tensors '{}…', found none among {}", manifest_uri, kEmaPrefix,
                                 checkpoint.tensors().size()));
  }
  at::Tensor sum;  // outlives the views
  if (condition.defined()) {
    ATOLL_RETURN_IF_ERROR(AddCondition(condition, std::string(manifest_uri), &weights, &sum));
  }
  return storage::SerializeSafetensors(std::move(weights), {{"format", "pt"}});
}

absl::Status OtherModel(const std::string& folder_uri, std::string_view what) {
  return MakeError(absl::StatusCode::kFailedPrecondition, "MODEL_EXISTS",
                   fmt::format("{}: expected no model, or the same one published before; found another ({} differs)",
                               folder_uri, what));
}

// Whether two files of weights are the same but for the last bits of a condition that was added to one of their
// tensors: machines compute it differently.
absl::StatusOr<bool> SameButForRounding(const std::string& a, const std::string& b, const std::string& uri) {
  ATOLL_ASSIGN_OR_RETURN(const storage::Safetensors before, storage::ParseSafetensors(a, uri));
  ATOLL_ASSIGN_OR_RETURN(const storage::Safetensors now, storage::ParseSafetensors(b, uri));
  if (before.tensors.size() != now.tensors.size()) return false;
  for (size_t i = 0; i < now.tensors.size(); ++i) {
    const storage::TensorView& old_view = before.tensors[i];
    const storage::TensorView& view = now.tensors[i];
    if (view.name != old_view.name || view.dtype != old_view.dtype || view.shape != old_view.shape) return false;
    if (view.bytes == old_view.bytes) continue;
    if (view.name != kClassEmbedding) return false;
    ATOLL_ASSIGN_OR_RETURN(const at::Tensor old_tensor, model::ToTensor(old_view));
    ATOLL_ASSIGN_OR_RETURN(const at::Tensor tensor, model::ToTensor(view));
    // Rounding of the greatest terms reaches every element, also those near zero.
    constexpr double kRounding = 1e-4;
    const double greatest = old_tensor.abs().max().item<double>();
    if (!((tensor - old_tensor).abs().max().item<double>() <= kRounding * greatest)) return false;
  }
  return true;
}

// The index that is there already, if any: its files are then in use and must not be written over.
absl::StatusOr<std::optional<storage::ModelIndex>> PublishedBefore(storage::BlobStore* store, const std::string& uri) {
  const absl::StatusOr<std::string> text = store->Read(uri);
  if (text.status().code() == absl::StatusCode::kNotFound) return std::nullopt;
  if (!text.ok()) return text.status();
  ATOLL_ASSIGN_OR_RETURN(storage::ModelIndex index, storage::ParseModelIndex(*text, uri));
  return index;
}

// Writes files of a version, or checks that they are the ones published before.
class ModelFolder {
 public:
  ModelFolder(storage::BlobStore* store, std::string folder_uri, std::optional<storage::ModelIndex> before)
      : store_(store), folder_uri_(std::move(folder_uri)), before_(std::move(before)) {}

  // Where `conditioned`, weights that were published before may differ by rounding, and stay.
  absl::Status Add(const std::string& name, const std::string& bytes, bool conditioned = false) {
    const std::string uri = fmt::format("{}/{}", folder_uri_, name);
    storage::CheckpointFile file{name, static_cast<int64_t>(bytes.size()), storage::Sha256(bytes)};
    if (!before_.has_value()) {
      ATOLL_RETURN_IF_ERROR(store_->Write(uri, bytes).status());
    } else {
      const auto& files = before_->files;
      const auto known = std::find_if(files.begin(), files.end(), [&](const auto& f) { return f.name == name; });
      bool same = known != files.end() && *known == file;
      if (!same && known != files.end() && conditioned) {
        ATOLL_ASSIGN_OR_RETURN(const std::string published, store_->ReadVerified(uri, known->sha256));
        ATOLL_ASSIGN_OR_RETURN(same, SameButForRounding(published, bytes, uri));
      }
      if (!same) return OtherModel(folder_uri_, name);
      file = *known;
    }
    files_.push_back(std::move(file));
    return absl::OkStatus();
  }

  std::vector<storage::CheckpointFile> Take() { return std::move(files_); }

 private:
  storage::BlobStore* const store_;
  const std::string folder_uri_;
  const std::optional<storage::ModelIndex> before_;
  std::vector<storage::CheckpointFile> files_;
};

// Adds one network's files ("expert_0/…", "router/…").
absl::Status PublishNetwork(const TaskContext& context, const std::string& name, const spec::Artifact& checkpoint,
                            const at::Tensor& condition, ModelFolder* folder) {
  ATOLL_RETURN_IF_ERROR(CheckCancelled(context));
  ATOLL_ASSIGN_OR_RETURN(const storage::CheckpointReader reader,
                         storage::CheckpointReader::Open(context.store, checkpoint.uri, checkpoint.sha256));
  if (reader.manifest().model_config.empty()) {
    return MakeError(absl::StatusCode::kDataLoss, "CHECKPOINT_INCOMPLETE",
                     fmt::format("{}: expected a model_config, found none", checkpoint.uri));
  }
  ATOLL_ASSIGN_OR_RETURN(const std::string weights, EmaWeights(reader, checkpoint.uri, condition));
  ATOLL_RETURN_IF_ERROR(folder->Add(fmt::format("{}/{}", name, storage::kConfigFile), reader.manifest().model_config));
  return folder->Add(fmt::format("{}/{}", name, storage::kWeightsFile), weights, condition.defined());
}

// Training samples by expert, from the partitions' counts.
std::vector<int64_t> ClusterRows(const spec::TaskGrant& grant) {
  std::vector<int64_t> rows(grant.spec.experts, 0);
  for (const spec::TaskInput& input : grant.inputs) {
    if (input.kind != spec::TaskKind::kPartition) continue;
    for (int32_t cluster = 0; cluster < grant.spec.experts; ++cluster) {
      const std::string name = fmt::format("partition/{}", cluster);
      for (const spec::Artifact& artifact : input.artifacts) {
        if (artifact.name == name) rows[cluster] += artifact.rows;
      }
    }
  }
  return rows;
}

// A published network of any size, read back from where it was just written. `files` are the version's.
absl::StatusOr<model::LoadedModel> LoadPublished(storage::BlobStore* store, const std::string& folder_uri,
                                                 const std::vector<storage::CheckpointFile>& files,
                                                 const std::string& part) {
  const auto read = [&](const char* file_name) {
    const std::string name = fmt::format("{}/{}", part, file_name);
    const auto file = std::find_if(files.begin(), files.end(), [&](const auto& known) { return known.name == name; });
    return store->ReadVerified(fmt::format("{}/{}", folder_uri, name), file == files.end() ? "" : file->sha256);
  };
  ATOLL_ASSIGN_OR_RETURN(const std::string config, read(storage::kConfigFile));
  ATOLL_ASSIGN_OR_RETURN(const std::string weights, read(storage::kWeightsFile));
  return model::LoadModel(config, weights, fmt::format("{}/{}", folder_uri, part));
}

// The default mode and the probe, from held-out samples; nothing where the data set has none. Answers differ in their
// last bits from machine to machine: the probe's name is its content's, so that two publishers never write over each
// other's, and what is in the index already stays.
absl::Status AddSampling(const TaskContext& context, const dataset::DatasetManifest& manifest,
                         const std::string& folder_uri, const std::optional<storage::ModelIndex>& before,
                         storage::ModelIndex* index) {
  if (before.has_value()) {
    index->sampling = before->sampling;
    index->probe = before->probe;
    for (const storage::CheckpointFile& file : before->files) {
      if (file.name == before->probe) index->files.push_back(file);
    }
    return absl::OkStatus();
  }
  if (manifest.rows("held_out") == 0) return absl::OkStatus();
  const auto load = [&](int32_t expert) {
    return LoadPublished(context.store, folder_uri, index->files,
                         expert < 0 ? "router" : fmt::format("expert_{}", expert));
  };
  const auto encode = [&](const at::Tensor& images) -> absl::StatusOr<at::Tensor> {
    if (!index->latent) return images;
    return RunFrozen(context, manifest, "latent", images);
  };
  ATOLL_ASSIGN_OR_RETURN(HeldOutModes modes, MeasureModes(context, manifest, index->self_conditioning, load, encode));
  const std::string hash = storage::Sha256(modes.probe);
  index->sampling = std::move(modes.sampling);
  index->probe = fmt::format("probe-{}.safetensors", hash.substr(0, 16));
  ATOLL_RETURN_IF_ERROR(context.store->Write(fmt::format("{}/{}", folder_uri, index->probe), modes.probe).status());
  index->files.push_back({index->probe, static_cast<int64_t>(modes.probe.size()), hash});
  return absl::OkStatus();
}

// Whether two indexes are of the same networks, whatever was measured on them.
bool SameNetworks(storage::ModelIndex a, storage::ModelIndex b) {
  for (storage::ModelIndex* index : {&a, &b}) {
    std::erase_if(index->files, [&](const storage::CheckpointFile& file) { return file.name == index->probe; });
    index->sampling.reset();
    index->probe.clear();
  }
  return a == b;
}

// Last of all, and once: the version exists when its index does.
absl::StatusOr<spec::Artifact> CreateIndex(storage::BlobStore* store, const std::string& folder_uri,
                                           const std::string& uri, const storage::ModelIndex& index) {
  std::string text = storage::ToJson(index);
  const absl::Status created = store->CreateOnce(uri, text).status();
  if (!created.ok() && created.code() != absl::StatusCode::kAlreadyExists) return created;
  if (!created.ok()) {
    ATOLL_ASSIGN_OR_RETURN(text, store->Read(uri));
    ATOLL_ASSIGN_OR_RETURN(const storage::ModelIndex present, storage::ParseModelIndex(text, uri));
    if (!SameNetworks(present, index)) return OtherModel(folder_uri, kIndexFile);
  }
  return spec::Artifact{"model_index", uri, static_cast<int64_t>(text.size()), storage::Sha256(text), 0};
}

}  // namespace

absl::StatusOr<std::vector<spec::Artifact>> Publish(const TaskContext& context,
                                                    const dataset::DatasetManifest& manifest) {
  const spec::TaskGrant& grant = context.grant;
  ATOLL_ASSIGN_OR_RETURN(const std::vector<spec::Artifact> experts,
                         FindInputs(grant, spec::TaskKind::kTrainExpert, "checkpoint"));
  ATOLL_ASSIGN_OR_RETURN(const spec::Artifact router, FindInput(grant, spec::TaskKind::kTrainRouter, 0, "checkpoint"));
  if (experts.size() != static_cast<size_t>(grant.spec.experts)) {
    return MakeError(absl::StatusCode::kInvalidArgument, "TASK_INPUT_MISSING",
                     fmt::format("task {}: expected checkpoints of {} experts, found {}", grant.token.task_id,
                                 grant.spec.experts, experts.size()));
  }
  storage::ModelIndex index;
  index.name = grant.spec.model_name;
  index.version = grant.job_id;
  index.dataset = manifest.name;
  ATOLL_ASSIGN_OR_RETURN(const spec::SampleShape learnt,
                         spec::LearntShape(grant.spec.frozen, {manifest.channels, manifest.height, manifest.width}));
  index.channels = learnt[0];
  index.height = learnt[1];
  index.width = learnt[2];
  index.latent = spec::FrozenWithOutput(grant.spec.frozen, "latent").has_value();
  index.self_conditioning = grant.spec.model.self_conditioning;
  index.classes = manifest.classes;
  index.experts = grant.spec.experts;
  index.cluster_rows = ClusterRows(grant);

  const std::string folder_uri = storage::ModelFolderUri(*context.store, index.name, index.version);
  const std::string index_uri = fmt::format("{}/{}", folder_uri, kIndexFile);
  ATOLL_ASSIGN_OR_RETURN(const std::optional<storage::ModelIndex> before, PublishedBefore(context.store, index_uri));
  ModelFolder folder(context.store, folder_uri, before);
  ATOLL_ASSIGN_OR_RETURN(const at::Tensor condition, ConditionTable(context, manifest));
  const auto networks = static_cast<int64_t>(experts.size()) + 1;
  for (size_t k = 0; k < experts.size(); ++k) {
    Report(context, static_cast<int64_t>(k), networks);
    ATOLL_RETURN_IF_ERROR(PublishNetwork(context, fmt::format("expert_{}", k), experts[k], condition, &folder));
  }
  Report(context, networks - 1, networks);
  ATOLL_RETURN_IF_ERROR(PublishNetwork(context, "router", router, /*condition=*/{}, &folder));
  index.files = folder.Take();
  ATOLL_RETURN_IF_ERROR(AddSampling(context, manifest, folder_uri, before, &index));
  ATOLL_ASSIGN_OR_RETURN(spec::Artifact artifact, CreateIndex(context.store, folder_uri, index_uri, index));
  return std::vector<spec::Artifact>{std::move(artifact)};
}

}  // namespace atl::tasks
