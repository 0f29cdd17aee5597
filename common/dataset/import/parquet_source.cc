#include <algorithm>
#include <set>
#include <utility>

#include "arrow/array/array_nested.h"
#include "arrow/io/interfaces.h"
#include "arrow/record_batch.h"
#include "arrow/table.h"
#include "arrow/type.h"
#include "arrow/util/key_value_metadata.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/dataset/arrow_columns.h"
#include "common/dataset/import/import_source.h"
#include "common/storage/arrow_status.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "nlohmann/json.hpp"
#include "parquet/arrow/reader.h"
#include "parquet/file_reader.h"
#include "parquet/properties.h"
#include "parquet/schema.h"

namespace atl::dataset {
namespace {

constexpr int64_t kBatchRows = 512;
// Limit of the memory that decoding holds at once.
constexpr int64_t kMemoryLimit = int64_t{2} << 30;

bool HoldsImages(const arrow::DataType& type) {
  if (HoldsBytes(type)) return type.id() == arrow::Type::BINARY || type.id() == arrow::Type::LARGE_BINARY;
  if (type.id() != arrow::Type::STRUCT) return false;
  const auto bytes = static_cast<const arrow::StructType&>(type).GetFieldByName("bytes");
  return bytes != nullptr && HoldsBytes(*bytes->type());
}

// Names of a Hugging Face ClassLabel, kept in the file's own metadata. Empty when there are none.
std::vector<std::string> ClassLabelNames(const arrow::Schema& schema, const std::string& column) {
  if (schema.metadata() == nullptr) return {};
  const auto text = schema.metadata()->Get("huggingface");
  if (!text.ok()) return {};
  const nlohmann::json info = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  const nlohmann::json* value = &info;
  for (const std::string& name : {std::string("info"), std::string("features"), column, std::string("names")}) {
    if (!value->is_object() || !value->contains(name)) return {};
    value = &(*value)[name];
  }
  std::vector<std::string> names;
  if (!value->is_array() || static_cast<int64_t>(value->size()) > kMaxClasses) return {};
  for (const nlohmann::json& name : *value) {
    if (!name.is_string()) return {};
    names.push_back(name.get<std::string>());
  }
  return names;
}

// One Parquet file as a stream of batches of the requested columns.
class ParquetRows {
 public:
  ParquetRows(const ParquetFile& file, LimitedPool* pool) : file_(file), pool_(pool) {}

  absl::Status Open() {
    parquet::arrow::FileReaderBuilder builder;
    if (const arrow::Status status = builder.Open(file_.file, parquet::ReaderProperties(pool_)); !status.ok()) {
      return MalformedSource(file_.name, fmt::format("expected a Parquet file: {}", status.message()));
    }
    ATOLL_RETURN_IF_ARROW_ERROR(builder.memory_pool(pool_)->Build(&reader_), file_.name);
    reader_->set_batch_size(kBatchRows);
    ATOLL_RETURN_IF_ARROW_ERROR(reader_->GetSchema(&schema_), file_.name);
    return absl::OkStatus();
  }

  const arrow::Schema& schema() const { return *schema_; }

  absl::Status Start(const std::set<std::string>& columns) {
    std::vector<int> leaves;
    const parquet::SchemaDescriptor* schema = reader_->parquet_reader()->metadata()->schema();
    for (int i = 0; i < schema->num_columns(); ++i) {
      if (columns.contains(schema->GetColumnRoot(i)->name())) leaves.push_back(i);
    }
    std::vector<int> groups(reader_->num_row_groups());
    for (int i = 0; i < reader_->num_row_groups(); ++i) groups[i] = i;
    ATOLL_ASSIGN_OR_RETURN_ARROW(batches_, reader_->GetRecordBatchReader(groups, leaves), file_.name);
    return absl::OkStatus();
  }

  // Null at the end.
  absl::StatusOr<std::shared_ptr<arrow::RecordBatch>> Next() {
    std::shared_ptr<arrow::RecordBatch> batch;
    ATOLL_RETURN_IF_ARROW_ERROR(batches_->ReadNext(&batch), file_.name);
    if (batch != nullptr) ATOLL_RETURN_IF_ARROW_ERROR(batch->ValidateFull(), file_.name);
    return batch;
  }

 private:
  const ParquetFile& file_;
  LimitedPool* const pool_;
  std::unique_ptr<parquet::arrow::FileReader> reader_;
  std::shared_ptr<arrow::Schema> schema_;
  std::unique_ptr<arrow::RecordBatchReader> batches_;
};

class ParquetSource : public Source {
 public:
  ParquetSource(std::vector<ParquetFile> files, ParquetColumns columns)
      : files_(std::move(files)), columns_(std::move(columns)) {}

  // Settles which columns hold what, by the first file, and what its labels are called.
  absl::Status LearnSchema() {
    ParquetRows first(files_.front(), &pool_);
    ATOLL_RETURN_IF_ERROR(first.Open());
    const arrow::Schema& schema = first.schema();
    for (const auto& field : schema.fields()) {
      if (columns_.image.empty() && HoldsImages(*field->type())) columns_.image = field->name();
    }
    if (columns_.label.empty()) columns_.label = "label";
    ATOLL_RETURN_IF_ERROR(CheckColumns(files_.front(), schema));
    if (HoldsIntegers(*schema.GetFieldByName(columns_.label)->type())) {
      names_ = ClassLabelNames(schema, columns_.label);
      return absl::OkStatus();
    }
    return LearnNames();
  }

  absl::StatusOr<bool> Next(SourceRow* row) override {
    return WithoutExceptions(CurrentName(), [&] { return NextRow(row); });
  }

  std::vector<std::string> classes() const override { return names_.empty() ? labels_.names() : names_; }

 private:
  std::string CurrentName() const { return next_file_ == 0 ? files_.front().name : files_[next_file_ - 1].name; }

  absl::Status CheckColumns(const ParquetFile& file, const arrow::Schema& schema) const {
    const auto check = [&](const std::string& name, const char* what, auto&& fits) -> absl::Status {
      const auto field = schema.GetFieldByName(name);
      if (field == nullptr) {
        return MalformedSource(file.name, fmt::format("column '{}' ({}): expected once, found columns [{}]", name, what,
                                                      fmt::join(schema.field_names(), ", ")));
      }
      if (fits(*field->type())) return absl::OkStatus();
      return MalformedSource(file.name,
                             fmt::format("column '{}': expected {}, found {}", name, what, field->type()->ToString()));
    };
    ATOLL_RETURN_IF_ERROR(check(columns_.image, "encoded images, as binary or struct<bytes: binary, …>", HoldsImages));
    ATOLL_RETURN_IF_ERROR(check(columns_.label, "labels, as integers or strings",
                                [](const arrow::DataType& type) { return HoldsIntegers(type) || HoldsBytes(type); }));
    for (const std::string& column : columns_.extra) {
      ATOLL_RETURN_IF_ERROR(check(column, "numbers or lists of numbers", HoldsFloats));
    }
    return absl::OkStatus();
  }

  absl::Status LearnNames() {
    std::set<std::string> names;
    for (const ParquetFile& file : files_) {
      ParquetRows rows(file, &pool_);
      ATOLL_RETURN_IF_ERROR(rows.Open());
      ATOLL_RETURN_IF_ERROR(CheckColumns(file, rows.schema()));
      ATOLL_RETURN_IF_ERROR(rows.Start({columns_.label}));
      for (;;) {
        ATOLL_ASSIGN_OR_RETURN(const auto batch, rows.Next());
        if (batch == nullptr) break;
        for (int64_t i = 0; i < batch->num_rows(); ++i) {
          const auto name = BytesAt(*batch->column(0), i);
          if (name.ok()) names.emplace(*name);
          if (static_cast<int64_t>(names.size()) > kMaxClasses) break;
        }
      }
    }
    ATOLL_ASSIGN_OR_RETURN(labels_, LabelMap::OfNames({names.begin(), names.end()}, files_.front().name));
    return absl::OkStatus();
  }

  absl::StatusOr<bool> NextRow(SourceRow* row) {
    while (batch_ == nullptr || next_row_ == batch_->num_rows()) {
      if (rows_ == nullptr) {
        if (next_file_ == files_.size()) return false;
        rows_ = std::make_unique<ParquetRows>(files_[next_file_++], &pool_);
        ATOLL_RETURN_IF_ERROR(rows_->Open());
        ATOLL_RETURN_IF_ERROR(CheckColumns(files_[next_file_ - 1], rows_->schema()));
        std::set<std::string> wanted(columns_.extra.begin(), columns_.extra.end());
        wanted.insert({columns_.image, columns_.label});
        ATOLL_RETURN_IF_ERROR(rows_->Start(wanted));
        row_in_file_ = 0;
      }
      ATOLL_ASSIGN_OR_RETURN(batch_, rows_->Next());
      next_row_ = 0;
      if (batch_ == nullptr) rows_ = nullptr;
    }
    row->where = fmt::format("{}: row {}", CurrentName(), row_in_file_++);
    const absl::Status status = FillRow(next_row_++, row);
    if (!status.ok()) row->problem = std::string(status.message());
    return true;
  }

  absl::Status FillRow(int64_t i, SourceRow* row) const {
    const std::shared_ptr<arrow::Array> images = batch_->GetColumnByName(columns_.image);
    std::shared_ptr<arrow::Array> bytes = images;
    row->path = fmt::format("row-{}", row_in_file_ - 1);
    if (images->type_id() == arrow::Type::STRUCT) {
      const auto& fields = static_cast<const arrow::StructArray&>(*images);
      bytes = fields.GetFieldByName("bytes");
      const auto path = fields.GetFieldByName("path");
      if (path != nullptr && HoldsBytes(*path->type()) && path->IsValid(i)) row->path = BytesAt(*path, i).value();
    }
    const auto encoded = BytesAt(*bytes, i);
    if (images->IsNull(i) || !encoded.ok()) {
      return MakeError(absl::StatusCode::kInvalidArgument, "VALUE_ABSENT",
                       fmt::format("column '{}': expected an encoded image, found none", columns_.image));
    }
    row->encoded = *encoded;
    ATOLL_RETURN_IF_ERROR(WithContext(FillLabel(i, row), fmt::format("column '{}'", columns_.label)));
    for (const std::string& column : columns_.extra) {
      auto values = FloatsAt(*batch_->GetColumnByName(column), i);
      if (!values.ok()) return WithContext(values.status(), fmt::format("column '{}'", column));
      row->columns.push_back(*std::move(values));
    }
    return absl::OkStatus();
  }

  absl::Status FillLabel(int64_t i, SourceRow* row) const {
    const arrow::Array& labels = *batch_->GetColumnByName(columns_.label);
    if (HoldsIntegers(*labels.type()) && labels_.names().empty()) {
      ATOLL_ASSIGN_OR_RETURN(row->label, IntegerAt(labels, i));
      return absl::OkStatus();
    }
    ATOLL_ASSIGN_OR_RETURN(const std::string_view text, BytesAt(labels, i));
    std::string problem;
    if (labels_.Resolve({.text = std::string(text)}, &row->label, &problem)) return absl::OkStatus();
    return MakeError(absl::StatusCode::kInvalidArgument, "LABEL_UNKNOWN", problem);
  }

  LimitedPool pool_{kMemoryLimit};
  const std::vector<ParquetFile> files_;
  ParquetColumns columns_;
  std::vector<std::string> names_;  // of a ClassLabel
  LabelMap labels_;                 // of string labels
  size_t next_file_ = 0;
  std::unique_ptr<ParquetRows> rows_;
  std::shared_ptr<arrow::RecordBatch> batch_;
  int64_t next_row_ = 0;
  int64_t row_in_file_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Source>> MakeParquetSource(std::vector<ParquetFile> files, ParquetColumns columns) {
  const std::string name = files.front().name;
  auto source = std::make_unique<ParquetSource>(std::move(files), std::move(columns));
  ATOLL_RETURN_IF_ERROR(WithoutExceptions(name, [&] { return source->LearnSchema(); }));
  return source;
}

}  // namespace atl::dataset
