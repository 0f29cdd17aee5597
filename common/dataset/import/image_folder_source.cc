#include <algorithm>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/ascii.h"
#include "common/base/errors.h"
#include "common/base/files.h"
#include "common/base/status_macros.h"
#include "common/dataset/image_codec.h"
#include "common/dataset/import/import_source.h"
#include "fmt/format.h"

namespace atl::dataset {
namespace {

namespace fs = std::filesystem;

// Files that file managers leave behind are not images.
bool IsClutter(const fs::path& path) {
  const std::string name = path.filename();
  return name.starts_with('.') || name == "Thumbs.db" || name == "desktop.ini";
}

bool HasImageSuffix(const std::string& path) {
  const std::string suffix = absl::AsciiStrToLower(fs::path(path).extension().string());
  return suffix == ".png" || suffix == ".jpg" || suffix == ".jpeg" || suffix == ".webp";
}

struct ImageFile {
  std::string path;  // relative to the folder
  int64_t label = -1;
};

class ImageFolderSource : public Source {
 public:
  explicit ImageFolderSource(std::string folder) : folder_(std::move(folder)) {}

  absl::Status ListFiles() {
    std::error_code error;
    for (fs::directory_iterator entry(folder_, error), end; !error && entry != end; entry.increment(error)) {
      if (IsClutter(entry->path())) continue;
      if (entry->is_directory()) {
        classes_.push_back(entry->path().filename());
      } else {
        files_.push_back({.path = entry->path().filename()});
      }
    }
    if (error) return Unreadable(error);
    std::sort(classes_.begin(), classes_.end());
    if (classes_.empty()) {
      return MakeError(absl::StatusCode::kInvalidArgument, "SOURCE_EMPTY",
                       fmt::format("{}: expected folders of images, one for each class, found none", folder_));
    }
    for (size_t label = 0; label < classes_.size(); ++label) {
      const fs::path folder = fs::path(folder_) / classes_[label];
      for (fs::recursive_directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
        if (IsClutter(entry->path()) || entry->is_directory()) continue;
        files_.push_back({.path = fs::relative(entry->path(), folder_), .label = static_cast<int64_t>(label)});
      }
      if (error) return Unreadable(error);
    }
    std::sort(files_.begin(), files_.end(), [](const ImageFile& a, const ImageFile& b) { return a.path < b.path; });
    return absl::OkStatus();
  }

  absl::StatusOr<bool> Next(SourceRow* row) override {
    if (next_ == files_.size()) return false;
    const ImageFile& file = files_[next_++];
    row->path = file.path;
    row->where = fmt::format("{}/{}", folder_, file.path);
    row->label = file.label;
    if (file.label < 0) {
      row->problem = "expected a file in a class folder, found it beside them";
    } else if (!HasImageSuffix(file.path)) {
      row->problem = "expected .png, .jpg, .jpeg or .webp, found another suffix";
    } else {
      auto bytes = ReadFile(row->where, kMaxImageBytes);
      if (bytes.ok()) {
        row->encoded = *std::move(bytes);
      } else {
        row->problem = std::string(bytes.status().message());
      }
    }
    return true;
  }

  std::vector<std::string> classes() const override { return classes_; }

 private:
  absl::Status Unreadable(const std::error_code& error) const {
    return MakeError(absl::StatusCode::kNotFound, "SOURCE_NOT_FOUND",
                     fmt::format("{}: cannot list: {}", folder_, error.message()));
  }

  const std::string folder_;
  std::vector<std::string> classes_;
  std::vector<ImageFile> files_;
  size_t next_ = 0;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Source>> MakeImageFolderSource(const std::string& folder) {
  auto source = std::make_unique<ImageFolderSource>(folder);
  try {
    ATOLL_RETURN_IF_ERROR(source->ListFiles());
  } catch (const fs::filesystem_error& error) {
    return MakeError(absl::StatusCode::kNotFound, "SOURCE_NOT_FOUND", fmt::format("{}: {}", folder, error.what()));
  }
  return source;
}

}  // namespace atl::dataset
