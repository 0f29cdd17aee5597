#include <utility>

#include "arrow/array/builder_binary.h"
#include "arrow/array/builder_nested.h"
#include "arrow/array/builder_primitive.h"
#include "arrow/io/interfaces.h"
#include "arrow/table.h"
#include "arrow/type.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/dataset/arrow_columns.h"
#include "common/dataset/dataset.h"
#include "common/dataset/image_codec.h"
#include "common/storage/arrow_status.h"
#include "fmt/format.h"
#include "parquet/arrow/writer.h"
#include "parquet/properties.h"

namespace atl::dataset {
namespace {

using storage::BlobWriter;

// Lets Parquet write into a blob. Closing it does not finish the blob: the owner decides that.
class BlobStream : public arrow::io::OutputStream {
 public:
  explicit BlobStream(BlobWriter* blob) : blob_(blob) {}

  arrow::Status Close() override {
    closed_ = true;
    return arrow::Status::OK();
  }
  bool closed() const override { return closed_; }
  arrow::Result<int64_t> Tell() const override { return blob_->bytes(); }
  using arrow::io::OutputStream::Write;
  arrow::Status Write(const void* data, int64_t size) override {
    error_ = blob_->Append({static_cast<const char*>(data), static_cast<size_t>(size)});
    return error_.ok() ? arrow::Status::OK() : arrow::Status::IOError(std::string(error_.message()));
  }

  // Returns the blob's own error; Arrow keeps only its message.
  const absl::Status& error() const { return error_; }

 private:
  BlobWriter* const blob_;
  bool closed_ = false;
  absl::Status error_;
};

std::shared_ptr<arrow::Schema> ShardSchema(const std::vector<std::string>& columns) {
  arrow::FieldVector fields = {arrow::field("image", arrow::struct_({arrow::field("bytes", arrow::binary()),
                                                                     arrow::field("path", arrow::utf8())})),
                               arrow::field("label", arrow::int32()), arrow::field("sample_id", arrow::uint64())};
  for (const std::string& column : columns) fields.push_back(arrow::field(column, arrow::list(arrow::float32())));
  return arrow::schema(std::move(fields));
}

// Encoded images do not compress, and every value occurs once, so plain pages are smallest and fastest. Their checksums
// protect readers that run for weeks after they checked the file's hash.
std::shared_ptr<parquet::WriterProperties> PlainPages() {
  return parquet::WriterProperties::Builder()
      .compression(parquet::Compression::UNCOMPRESSED)
      ->disable_dictionary()
      ->disable_statistics()
      ->enable_page_checksum()
      ->max_row_group_length(kRowGroupRows)
      ->build();
}

class ParquetShardWriter : public ShardWriter {
 public:
  ParquetShardWriter(std::unique_ptr<BlobWriter> blob, std::string uri, std::string split,
                     std::vector<std::string> columns)
      : uri_(std::move(uri)),
        split_(std::move(split)),
        columns_(std::move(columns)),
        blob_(std::move(blob)),
        stream_(std::make_shared<BlobStream>(blob_.get())),
        schema_(ShardSchema(columns_)),
        images_(schema_->field(0)->type(), arrow::default_memory_pool(), {image_bytes_, image_paths_}) {
    for (size_t i = 0; i < columns_.size(); ++i) {
      column_values_.push_back(std::make_shared<arrow::FloatBuilder>());
      column_lists_.push_back(
          std::make_unique<arrow::ListBuilder>(arrow::default_memory_pool(), column_values_.back()));
    }
  }

  absl::Status Start() {
    ATOLL_ASSIGN_OR_RETURN_ARROW(
        parquet_, parquet::arrow::FileWriter::Open(*schema_, arrow::default_memory_pool(), stream_, PlainPages()),
        uri_);
    return absl::OkStatus();
  }

  absl::Status Add(const Sample& sample) override {
    if (sample.columns.size() != columns_.size()) {
      return MakeError(absl::StatusCode::kInvalidArgument, "COLUMN_COUNT",
                       fmt::format("{}: '{}': expected values for {} columns, found {}", uri_, sample.path,
                                   columns_.size(), sample.columns.size()));
    }
    ATOLL_ASSIGN_OR_RETURN(const std::string png, EncodePng(sample.image));
    return WithoutExceptions(uri_, [&] { return Append(sample, png); });
  }

  absl::StatusOr<Shard> Finish() override {
    ATOLL_RETURN_IF_ERROR(WithoutExceptions(uri_, [&]() -> absl::Status {
      ATOLL_RETURN_IF_ERROR(WriteRowGroup());
      return Result(parquet_->Close());
    }));
    ATOLL_ASSIGN_OR_RETURN(const storage::WrittenFile file, blob_->Finish());
    return Shard{.uri = uri_, .split = split_, .rows = rows_, .bytes = file.bytes, .sha256 = file.sha256};
  }

 private:
  absl::Status Result(const arrow::Status& status) const {
    if (!stream_->error().ok()) return stream_->error();
    return storage::FromArrow(status, "cannot write " + uri_);
  }

  absl::Status Append(const Sample& sample, const std::string& png) {
    arrow::Status status = images_.Append();
    status &= image_bytes_->Append(png);
    status &= image_paths_->Append(sample.path);
    status &= labels_.Append(sample.label);
    status &= ids_.Append(sample.id);
    for (size_t i = 0; i < columns_.size(); ++i) {
      status &= column_lists_[i]->Append();
      status &= column_values_[i]->AppendValues(sample.columns[i]);
    }
    ATOLL_RETURN_IF_ERROR(Result(status));
    ++rows_;
    ++pending_;
    return pending_ == kRowGroupRows ? WriteRowGroup() : absl::OkStatus();
  }

  absl::Status WriteRowGroup() {
    if (pending_ == 0) return absl::OkStatus();
    std::vector<std::shared_ptr<arrow::Array>> arrays(3 + columns_.size());
    arrow::Status status = images_.Finish(&arrays[0]);
    status &= labels_.Finish(&arrays[1]);
    status &= ids_.Finish(&arrays[2]);
    for (size_t i = 0; i < columns_.size(); ++i) status &= column_lists_[i]->Finish(&arrays[3 + i]);
    ATOLL_RETURN_IF_ERROR(Result(status));
    const auto table = arrow::Table::Make(schema_, arrays, pending_);
    pending_ = 0;
    return Result(parquet_->WriteTable(*table, kRowGroupRows));
  }

  const std::string uri_;
  const std::string split_;
  const std::vector<std::string> columns_;
  // Declared so that Parquet's writer goes first and the blob last.
  const std::unique_ptr<BlobWriter> blob_;
  const std::shared_ptr<BlobStream> stream_;
  const std::shared_ptr<arrow::Schema> schema_;
  std::shared_ptr<arrow::BinaryBuilder> image_bytes_ = std::make_shared<arrow::BinaryBuilder>();
  std::shared_ptr<arrow::StringBuilder> image_paths_ = std::make_shared<arrow::StringBuilder>();
  arrow::StructBuilder images_;
  arrow::Int32Builder labels_;
  arrow::UInt64Builder ids_;
  std::vector<std::shared_ptr<arrow::FloatBuilder>> column_values_;
  std::vector<std::unique_ptr<arrow::ListBuilder>> column_lists_;
  std::unique_ptr<parquet::arrow::FileWriter> parquet_;
  int64_t rows_ = 0;
  int64_t pending_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<ShardWriter>> ShardWriter::Create(storage::BlobStore* store, std::string uri,
                                                                 std::string split, std::vector<std::string> columns) {
  ATOLL_ASSIGN_OR_RETURN(auto blob, store->OpenWriter(uri));
  auto writer =
      std::make_unique<ParquetShardWriter>(std::move(blob), std::move(uri), std::move(split), std::move(columns));
  ATOLL_RETURN_IF_ERROR(writer->Start());
  return writer;
}

}  // namespace atl::dataset
