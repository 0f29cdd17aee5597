#include "worker/tasks/features_task.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include <ATen/ATen.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/storage/safetensors.h"
#include "worker/tasks/pixels.h"
#include "worker/tasks/script_encoder.h"
#include "worker/tasks/task_files.h"

namespace atl::tasks {
namespace {

constexpr int64_t kBatch = 256;

// Reads samples [first, first + count) into rows of `values` floats.
absl::StatusOr<at::Tensor> ReadBatch(dataset::SampleReader* samples, const dataset::DatasetManifest& manifest,
                                     int64_t first, int64_t count, int64_t values,
                                     void (*read)(const dataset::Image&, std::span<float>)) {
  at::Tensor batch = at::empty({count, values}, at::kFloat);
  for (int64_t i = 0; i < count; ++i) {
    ATOLL_ASSIGN_OR_RETURN(const dataset::Sample sample, samples->Read(first + i));
    const dataset::Image& image = sample.image;
    if (image.channels != manifest.channels || image.height != manifest.height || image.width != manifest.width) {
      return MakeError(absl::StatusCode::kDataLoss, "IMAGE_SHAPE",
                       fmt::format("dataset {}, {}: expected an image of {} x {} x {} (channels, height, width), found "
                                   "{} x {} x {}",
                                   manifest.name, sample.path, manifest.channels, manifest.height, manifest.width,
                                   image.channels, image.height, image.width));
    }
    read(image, std::span(batch.data_ptr<float>() + i * values, static_cast<size_t>(values)));
  }
  return batch;
}

// Components as rows, largest variance first; the largest entry of each is positive, so that signs do not depend on
// the eigensolver.
at::Tensor PrincipalComponents(const at::Tensor& covariance, int64_t count) {
  const at::Tensor vectors = std::get<1>(at::linalg_eigh(covariance));  // columns, by ascending variance
  at::Tensor components = vectors.t().flip(0).slice(0, 0, count).contiguous();
  const at::Tensor largest = components.abs().argmax(1, /*keepdim=*/true);
  return components * components.gather(1, largest).sign();
}

storage::TensorView ViewOf(std::string name, const at::Tensor& tensor) {
  return {std::move(name), "F32", tensor.sizes().vec(),
          std::string_view(static_cast<const char*>(tensor.data_ptr()), static_cast<size_t>(tensor.nbytes()))};
}

// Features of samples [first, first + count).
using Extractor = std::function<absl::StatusOr<at::Tensor>(dataset::SampleReader*, int64_t first, int64_t count)>;

absl::StatusOr<Extractor> PcaExtractor(const TaskContext& context, const dataset::DatasetManifest& manifest) {
  ATOLL_ASSIGN_OR_RETURN(const spec::Artifact artifact,
                         FindInput(context.grant, spec::TaskKind::kFitFeatures, 0, "pca"));
  ATOLL_ASSIGN_OR_RETURN(const std::string bytes, context.store->ReadVerified(artifact.uri, artifact.sha256));
  ATOLL_ASSIGN_OR_RETURN(const storage::Safetensors file, storage::ParseSafetensors(bytes, artifact.uri));
  ATOLL_ASSIGN_OR_RETURN(const storage::TensorView mean_view, file.Find("mean"));
  ATOLL_ASSIGN_OR_RETURN(Matrix components_values, ReadMatrix(file, "components", artifact.uri));
  const int64_t values = PixelValues(manifest.channels, manifest.height, manifest.width);
  if (mean_view.dtype != "F32" || mean_view.shape != std::vector<int64_t>{values} ||
      components_values.columns != values) {
    return MakeError(
        absl::StatusCode::kDataLoss, "TENSOR_SHAPE",
        fmt::format("{}: expected mean [{}] and components [c, {}], found [{}] and [{}, {}]", artifact.uri, values,
                    values, fmt::join(mean_view.shape, ", "), components_values.rows, components_values.columns));
  }
  at::Tensor mean = at::empty({values}, at::kFloat);
  std::memcpy(mean.data_ptr(), mean_view.bytes.data(), mean_view.bytes.size());
  const at::Tensor components =
      at::from_blob(components_values.values.data(), {components_values.rows, values}, at::kFloat).clone();
  return [mean, components, values, manifest](dataset::SampleReader* samples, int64_t first,
                                              int64_t count) -> absl::StatusOr<at::Tensor> {
    ATOLL_ASSIGN_OR_RETURN(const at::Tensor pixels, ReadBatch(samples, manifest, first, count, values, &ReadPixels));
    return at::matmul(pixels - mean, components.t());
  };
}

absl::StatusOr<Extractor> ColumnExtractor(const TaskContext& context, const dataset::DatasetManifest& manifest) {
  const std::string column = context.grant.spec.features.column;
  if (std::find(manifest.columns.begin(), manifest.columns.end(), column) == manifest.columns.end()) {
    return FieldError("features.column", "COLUMN_UNKNOWN",
                      fmt::format("expected a column of dataset {} ({}), found '{}'", manifest.name,
                                  fmt::join(manifest.columns, ", "), column));
  }
  return [column](dataset::SampleReader* samples, int64_t first, int64_t count) -> absl::StatusOr<at::Tensor> {
    at::Tensor features;
    for (int64_t i = 0; i < count; ++i) {
      ATOLL_ASSIGN_OR_RETURN(const std::vector<float> values, samples->ReadColumn(first + i, column));
      const auto length = static_cast<int64_t>(values.size());
      if (i == 0) features = at::empty({count, length}, at::kFloat);
      if (length == 0 || length != features.size(1)) {
        return FieldError("features.column", "COLUMN_LENGTH",
                          fmt::format("column {}, row {}: expected {} numbers as in the rows before, found {}", column,
                                      first + i, features.size(1), length));
      }
      std::copy(values.begin(), values.end(), features.data_ptr<float>() + i * length);
    }
    return features;
  };
}

absl::StatusOr<Extractor> ScriptExtractor(const TaskContext& context, const dataset::DatasetManifest& manifest) {
  const spec::FeatureSpec& features = context.grant.spec.features;
  const absl::StatusOr<std::string> archive =
      context.store->ReadVerified(features.encoder_uri, features.encoder_sha256);
  if (!archive.ok()) return WithContext(archive.status(), "features.encoder_uri");
  ATOLL_ASSIGN_OR_RETURN(ScriptEncoder encoder, LoadScriptEncoder(*archive, features.encoder_uri));
  return [encoder = std::move(encoder), manifest](dataset::SampleReader* samples, int64_t first,
                                                  int64_t count) -> absl::StatusOr<at::Tensor> {
    const int64_t values = int64_t{manifest.channels} * manifest.height * manifest.width;
    ATOLL_ASSIGN_OR_RETURN(const at::Tensor planes, ReadBatch(samples, manifest, first, count, values, &ReadPlanes));
    return encoder(planes.view({count, manifest.channels, manifest.height, manifest.width}));
  };
}

absl::StatusOr<Extractor> MakeExtractor(const TaskContext& context, const dataset::DatasetManifest& manifest) {
  const std::string& kind = context.grant.spec.features.kind;
  if (kind == "column") return ColumnExtractor(context, manifest);
  if (kind == "torchscript") return ScriptExtractor(context, manifest);
  return PcaExtractor(context, manifest);
}

}  // namespace

absl::StatusOr<std::vector<spec::Artifact>> FitFeatures(const TaskContext& context,
                                                        const dataset::DatasetManifest& manifest) {
  ATOLL_ASSIGN_OR_RETURN(const std::unique_ptr<dataset::SampleReader> samples,
                         dataset::SampleReader::Open(context.store, dataset::ShardsOf(manifest, "train"), 1));
  const int64_t rows = samples->size();
  if (rows == 0) {
    return MakeError(absl::StatusCode::kInvalidArgument, "DATASET_EMPTY",
                     fmt::format("dataset {}: expected training samples, found none", manifest.name));
  }
  const int64_t values = PixelValues(manifest.channels, manifest.height, manifest.width);
  at::Tensor sum = at::zeros({values}, at::kDouble);
  at::Tensor products = at::zeros({values, values}, at::kDouble);
  for (int64_t first = 0; first < rows; first += kBatch) {
    ATOLL_RETURN_IF_ERROR(CheckCancelled(context));
    Report(context, first, rows);
    ATOLL_ASSIGN_OR_RETURN(const at::Tensor batch, ReadBatch(samples.get(), manifest, first,
                                                             std::min(kBatch, rows - first), values, &ReadPixels));
    const at::Tensor wide = batch.to(at::kDouble);
    sum += wide.sum(0);
    products += at::matmul(wide.t(), wide);
  }
  const at::Tensor mean = sum / static_cast<double>(rows);
  const at::Tensor covariance = products / static_cast<double>(rows) - at::outer(mean, mean);
  const int64_t count = std::min<int64_t>(std::max(1, context.grant.spec.features.components), values);
  const at::Tensor components = PrincipalComponents(covariance, count).to(at::kFloat).contiguous();
  const at::Tensor float_mean = mean.to(at::kFloat).contiguous();
  ATOLL_ASSIGN_OR_RETURN(
      spec::Artifact artifact,
      WriteTensors(context, "pca", {ViewOf("mean", float_mean), ViewOf("components", components)}, {}, rows));
  return std::vector<spec::Artifact>{std::move(artifact)};
}

absl::StatusOr<std::vector<spec::Artifact>> Featurize(const TaskContext& context,
                                                      const dataset::DatasetManifest& manifest) {
  ATOLL_ASSIGN_OR_RETURN(const dataset::Shard shard, TrainingShard(manifest, context.grant.index));
  ATOLL_ASSIGN_OR_RETURN(const std::unique_ptr<dataset::SampleReader> samples,
                         dataset::SampleReader::Open(context.store, {shard}, 1));
  ATOLL_ASSIGN_OR_RETURN(const Extractor extract, MakeExtractor(context, manifest));
  const int64_t rows = samples->size();
  std::vector<float> features;
  int64_t dims = 1;
  for (int64_t first = 0; first < rows; first += kBatch) {
    ATOLL_RETURN_IF_ERROR(CheckCancelled(context));
    Report(context, first, rows);
    ATOLL_ASSIGN_OR_RETURN(const at::Tensor extracted, extract(samples.get(), first, std::min(kBatch, rows - first)));
    const at::Tensor batch = extracted.to(at::kFloat).contiguous();
    if (first > 0 && batch.size(1) != dims) {
      return FieldError("features", "FEATURE_LENGTH",
                        fmt::format("dataset {}, shard {}, from row {}: expected {} features as before, found {}",
                                    manifest.name, context.grant.index, first, dims, batch.size(1)));
    }
    dims = batch.size(1);
    features.insert(features.end(), batch.data_ptr<float>(), batch.data_ptr<float>() + batch.numel());
  }
  ATOLL_ASSIGN_OR_RETURN(spec::Artifact artifact,
                         WriteTensors(context, "features", {MatrixView("features", rows, dims, features)}, {}, rows));
  return std::vector<spec::Artifact>{std::move(artifact)};
}

}  // namespace atl::tasks
