// Names of formats, and the files that a path stands for.

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "arrow/io/file.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/dataset/import/import_source.h"
#include "common/storage/arrow_status.h"
#include "fmt/format.h"

namespace atl::dataset {
namespace {

namespace fs = std::filesystem;

constexpr std::pair<SourceFormat, const char*> kFormats[] = {{SourceFormat::kIdx, "idx"},
                                                             {SourceFormat::kImageFolder, "imagefolder"},
                                                             {SourceFormat::kWebDataset, "webdataset"},
                                                             {SourceFormat::kParquet, "parquet"}};

absl::Status BadOptions(const std::string& message) {
  return MakeError(absl::StatusCode::kInvalidArgument, "IMPORT_OPTIONS", message);
}

bool IsTar(const std::string& path) {
  return path.ends_with(".tar") || path.ends_with(".tar.gz") || path.ends_with(".tgz");
}

// A folder stands for its files with this suffix, sorted; a file for itself.
template <typename F>
absl::StatusOr<std::vector<std::string>> FilesOf(const std::vector<std::string>& paths, F fits, const char* suffix) {
  std::vector<std::string> files;
  for (const std::string& path : paths) {
    std::error_code error;
    if (!fs::is_directory(path, error)) {
      files.push_back(path);
      continue;
    }
    const size_t first = files.size();
    for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
      if (fits(entry->path().string())) files.push_back(entry->path());
    }
    if (error || files.size() == first) {
      return MakeError(absl::StatusCode::kInvalidArgument, "SOURCE_EMPTY",
                       fmt::format("{}: expected files that end in {}, found none", path, suffix));
    }
    std::sort(files.begin() + static_cast<int64_t>(first), files.end());
  }
  return files;
}

absl::StatusOr<std::unique_ptr<Source>> OpenIdx(const ImportOptions& options) {
  const std::string& images_path = options.paths.front();
  std::string labels_path = options.labels_path;
  if (labels_path.empty()) {
    constexpr std::string_view kImages = "images-idx3";
    labels_path = images_path;
    const size_t at = labels_path.rfind(kImages);
    if (at == std::string::npos) {
      return BadOptions(fmt::format("{}: expected 'images-idx3' in its name, or the labels file named", images_path));
    }
    labels_path.replace(at, kImages.size(), "labels-idx1");
  }
  ATOLL_ASSIGN_OR_RETURN(auto images, OpenInputFile(images_path));
  ATOLL_ASSIGN_OR_RETURN(auto labels, OpenInputFile(labels_path));
  return MakeIdxSource(std::move(images), images_path, std::move(labels), labels_path);
}

absl::StatusOr<std::unique_ptr<Source>> OpenParquet(const ImportOptions& options) {
  ATOLL_ASSIGN_OR_RETURN(
      const std::vector<std::string> paths,
      FilesOf(
          options.paths, [](const std::string& path) { return path.ends_with(".parquet"); }, ".parquet"));
  std::vector<ParquetFile> files;
  for (const std::string& path : paths) {
    ATOLL_ASSIGN_OR_RETURN_ARROW(auto file, arrow::io::ReadableFile::Open(path), path);
    files.push_back({path, std::move(file)});
  }
  return MakeParquetSource(std::move(files), {options.image_column, options.label_column, options.columns});
}

}  // namespace

std::string ToString(SourceFormat format) {
  for (const auto& [value, name] : kFormats) {
    if (value == format) return name;
  }
  return "unknown";
}

absl::StatusOr<SourceFormat> ParseSourceFormat(std::string_view name) {
  std::string names;
  for (const auto& [value, known] : kFormats) {
    if (name == known) return value;
    names += (names.empty() ? "" : ", ") + std::string(known);
  }
  return BadOptions(fmt::format("format '{}': expected one of {}", name, names));
}

absl::StatusOr<SourceFormat> DetectSourceFormat(const std::string& path) {
  std::error_code error;
  if (!fs::exists(path, error)) {
    return MakeError(absl::StatusCode::kNotFound, "SOURCE_NOT_FOUND", fmt::format("{}: no such file or folder", path));
  }
  if (fs::is_directory(path, error)) {
    for (fs::directory_iterator entry(path, error), end; !error && entry != end; entry.increment(error)) {
      const std::string name = entry->path().filename();
      if (IsTar(name)) return SourceFormat::kWebDataset;
      if (name.ends_with(".parquet")) return SourceFormat::kParquet;
    }
    return SourceFormat::kImageFolder;
  }
  const std::string name = fs::path(path).filename();
  if (IsTar(name)) return SourceFormat::kWebDataset;
  if (name.ends_with(".parquet")) return SourceFormat::kParquet;
  if (name.find("-idx3") != std::string::npos) return SourceFormat::kIdx;
  return BadOptions(fmt::format("{}: cannot tell the format by the name; name it", path));
}

absl::StatusOr<std::unique_ptr<Source>> OpenSource(const ImportOptions& options) {
  const bool one = options.format != SourceFormat::kWebDataset && options.format != SourceFormat::kParquet;
  if (options.paths.empty() || (one && options.paths.size() != 1)) {
    return BadOptions(fmt::format("paths: expected {} for {}, found {}", one ? "one" : "one or more",
                                  ToString(options.format), options.paths.size()));
  }
  if (options.format != SourceFormat::kParquet && !options.columns.empty()) {
    return BadOptions(
        fmt::format("columns: expected none for {}, found {}", ToString(options.format), options.columns.size()));
  }
  switch (options.format) {
    case SourceFormat::kIdx:
      return OpenIdx(options);
    case SourceFormat::kImageFolder:
      return MakeImageFolderSource(options.paths.front());
    case SourceFormat::kWebDataset: {
      ATOLL_ASSIGN_OR_RETURN(auto files, FilesOf(options.paths, IsTar, ".tar, .tar.gz or .tgz"));
      return MakeWebDatasetSource(std::move(files), OpenInputFile);
    }
    case SourceFormat::kParquet:
      return OpenParquet(options);
  }
  return BadOptions("format: unknown");
}

}  // namespace atl::dataset
