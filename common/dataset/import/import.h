// Imports files of common formats into a dataset: Parquet shards, then the manifest, which makes it exist.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/dataset/dataset.h"
#include "common/storage/blob_store.h"

namespace atl::dataset {

enum class SourceFormat : uint8_t {
  kIdx,          // an images file and its labels file, plain or gzip
  kImageFolder,  // a folder with one folder of images per class
  kWebDataset,   // tar shards, or a folder of them: image and .cls, .txt or .json beside each other
  kParquet,      // Hugging Face style: struct column {bytes, path} and a label column; files, or a folder of them
};

// "idx", "imagefolder", "webdataset", "parquet".
std::string ToString(SourceFormat format);
// INVALID_ARGUMENT lists the names.
absl::StatusOr<SourceFormat> ParseSourceFormat(std::string_view name);
// Detects the format by the names of the file or of the folder's entries. INVALID_ARGUMENT if they do not show it.
absl::StatusOr<SourceFormat> DetectSourceFormat(const std::string& path);

enum class ChannelChoice : uint8_t {
  kAuto,  // as the first image; grey images are widened, a colour image among grey ones is a bad row
  kGrey,
  kColour,
};

inline constexpr int64_t kMaxClasses = 65536;

struct ImportOptions {
  std::string name;
  SourceFormat format = SourceFormat::kImageFolder;
  std::vector<std::string> paths;  // local files or folders
  // kIdx: the labels file; empty: the images file's name with "labels-idx1" for "images-idx3".
  std::string labels_path;
  // kParquet; empty: the first column that holds images, and "label".
  std::string image_column;
  std::string label_column;
  // kParquet: numeric or list-of-number columns to keep.
  std::vector<std::string> columns;
  // 0: images keep their size, and an image of another size than the first is a bad row. Otherwise each is cropped to
  // its centred square and scaled to size x size.
  int32_t size = 0;
  ChannelChoice channels = ChannelChoice::kAuto;
  // Share of samples, chosen by hash, that are never trained on.
  double held_out_fraction = 0.1;
  int64_t shard_rows = 8192;
  // Most bad rows that are skipped (and named in the manifest) before the import fails; -1: the larger of 10 and 0.1 %
  // of all rows.
  int64_t bad_row_limit = -1;
  // Called now and then with the rows written and the rows skipped so far.
  std::function<void(int64_t rows, int64_t skipped)> progress;
};

// Blocks until the dataset is complete or fully removed. Every error names file, row or offset, expected and found.
// ALREADY_EXISTS (DATASET_EXISTS) for a name that is taken; INVALID_ARGUMENT for options, and for an invalid source
// (SOURCE_MALFORMED, SOURCE_EMPTY, TOO_MANY_BAD_ROWS); NOT_FOUND (SOURCE_NOT_FOUND).
absl::StatusOr<DatasetManifest> ImportDataset(storage::BlobStore* store, const ImportOptions& options);

}  // namespace atl::dataset
