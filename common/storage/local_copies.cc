#include "common/storage/local_copies.h"

#include <stdlib.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "common/storage/local_files.h"
#include "fmt/format.h"

namespace atl::storage {

LocalCopies::~LocalCopies() {
  absl::MutexLock lock(&mutex_);
  std::error_code error;
  if (!folder_.empty()) std::filesystem::remove_all(folder_, error);
}

std::optional<std::string> LocalCopies::Find(std::string_view key, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  const auto found = copies_.find(key);
  if (found == copies_.end()) return std::nullopt;
  // Systems clean their temporary folders of what was not touched for days.
  std::error_code error;
  if (!std::filesystem::exists(found->second.path, error)) {
    bytes_ -= found->second.bytes;
    copies_.erase(found);
    return std::nullopt;
  }
  found->second.asked = now;
  return found->second.path;
}

void LocalCopies::Forget(std::string_view key) {
  absl::MutexLock lock(&mutex_);
  const auto found = copies_.find(key);
  if (found == copies_.end()) return;
  std::error_code error;
  std::filesystem::remove(found->second.path, error);
  bytes_ -= found->second.bytes;
  copies_.erase(found);
}

absl::StatusOr<std::string> LocalCopies::NewPath() {
  absl::MutexLock lock(&mutex_);
  std::error_code error;
  if (folder_.empty() || !std::filesystem::is_directory(folder_, error)) {
    std::string folder = std::filesystem::temp_directory_path() / "atoll-cache-XXXXXX";
    if (mkdtemp(folder.data()) == nullptr) return FromErrno(errno, "cannot create the cache folder " + folder);
    folder_ = folder;
  }
  return fmt::format("{}/{}", folder_, RandomSuffix());
}

std::string LocalCopies::Keep(std::string_view key, std::string path, int64_t bytes, absl::Time now) {
  absl::MutexLock lock(&mutex_);
  // The second of two copies is kept under its own path, so that it is removed in its time too.
  if (copies_.contains(key)) key = path;
  copies_.emplace(key, Copy{path, bytes, now});
  bytes_ += bytes;
  Shrink(now);
  return path;
}

int64_t LocalCopies::bytes() const {
  absl::MutexLock lock(&mutex_);
  return bytes_;
}

void LocalCopies::Shrink(absl::Time now) {
  while (bytes_ > limit_bytes_ && !copies_.empty()) {
    const auto oldest = std::min_element(copies_.begin(), copies_.end(),
                                         [](const auto& a, const auto& b) { return a.second.asked < b.second.asked; });
    if (now - oldest->second.asked < kGrace) return;
    std::error_code error;
    std::filesystem::remove(oldest->second.path, error);
    bytes_ -= oldest->second.bytes;
    copies_.erase(oldest);
  }
}

}  // namespace atl::storage
