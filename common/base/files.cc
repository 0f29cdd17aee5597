#include "common/base/files.h"

#include <pwd.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "absl/status/status.h"
#include "common/base/errors.h"
#include "fmt/format.h"

namespace atl {
namespace {

std::string UserName(uid_t id) {
  passwd user{};
  passwd* found = nullptr;
  char buffer[4096];
  if (getpwuid_r(id, &user, buffer, sizeof(buffer), &found) != 0 || found == nullptr) return fmt::format("uid {}", id);
  return fmt::format("{} (uid {})", user.pw_name, id);
}

// Returns ": owned by root (uid 0), mode 0600; this process runs as atoll (uid 1000)".
std::string Rights(const std::string& path) {
  struct stat info {};
  const std::string file = stat(path.c_str(), &info) == 0
                               ? fmt::format("owned by {}, mode {:04o}; ", UserName(info.st_uid), info.st_mode & 07777)
                               : "";
  return fmt::format(": {}this process runs as {}", file, UserName(geteuid()));
}

absl::Status FileError(int error, std::string_view what, const std::string& path) {
  const std::string message =
      fmt::format("cannot {} {}: {}{}", what, path, std::strerror(error), error == EACCES ? Rights(path) : "");
  if (error == ENOSPC || error == EDQUOT) return MakeError(absl::ErrnoToStatusCode(error), "DISK_FULL", message);
  if (error == ENOENT) return MakeError(absl::StatusCode::kNotFound, "FILE_NOT_FOUND", message);
  return MakeError(absl::ErrnoToStatusCode(error), "FILE_ERROR", message);
}

// A device, a pipe or a link, as /dev/stdout, belongs to others as well: a file in its place would be no use to them.
bool MustStay(const std::string& path) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::symlink_status(path, error);
  return std::filesystem::exists(status) && !std::filesystem::is_regular_file(status) &&
         !std::filesystem::is_directory(status);
}

// `shown`: what errors name.
absl::Status WriteBytes(const std::string& path, std::string_view bytes, const std::string& shown) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  return file ? absl::OkStatus() : FileError(errno, "write", shown);
}

}  // namespace

absl::StatusOr<std::string> ReadFile(const std::string& path, int64_t limit) {
  std::ifstream file;
  if (path != "-") {
    std::error_code ignored;
    if (std::filesystem::is_directory(path, ignored)) return FileError(EISDIR, "read", path);
    file.open(path, std::ios::binary);
    if (!file) return FileError(errno, "read", path);
  }
  std::istream& stream = path == "-" ? std::cin : file;
  std::string bytes;
  char buffer[1 << 16];
  while (stream.read(buffer, sizeof(buffer)) || stream.gcount() > 0) {
    bytes.append(buffer, static_cast<size_t>(stream.gcount()));
    if (static_cast<int64_t>(bytes.size()) > limit) {
      return MakeError(absl::StatusCode::kResourceExhausted, "FILE_TOO_LARGE",
                       fmt::format("{}: expected at most {} bytes, found more", path, limit));
    }
  }
  if (stream.bad()) return FileError(errno, "read", path);
  return bytes;
}

absl::Status MakeFolders(const std::string& path) {
  std::error_code error;
  std::filesystem::create_directories(path, error);
  return error ? FileError(error.value(), "make the folder", path) : absl::OkStatus();
}

absl::Status WriteFile(const std::string& path, std::string_view bytes) {
  const std::filesystem::path folder = std::filesystem::path(path).parent_path();
  if (!folder.empty()) {
    if (absl::Status status = MakeFolders(folder.string()); !status.ok()) return status;
  }
  if (MustStay(path)) return WriteBytes(path, bytes, path);
  const std::string part = fmt::format("{}.{}.part", path, getpid());
  absl::Status status = WriteBytes(part, bytes, path);
  if (status.ok() && rename(part.c_str(), path.c_str()) != 0) status = FileError(errno, "write", path);
  if (!status.ok()) unlink(part.c_str());
  return status;
}

}  // namespace atl
