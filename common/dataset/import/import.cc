#include "common/dataset/import/import.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/dataset/image_codec.h"
#include "common/dataset/import/import_source.h"
#include "common/spec/spec_io.h"
#include "common/storage/local_files.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace atl::dataset {
namespace {

constexpr size_t kNamedSkipped = 100;
constexpr int64_t kDefaultBadRows = 10;
constexpr double kDefaultBadShare = 0.001;
// Limit of bad rows for imports without their own limit: beyond it, the source is not of the assumed kind.
constexpr int64_t kHopeless = 10'000;
constexpr int64_t kProgressRows = 256;
constexpr int32_t kLargestSize = 4096;

absl::Status BadOption(const std::string& message) {
  return MakeError(absl::StatusCode::kInvalidArgument, "IMPORT_OPTIONS", message);
}

absl::Status CheckOptions(const ImportOptions& options) {
  ATOLL_RETURN_IF_ERROR(spec::ValidateName("dataset", options.name));
  if (options.size < 0 || options.size > kLargestSize) {
    return BadOption(fmt::format("size: expected 0 to {}, found {}", kLargestSize, options.size));
  }
  if (!(options.held_out_fraction >= 0 && options.held_out_fraction < 1)) {
    return BadOption(fmt::format("held-out fraction: expected 0 to below 1, found {}", options.held_out_fraction));
  }
  if (options.shard_rows < 1)
    return BadOption(fmt::format("shard rows: expected 1 or more, found {}", options.shard_rows));
  if (options.bad_row_limit < -1) {
    return BadOption(fmt::format("bad row limit: expected -1 or more, found {}", options.bad_row_limit));
  }
  std::set<std::string> names = {"image", "label", "sample_id"};
  for (const std::string& column : options.columns) {
    if (names.insert(column).second) continue;
    return BadOption(
        fmt::format("columns: expected each once, and none of image, label and sample_id; found '{}'", column));
  }
  return absl::OkStatus();
}

absl::Status NameTaken(std::string_view name) {
  return MakeError(absl::StatusCode::kAlreadyExists, "DATASET_EXISTS",
                   fmt::format("dataset '{}' exists already, and datasets are immutable; choose another name", name));
}

// The shards of one split, one after the other.
class SplitWriter {
 public:
  SplitWriter(storage::BlobStore* store, std::string folder, std::string split, const ImportOptions& options)
      : store_(store), folder_(std::move(folder)), split_(std::move(split)), options_(options) {}

  absl::Status Add(const Sample& sample) {
    if (writer_ == nullptr) {
      const std::string uri = fmt::format("{}/{}-{:05}.parquet", folder_, split_, shards_.size());
      ATOLL_ASSIGN_OR_RETURN(writer_, ShardWriter::Create(store_, uri, split_, options_.columns));
      rows_ = 0;
    }
    ATOLL_RETURN_IF_ERROR(writer_->Add(sample));
    return ++rows_ == options_.shard_rows ? FinishShard() : absl::OkStatus();
  }

  absl::StatusOr<std::vector<Shard>> Finish() {
    if (writer_ != nullptr) ATOLL_RETURN_IF_ERROR(FinishShard());
    return std::move(shards_);
  }

 private:
  absl::Status FinishShard() {
    ATOLL_ASSIGN_OR_RETURN(Shard shard, writer_->Finish());
    writer_ = nullptr;
    shards_.push_back(std::move(shard));
    return absl::OkStatus();
  }

  storage::BlobStore* const store_;
  const std::string folder_;
  const std::string split_;
  const ImportOptions& options_;
  std::unique_ptr<ShardWriter> writer_;
  int64_t rows_ = 0;
  std::vector<Shard> shards_;
};

class Importer {
 public:
  Importer(storage::BlobStore* store, const ImportOptions& options, const std::string& folder, Source* source)
      : options_(options),
        source_(source),
        classes_(source->classes()),
        train_(store, folder, "train", options),
        held_out_(store, folder, "held_out", options) {}

  absl::StatusOr<DatasetManifest> Run() {
    for (;;) {
      SourceRow row;
      ATOLL_ASSIGN_OR_RETURN(const bool more, source_->Next(&row));
      if (!more) break;
      Sample sample;
      if (row.problem.empty()) row.problem = MakeSample(&row, &sample);
      if (row.problem.empty()) {
        ATOLL_RETURN_IF_ERROR((IsHeldOut(sample.id, options_.held_out_fraction) ? held_out_ : train_).Add(sample));
        highest_label_ = std::max(highest_label_, sample.label);
        ++rows_;
      } else {
        ATOLL_RETURN_IF_ERROR(Skip(std::move(row)));
      }
      if (options_.progress && (rows_ + skipped_count_) % kProgressRows == 0) options_.progress(rows_, skipped_count_);
    }
    if (options_.progress) options_.progress(rows_, skipped_count_);
    return Finish();
  }

 private:
  // Why the row is no sample, or nothing. Takes what it needs of the row.
  std::string MakeSample(SourceRow* row, Sample* sample) {
    if (!row->image.has_value()) {
      auto decoded = DecodeImage(row->encoded, "image");
      if (!decoded.ok()) return std::string(decoded.status().message());
      row->image = *std::move(decoded);
    }
    Image image = *std::move(row->image);
    const int64_t classes = classes_.empty() ? kMaxClasses : static_cast<int64_t>(classes_.size());
    if (row->label < 0 || row->label >= classes) {
      return fmt::format("label: expected 0 to {}, found {}", classes - 1, row->label);
    }
    if (std::string problem = FitChannels(&image); !problem.empty()) return problem;
    if (options_.size > 0 && (image.height != options_.size || image.width != options_.size)) {
      image = CropAndResize(image, options_.size);
    }
    if (height_ == 0) {
      height_ = image.height;
      width_ = image.width;
    } else if (image.height != height_ || image.width != width_) {
      return fmt::format("image: expected {} x {} as the first, found {} x {}; choose a size to crop and scale to",
                         height_, width_, image.height, image.width);
    }
    sample->id = SampleId(image, static_cast<int32_t>(row->label));
    sample->label = static_cast<int32_t>(row->label);
    sample->path = std::move(row->path);
    sample->image = std::move(image);
    sample->columns = std::move(row->columns);
    return "";
  }

  std::string FitChannels(Image* image) {
    if (channels_ == 0) {
      channels_ = options_.channels == ChannelChoice::kAuto   ? image->channels
                  : options_.channels == ChannelChoice::kGrey ? 1
                                                              : 3;
    }
    if (options_.channels == ChannelChoice::kAuto && image->channels > channels_) {
      return "image: expected grey as the first, found colour; choose grey or colour";
    }
    *image = ToChannels(std::move(*image), channels_);
    return "";
  }

  absl::Status Skip(SourceRow row) {
    ++skipped_count_;
    if (skipped_.size() < kNamedSkipped) skipped_.push_back({std::move(row.where), std::move(row.problem)});
    const int64_t limit = options_.bad_row_limit < 0 ? kHopeless : options_.bad_row_limit;
    return skipped_count_ > limit ? TooManySkipped(limit) : absl::OkStatus();
  }

  absl::Status TooManySkipped(int64_t limit) const {
    return MakeError(absl::StatusCode::kInvalidArgument, "TOO_MANY_BAD_ROWS",
                     fmt::format("{}: expected at most {} bad rows, found {} beside {} good ones; the first: {}: {}",
                                 fmt::join(options_.paths, ", "), limit, skipped_count_, rows_, skipped_.front().where,
                                 skipped_.front().reason));
  }

  absl::StatusOr<DatasetManifest> Finish() {
    const int64_t limit =
        options_.bad_row_limit >= 0
            ? options_.bad_row_limit
            : std::max(kDefaultBadRows,
                       static_cast<int64_t>(kDefaultBadShare * static_cast<double>(rows_ + skipped_count_)));
    if (skipped_count_ > limit) return TooManySkipped(limit);
    if (rows_ == 0 && skipped_count_ > 0) {
      return MakeError(absl::StatusCode::kInvalidArgument, "NO_GOOD_ROW",
                       fmt::format("{}: expected at least one good row, found {} bad ones; the first: {}: {}",
                                   fmt::join(options_.paths, ", "), skipped_count_, skipped_.front().where,
                                   skipped_.front().reason));
    }
    DatasetManifest manifest{
        .name = options_.name,
        .channels = channels_,
        .height = height_,
        .width = width_,
        .classes = classes_,
        .columns = options_.columns,
        .held_out_fraction = options_.held_out_fraction,
        .skipped_count = skipped_count_,
        .skipped = skipped_,
        .source = fmt::format("{}: {}", ToString(options_.format), fmt::join(options_.paths, ", "))};
    ATOLL_ASSIGN_OR_RETURN(manifest.shards, train_.Finish());
    ATOLL_ASSIGN_OR_RETURN(const std::vector<Shard> held_out, held_out_.Finish());
    if (manifest.shards.empty()) {
      return MakeError(
          absl::StatusCode::kInvalidArgument, "SOURCE_EMPTY",
          fmt::format("{}: expected samples to train on, found {} in all", fmt::join(options_.paths, ", "), rows_));
    }
    manifest.shards.insert(manifest.shards.end(), held_out.begin(), held_out.end());
    if (manifest.classes.empty()) {
      for (int32_t label = 0; label <= highest_label_; ++label) manifest.classes.push_back(std::to_string(label));
    }
    return manifest;
  }

  const ImportOptions& options_;
  Source* const source_;
  const std::vector<std::string> classes_;
  SplitWriter train_;
  SplitWriter held_out_;
  int32_t channels_ = 0;
  int32_t height_ = 0;
  int32_t width_ = 0;
  int32_t highest_label_ = -1;
  int64_t rows_ = 0;
  int64_t skipped_count_ = 0;
  std::vector<Skipped> skipped_;
};

}  // namespace

// Shards go into a folder of their own, so that two imports of one name never touch each other's files. The manifest,
// created once and last, decides which import owns the name.
absl::StatusOr<DatasetManifest> ImportDataset(storage::BlobStore* store, const ImportOptions& options) {
  ATOLL_RETURN_IF_ERROR(CheckOptions(options));
  const std::string manifest_uri = DatasetManifestUri(*store, options.name);
  ATOLL_ASSIGN_OR_RETURN(const bool taken, store->Exists(manifest_uri));
  if (taken) return NameTaken(options.name);
  ATOLL_ASSIGN_OR_RETURN(const std::unique_ptr<Source> source, OpenSource(options));
  const std::string folder = store->UriOf(fmt::format("datasets/{}/shards-{}", options.name, storage::RandomSuffix()));
  absl::Cleanup remove_shards = [store, &folder] { (void)store->DeleteTree(folder); };
  // Scoped, so that a writer that was given up is gone before its folder is removed.
  absl::StatusOr<DatasetManifest> manifest = [&] { return Importer(store, options, folder, source.get()).Run(); }();
  ATOLL_RETURN_IF_ERROR(manifest.status());
  const auto written = store->CreateOnce(manifest_uri, ToJson(*manifest));
  if (absl::IsAlreadyExists(written.status())) return NameTaken(options.name);
  ATOLL_RETURN_IF_ERROR(written.status());
  std::move(remove_shards).Cancel();
  return manifest;
}

}  // namespace atl::dataset
