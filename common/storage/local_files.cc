#include "common/storage/local_files.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <random>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/time/clock.h"
#include "common/base/errors.h"
#include "common/base/failpoint.h"
#include "common/base/handles.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"

namespace atl::storage {
namespace {

std::string ParentOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  if (slash == std::string::npos) return ".";
  return slash == 0 ? "/" : path.substr(0, slash);
}

}  // namespace

absl::Status FromErrno(int error, std::string_view what) {
  const std::string message = fmt::format("{}: {}", what, std::generic_category().message(error));
  switch (error) {
    case ENOENT:
    case ENOTDIR:
      return MakeError(absl::StatusCode::kNotFound, "BLOB_NOT_FOUND", message);
    case EEXIST:
      return MakeError(absl::StatusCode::kAlreadyExists, "BLOB_EXISTS", message);
    case ENOSPC:
    case EDQUOT:
      return MakeError(absl::StatusCode::kResourceExhausted, "DISK_FULL", message);
    case EACCES:
    case EPERM:
    case EROFS:
      return MakeError(absl::StatusCode::kPermissionDenied, "STORE_ACCESS_DENIED", message);
    case EISDIR:
      return MakeError(absl::StatusCode::kFailedPrecondition, "BLOB_IS_FOLDER", message);
    default:
      return MakeError(absl::StatusCode::kUnavailable, "STORE_UNAVAILABLE", message);
  }
}

absl::Status SyncFolder(const std::string& folder) {
  const Descriptor descriptor(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (descriptor.get() < 0) return FromErrno(errno, fmt::format("cannot open folder {}", folder));
  if (fsync(descriptor.get()) == 0) return absl::OkStatus();
  return FromErrno(errno, fmt::format("cannot sync folder {}", folder));
}

absl::Status CreateFolders(const std::string& folder) {
  std::vector<std::string> missing;
  for (std::string path = folder; access(path.c_str(), F_OK) != 0 && path != "/" && path != ".";
       path = ParentOf(path)) {
    missing.push_back(path);
  }
  while (!missing.empty()) {
    const std::string path = std::move(missing.back());
    missing.pop_back();
    if (mkdir(path.c_str(), 0777) != 0 && errno != EEXIST) {
      return FromErrno(errno, fmt::format("cannot create folder {}", path));
    }
    ATOLL_RETURN_IF_ERROR(SyncFolder(ParentOf(path)));
  }
  return absl::OkStatus();
}

absl::Status DeleteLocalFile(const std::string& path) {
  if (unlink(path.c_str()) != 0) {
    if (errno == ENOENT || errno == ENOTDIR) return absl::OkStatus();
    return FromErrno(errno, fmt::format("cannot delete {}", path));
  }
  return SyncFolder(ParentOf(path));
}

void RemoveStaleParts(const std::string& parts_folder, absl::Time before) {
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator(parts_folder, error)) {
    struct stat info;
    if (stat(entry.path().c_str(), &info) == 0 && absl::TimeFromTimespec(info.st_mtim) < before) {
      unlink(entry.path().c_str());
    }
  }
}

std::string RandomSuffix() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}", device(), device());
}

absl::StatusOr<std::unique_ptr<LocalWriter>> LocalWriter::Create(std::string uri, std::string path,
                                                                 const std::string& parts_folder, bool once) {
  ATOLL_RETURN_IF_ERROR(CreateFolders(parts_folder));
  std::string part = fmt::format("{}/{}", parts_folder, RandomSuffix());
  const int descriptor = open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
  if (descriptor < 0) return FromErrno(errno, fmt::format("cannot create {} for {}", part, uri));
  return std::unique_ptr<LocalWriter>(
      new LocalWriter(std::move(uri), std::move(path), std::move(part), descriptor, once));
}

LocalWriter::LocalWriter(std::string uri, std::string path, std::string part, int descriptor, bool once)
    : uri_(std::move(uri)), path_(std::move(path)), part_(std::move(part)), descriptor_(descriptor), once_(once) {}

LocalWriter::~LocalWriter() {
  if (descriptor_ < 0) return;
  close(descriptor_);
  unlink(part_.c_str());
}

absl::Status LocalWriter::Append(std::string_view bytes) {
  hasher_.Update(bytes);
  bytes_ += static_cast<int64_t>(bytes.size());
  while (!bytes.empty()) {
    const ssize_t wrote = write(descriptor_, bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote < 0) return FromErrno(errno, fmt::format("cannot write {}", uri_));
    bytes.remove_prefix(static_cast<size_t>(wrote));
  }
  return absl::OkStatus();
}

absl::StatusOr<WrittenFile> LocalWriter::Finish() {
  absl::Status status = absl::OkStatus();
  if (fsync(descriptor_) != 0) status = FromErrno(errno, fmt::format("cannot sync {}", uri_));
  if (close(descriptor_) != 0 && status.ok()) status = FromErrno(errno, fmt::format("cannot close {}", uri_));
  descriptor_ = -1;
  if (status.ok()) status = MoveIntoPlace();
  if (!status.ok()) {
    unlink(part_.c_str());
    return status;
  }
  return WrittenFile{uri_, bytes_, hasher_.FinishHex()};
}

absl::Status LocalWriter::MoveIntoPlace() {
  ATOLL_RETURN_IF_ERROR(Failpoint("local.before_rename"));
  ATOLL_RETURN_IF_ERROR(CreateFolders(ParentOf(path_)));
  if (once_) {
    // link refuses an existing name, which rename does not.
    if (link(part_.c_str(), path_.c_str()) != 0) return FromErrno(errno, fmt::format("cannot create {}", uri_));
    unlink(part_.c_str());
  } else if (rename(part_.c_str(), path_.c_str()) != 0) {
    return FromErrno(errno, fmt::format("cannot write {}", uri_));
  }
  ATOLL_RETURN_IF_ERROR(Failpoint("local.after_rename"));
  return SyncFolder(ParentOf(path_));
}

}  // namespace atl::storage
