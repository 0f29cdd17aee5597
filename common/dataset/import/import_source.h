// The interface between importers and import.cc: a source yields rows, and import.cc turns them into samples.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/dataset/dataset.h"
#include "common/dataset/import/import.h"
#include "common/dataset/import/input_stream.h"

namespace arrow::io {
class RandomAccessFile;
}

namespace atl::dataset {

struct SourceRow {
  std::string where;  // file and row, for people
  std::string path;   // short name of the image
  // If not empty, the row is broken for this reason, and the other fields are ignored.
  std::string problem;
  // Either an encoded image or a decoded one.
  std::string encoded;
  std::optional<Image> image;
  int64_t label = -1;
  std::vector<std::vector<float>> columns;
};

// Not thread-safe.
class Source {
 public:
  virtual ~Source() = default;
  // Returns false at the end. An error means that the rest of the source cannot be read.
  virtual absl::StatusOr<bool> Next(SourceRow* row) = 0;
  // Returns names by label; empty: labels are numbers, which are their own names.
  virtual std::vector<std::string> classes() const { return {}; }
};

// A label as it stands in the source.
struct LabelText {
  bool is_number = false;
  int64_t number = 0;
  std::string text;
};
LabelText ParseLabel(std::string_view text);

// Labels of one source: all numbers, or all names, numbered in sorted order.
class LabelMap {
 public:
  // Maps numbers to themselves.
  LabelMap() = default;
  // RESOURCE_EXHAUSTED above kMaxClasses names.
  static absl::StatusOr<LabelMap> OfNames(std::vector<std::string> names, std::string_view file);

  const std::vector<std::string>& names() const { return names_; }
  // Returns false with the reason in `problem`.
  bool Resolve(const LabelText& label, int64_t* number, std::string* problem) const;

 private:
  bool named_ = false;
  std::vector<std::string> names_;
  std::map<std::string, int64_t> numbers_;
};

absl::StatusOr<std::unique_ptr<Source>> MakeIdxSource(std::unique_ptr<InputStream> images, std::string images_file,
                                                      std::unique_ptr<InputStream> labels, std::string labels_file);
absl::StatusOr<std::unique_ptr<Source>> MakeImageFolderSource(const std::string& folder);
absl::StatusOr<std::unique_ptr<Source>> MakeWebDatasetSource(std::vector<std::string> files, InputOpener opener);

struct ParquetFile {
  std::string name;
  std::shared_ptr<arrow::io::RandomAccessFile> file;
};
struct ParquetColumns {
  std::string image;  // empty: the first that holds images
  std::string label;  // empty: "label"
  std::vector<std::string> extra;
};
absl::StatusOr<std::unique_ptr<Source>> MakeParquetSource(std::vector<ParquetFile> files, ParquetColumns columns);

// Opens the source that the options name, over local files.
absl::StatusOr<std::unique_ptr<Source>> OpenSource(const ImportOptions& options);

}  // namespace atl::dataset
