#include <algorithm>
#include <set>
#include <utility>

#include "arrow/array/array_nested.h"
#include "arrow/array/array_primitive.h"
#include "arrow/io/file.h"
#include "arrow/type.h"
#include "arrow/util/io_util.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/dataset/arrow_columns.h"
#include "common/dataset/dataset.h"
#include "common/dataset/image_codec.h"
#include "common/dataset/lru_cache.h"
#include "common/storage/arrow_status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "parquet/arrow/reader.h"
#include "parquet/file_reader.h"
#include "parquet/metadata.h"

namespace atl::dataset {
namespace {

constexpr size_t kOpenFiles = 64;

struct ShardFile {
  std::unique_ptr<parquet::arrow::FileReader> reader;
  std::shared_ptr<arrow::Schema> schema;
  // First row of each row group, and the number of rows.
  std::vector<int64_t> group_starts;
};

// The columns of one row group that every sample needs.
struct RowGroup {
  std::shared_ptr<arrow::Array> image_bytes;
  std::shared_ptr<arrow::Array> image_paths;
  std::shared_ptr<arrow::Array> labels;
  std::shared_ptr<arrow::Array> ids;
};

// The place of a position.
struct Place {
  size_t shard = 0;
  int group = 0;
  int64_t row = 0;  // in the row group
};

absl::Status WrongShard(const Shard& shard, const std::string& message) {
  return MakeError(absl::StatusCode::kDataLoss, "SHARD_MALFORMED", fmt::format("{}: {}", shard.uri, message));
}

// Error of reading a local file. If the system reported none, a page's checksum or format shows that the file is
// damaged.
absl::Status ReadError(const Shard& shard, const arrow::Status& status) {
  if (status.IsIOError() && arrow::internal::ErrnoFromStatus(status) == 0) return WrongShard(shard, status.message());
  return storage::FromArrow(status, shard.uri);
}

// Indices of the Parquet leaves below a top-level column.
std::vector<int> LeavesOf(const ShardFile& file, const std::set<std::string>& columns) {
  std::vector<int> leaves;
  const parquet::SchemaDescriptor* schema = file.reader->parquet_reader()->metadata()->schema();
  for (int i = 0; i < schema->num_columns(); ++i) {
    if (columns.contains(schema->GetColumnRoot(i)->name())) leaves.push_back(i);
  }
  return leaves;
}

class ParquetSampleReader : public SampleReader {
 public:
  ParquetSampleReader(storage::BlobStore* store, std::vector<Shard> shards, int64_t cached_row_groups)
      : store_(store),
        shards_(std::move(shards)),
        files_(kOpenFiles),
        groups_(static_cast<size_t>(std::max<int64_t>(cached_row_groups, 1))),
        columns_(static_cast<size_t>(std::max<int64_t>(cached_row_groups, 1))) {
    starts_.push_back(0);
    for (const Shard& shard : shards_) starts_.push_back(starts_.back() + shard.rows);
  }

  int64_t size() const override { return starts_.back(); }

  absl::StatusOr<Sample> Read(int64_t position) override {
    Place place;
    ATOLL_ASSIGN_OR_RETURN(const std::shared_ptr<ShardFile> file, Locate(position, &place));
    ATOLL_ASSIGN_OR_RETURN(const std::shared_ptr<RowGroup> group, Group(*file, place));
    const std::string where = fmt::format("{}: row {}", shards_[place.shard].uri, position - starts_[place.shard]);
    Sample sample;
    const auto bytes = BytesAt(*group->image_bytes, place.row);
    if (!bytes.ok()) return WithContext(bytes.status(), where);
    if (!group->image_paths->IsNull(place.row)) sample.path = BytesAt(*group->image_paths, place.row).value();
    sample.label = static_cast<const arrow::Int32Array&>(*group->labels).Value(place.row);
    sample.id = static_cast<const arrow::UInt64Array&>(*group->ids).Value(place.row);
    ATOLL_ASSIGN_OR_RETURN(sample.image, DecodeImage(*bytes, where));
    return sample;
  }

  absl::StatusOr<std::vector<float>> ReadColumn(int64_t position, std::string_view column) override {
    Place place;
    ATOLL_ASSIGN_OR_RETURN(const std::shared_ptr<ShardFile> file, Locate(position, &place));
    ATOLL_ASSIGN_OR_RETURN(const std::shared_ptr<arrow::Array> values, Column(*file, place, std::string(column)));
    auto floats = FloatsAt(*values, place.row);
    if (floats.ok()) return floats;
    return WithContext(floats.status(), fmt::format("{}: row {}: column '{}'", shards_[place.shard].uri,
                                                    position - starts_[place.shard], column));
  }

 private:
  absl::StatusOr<std::shared_ptr<ShardFile>> Locate(int64_t position, Place* place) {
    if (position < 0 || position >= size()) {
      return MakeError(absl::StatusCode::kOutOfRange, "POSITION_OUT_OF_RANGE",
                       fmt::format("sample: expected a position from 0 to {}, found {}", size() - 1, position));
    }
    place->shard = std::upper_bound(starts_.begin(), starts_.end(), position) - starts_.begin() - 1;
    ATOLL_ASSIGN_OR_RETURN(std::shared_ptr<ShardFile> file, File(place->shard));
    const int64_t row = position - starts_[place->shard];
    const std::vector<int64_t>& groups = file->group_starts;
    place->group = static_cast<int>(std::upper_bound(groups.begin(), groups.end(), row) - groups.begin()) - 1;
    place->row = row - groups[place->group];
    return file;
  }

  absl::StatusOr<std::shared_ptr<ShardFile>> File(size_t index) {
    if (auto file = files_.Find(index)) return file;
    const Shard& shard = shards_[index];
    // A verified copy is verified once: shards are immutable.
    const bool first = verified_.insert(index).second;
    auto path = store_->LocalPath(shard.uri, first || !shard.uri.starts_with("file://") ? shard.sha256 : "");
    if (!path.ok()) {
      verified_.erase(index);
      return path.status();
    }
    ATOLL_ASSIGN_OR_RETURN(auto file, WithoutExceptions(shard.uri, [&] { return OpenShard(shard, *path); }));
    files_.Insert(index, file);
    return file;
  }

  static absl::StatusOr<std::shared_ptr<ShardFile>> OpenShard(const Shard& shard, const std::string& path) {
    auto file = std::make_shared<ShardFile>();
    ATOLL_ASSIGN_OR_RETURN_ARROW(auto input, arrow::io::ReadableFile::Open(path), shard.uri);
    parquet::ReaderProperties properties;
    properties.set_page_checksum_verification(true);
    parquet::arrow::FileReaderBuilder builder;
    ATOLL_RETURN_IF_ARROW_ERROR(builder.Open(std::move(input), properties), shard.uri);
    ATOLL_ASSIGN_OR_RETURN_ARROW(file->reader, builder.Build(), shard.uri);
    ATOLL_RETURN_IF_ARROW_ERROR(file->reader->GetSchema(&file->schema), shard.uri);
    file->group_starts.push_back(0);
    const auto metadata = file->reader->parquet_reader()->metadata();
    for (int i = 0; i < metadata->num_row_groups(); ++i) {
      file->group_starts.push_back(file->group_starts.back() + metadata->RowGroup(i)->num_rows());
    }
    if (file->group_starts.back() != shard.rows) {
      return WrongShard(shard, fmt::format("expected {} rows, found {}", shard.rows, file->group_starts.back()));
    }
    return file;
  }

  absl::StatusOr<std::shared_ptr<RowGroup>> Group(const ShardFile& file, const Place& place) {
    const std::pair key(place.shard, place.group);
    if (auto group = groups_.Find(key)) return group;
    ATOLL_ASSIGN_OR_RETURN(auto group,
                           WithoutExceptions(shards_[place.shard].uri, [&] { return LoadGroup(file, place); }));
    groups_.Insert(key, group);
    return group;
  }

  absl::StatusOr<std::shared_ptr<RowGroup>> LoadGroup(const ShardFile& file, const Place& place) {
    const Shard& shard = shards_[place.shard];
    std::shared_ptr<arrow::Table> table;
    const arrow::Status read =
        file.reader->ReadRowGroup(place.group, LeavesOf(file, {"image", "label", "sample_id"}), &table);
    if (!read.ok()) return ReadError(shard, read);
    auto group = std::make_shared<RowGroup>();
    ATOLL_ASSIGN_OR_RETURN(const auto image, WholeColumn(*table, "image", shard.uri));
    ATOLL_ASSIGN_OR_RETURN(group->labels, WholeColumn(*table, "label", shard.uri));
    ATOLL_ASSIGN_OR_RETURN(group->ids, WholeColumn(*table, "sample_id", shard.uri));
    if (image->type_id() == arrow::Type::STRUCT) {
      const auto& fields = static_cast<const arrow::StructArray&>(*image);
      group->image_bytes = fields.GetFieldByName("bytes");
      group->image_paths = fields.GetFieldByName("path");
    }
    if (group->image_bytes == nullptr || !HoldsBytes(*group->image_bytes->type()) || group->image_paths == nullptr ||
        !HoldsBytes(*group->image_paths->type()) || group->labels->type_id() != arrow::Type::INT32 ||
        group->ids->type_id() != arrow::Type::UINT64) {
      return WrongShard(shard,
                        fmt::format("expected columns image struct<bytes: binary, path: string>, label int32 and "
                                    "sample_id uint64, found {}",
                                    table->schema()->ToString()));
    }
    const int64_t rows = file.group_starts[place.group + 1] - file.group_starts[place.group];
    if (table->num_rows() != rows) {
      return WrongShard(shard,
                        fmt::format("row group {}: expected {} rows, found {}", place.group, rows, table->num_rows()));
    }
    return group;
  }

  absl::StatusOr<std::shared_ptr<arrow::Array>> Column(const ShardFile& file, const Place& place,
                                                       const std::string& column) {
    const std::pair key(std::pair(place.shard, place.group), column);
    if (auto values = columns_.Find(key)) return values;
    const Shard& shard = shards_[place.shard];
    if (file.schema->GetFieldIndex(column) < 0) {
      return MakeError(absl::StatusCode::kNotFound, "COLUMN_NOT_FOUND",
                       fmt::format("{}: column '{}': expected one of [{}]", shard.uri, column,
                                   fmt::join(file.schema->field_names(), ", ")));
    }
    ATOLL_ASSIGN_OR_RETURN(
        auto values, WithoutExceptions(shard.uri, [&]() -> absl::StatusOr<std::shared_ptr<arrow::Array>> {
          std::shared_ptr<arrow::Table> table;
          const arrow::Status read = file.reader->ReadRowGroup(place.group, LeavesOf(file, {column}), &table);
          if (!read.ok()) return ReadError(shard, read);
          return WholeColumn(*table, column, shard.uri);
        }));
    columns_.Insert(key, values);
    return values;
  }

  storage::BlobStore* const store_;
  const std::vector<Shard> shards_;
  std::vector<int64_t> starts_;
  std::set<size_t> verified_;
  LruCache<size_t, ShardFile> files_;
  LruCache<std::pair<size_t, int>, RowGroup> groups_;
  LruCache<std::pair<std::pair<size_t, int>, std::string>, arrow::Array> columns_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<SampleReader>> SampleReader::Open(storage::BlobStore* store, std::vector<Shard> shards,
                                                                 int64_t cached_row_groups) {
  for (const Shard& shard : shards) {
    if (shard.rows < 0) return WrongShard(shard, fmt::format("expected 0 rows or more, found {}", shard.rows));
    ATOLL_ASSIGN_OR_RETURN(const bool exists, store->Exists(shard.uri));
    if (!exists) {
      return MakeError(absl::StatusCode::kNotFound, "BLOB_NOT_FOUND",
                       fmt::format("{}: expected a shard of {} rows, found none", shard.uri, shard.rows));
    }
  }
  return std::make_unique<ParquetSampleReader>(store, std::move(shards), cached_row_groups);
}

}  // namespace atl::dataset
