#include "common/storage/blob_store.h"

#include <stdlib.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <system_error>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/time/clock.h"
#include "arrow/buffer.h"
#include "arrow/filesystem/filesystem.h"
#include "arrow/filesystem/localfs.h"
#include "arrow/filesystem/s3fs.h"
#include "arrow/io/file.h"
#include "arrow/io/interfaces.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/storage/arrow_status.h"
#include "common/storage/conditional_put.h"
#include "common/storage/local_files.h"
#include "common/storage/remote_files.h"
#include "fmt/format.h"

namespace atl::storage {
namespace {

constexpr int64_t kPieceBytes = int64_t{8} << 20;
constexpr absl::Duration kStalePartAge = absl::Hours(24);

// Below the root of an object store, never listed: on which conditional writes are tried.
constexpr char kOwnFolder[] = ".atoll";
constexpr char kProbeFile[] = ".atoll/probe";

absl::Status ExistsAlready(std::string_view uri) {
  return MakeError(absl::StatusCode::kAlreadyExists, "BLOB_EXISTS", fmt::format("{} exists already", uri));
}

absl::Status Outside(std::string_view uri, std::string_view root, std::string_view why) {
  return MakeError(absl::StatusCode::kInvalidArgument, "BLOB_OUTSIDE_ROOT",
                   fmt::format("'{}': expected a file below {}, found {}", uri, root, why));
}

std::string CopyKey(std::string_view uri, std::string_view sha256) {
  return fmt::format("{} {}", sha256, uri);
}

absl::Status HashMismatch(std::string_view uri, std::string_view expected, std::string_view found) {
  return MakeError(absl::StatusCode::kDataLoss, "HASH_MISMATCH",
                   fmt::format("{}: expected SHA-256 {}, found {}", uri, expected, found));
}

}  // namespace

absl::StatusOr<std::unique_ptr<BlobStore>> BlobStore::Open(std::string_view root_uri, const RemoteOptions& options) {
  const std::string_view scheme = root_uri.substr(0, root_uri.find("://"));
  if (scheme == "file") {
    const std::string path(WithoutTrailingSlashes(root_uri.substr(7)));
    if (!path.starts_with('/') || path == "/") {
      return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_STORE_URI",
                       fmt::format("'{}': expected file:// and an absolute folder", root_uri));
    }
    ATOLL_RETURN_IF_ERROR(CreateFolders(path));
    if (!std::filesystem::is_directory(path)) {
      return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_STORE_URI",
                       fmt::format("'{}': expected a folder, found a file", root_uri));
    }
    RemoveStaleParts(path + "/" + kPartsFolder, absl::Now() - kStalePartAge);
    return std::unique_ptr<BlobStore>(
        new BlobStore("file://" + path, path, std::make_shared<arrow::fs::LocalFileSystem>(), /*local=*/true, options));
  }
  if ((scheme != "s3" && scheme != "gs") || scheme.size() + 3 >= root_uri.size()) {
    return MakeError(
        absl::StatusCode::kInvalidArgument, "INVALID_STORE_URI",
        fmt::format("'{}': expected file:///folder, s3://bucket/prefix or gs://bucket/prefix", PublicUri(root_uri)));
  }
  std::string path;
  ATOLL_ASSIGN_OR_RETURN(auto filesystem, OpenRemote(std::string(root_uri), options, &path));
  const std::string public_uri = PublicUri(root_uri);
  ATOLL_ASSIGN_OR_RETURN_ARROW(const auto reached, filesystem->GetFileInfo(path), "cannot open " + public_uri);
  if (reached.type() == arrow::fs::FileType::NotFound) {
    // Keys that are good for the prefix alone may not ask after the bucket.
    const auto bucket = filesystem->GetFileInfo(path.substr(0, path.find('/')));
    if (bucket.ok() && bucket->type() == arrow::fs::FileType::NotFound) {
      return MakeError(absl::StatusCode::kNotFound, "BUCKET_NOT_FOUND",
                       fmt::format("cannot open {}: the bucket is not there", public_uri));
    }
  }
  std::unique_ptr<BlobStore> store(new BlobStore(public_uri, path, std::move(filesystem), /*local=*/false, options));
  if (scheme == "s3") store->s3_uri_ = root_uri;
  return store;
}

absl::StatusOr<std::unique_ptr<BlobStore>> BlobStore::OpenForGrants(std::string_view root_uri,
                                                                    const RemoteOptions& options) {
  if (!root_uri.starts_with("s3://")) {
    return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_STORE_URI",
                     fmt::format("'{}': expected s3://bucket/prefix, where keys can be granted", PublicUri(root_uri)));
  }
  // Opened only to check the options and to split the path off.
  std::string path;
  ATOLL_RETURN_IF_ERROR(OpenRemote(std::string(root_uri), options, &path).status());
  std::unique_ptr<BlobStore> store(
      new BlobStore(PublicUri(root_uri), path, /*filesystem=*/nullptr, /*local=*/false, options));
  store->s3_uri_ = root_uri;
  return store;
}

BlobStore::BlobStore(std::string root_uri, const std::string& root_path,
                     std::shared_ptr<arrow::fs::FileSystem> filesystem, bool local, const RemoteOptions& options)
    : root_uri_(std::move(root_uri)),
      root_path_(WithoutTrailingSlashes(root_path)),
      local_(local),
      options_(options),
      opened_(AccessOver(std::move(filesystem), options)),
      copies_(options.local_copies_bytes) {}

BlobStore::~BlobStore() = default;

std::shared_ptr<const BlobStore::Access> BlobStore::AccessOver(std::shared_ptr<arrow::fs::FileSystem> filesystem,
                                                               const RemoteOptions& options) {
  if (filesystem == nullptr) return nullptr;
  auto access = std::make_shared<Access>();
  access->conditional_put = ConditionalPut::Over(filesystem, options);
  access->filesystem = std::move(filesystem);
  return access;
}

absl::Status BlobStore::UseKeys(const std::optional<GrantedKeys>& keys) {
  if (keys.has_value() && s3_uri_.empty()) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "GRANTS_UNSUPPORTED",
                     fmt::format("{}: keys were granted, expected s3://, where they can be used", root_uri_));
  }
  absl::MutexLock lock(&keys_mutex_);
  if (keys == keys_) return absl::OkStatus();
  keys_ = keys;
  granted_ = nullptr;
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<const BlobStore::Access>> BlobStore::Reach() {
  GrantedKeys keys;
  {
    absl::MutexLock lock(&keys_mutex_);
    if (!keys_.has_value()) {
      if (opened_ != nullptr) return opened_;
      return MakeError(absl::StatusCode::kFailedPrecondition, "STORAGE_NOT_GRANTED",
                       fmt::format("{}: it is used with granted keys alone, and there are none", root_uri_));
    }
    if (keys_->expires <= absl::Now()) {
      return MakeError(absl::StatusCode::kUnavailable, "STORAGE_GRANT_EXPIRED",
                       fmt::format("{}: the granted keys expired at {} and were not renewed", root_uri_,
                                   absl::FormatTime(absl::RFC3339_sec, keys_->expires, absl::UTCTimeZone())));
    }
    if (granted_ != nullptr) return granted_;
    keys = *keys_;
  }
  // Without the lock: it may ask the network for the bucket's region.
  std::string path;
  ATOLL_ASSIGN_OR_RETURN(auto filesystem, OpenRemote(s3_uri_, options_, &path, &keys));
  std::shared_ptr<const Access> access = AccessOver(std::move(filesystem), options_);
  absl::MutexLock lock(&keys_mutex_);
  if (keys_ == keys) granted_ = access;
  return access;
}

std::string BlobStore::UriOf(std::string_view path) const {
  return fmt::format("{}/{}", root_uri_, path);
}

absl::StatusOr<std::string> BlobStore::PathOf(std::string_view uri) const {
  uri = WithoutTrailingSlashes(uri);
  if (!uri.starts_with(root_uri_)) return Outside(uri, root_uri_, "another root");
  std::string_view rest = uri.substr(root_uri_.size());
  if (rest.empty()) return root_path_;
  if (rest.front() != '/') return Outside(uri, root_uri_, "another root");
  if (rest.find('\0') != std::string_view::npos) return Outside(uri, root_uri_, "a zero byte");
  for (size_t start = 1; start <= rest.size();) {
    const size_t end = std::min(rest.find('/', start), rest.size());
    const std::string_view part = rest.substr(start, end - start);
    if (part.empty() || part == "." || part == "..") {
      return Outside(uri, root_uri_, fmt::format("the path segment '{}'", part));
    }
    start = end + 1;
  }
  return root_path_ + std::string(rest);
}

absl::StatusOr<std::string> BlobStore::FilePathOf(std::string_view uri) const {
  ATOLL_ASSIGN_OR_RETURN(std::string path, PathOf(uri));
  if (path == root_path_) return Outside(uri, root_uri_, "the root itself");
  return path;
}

absl::StatusOr<std::unique_ptr<BlobWriter>> BlobStore::OpenWriter(std::string_view uri) {
  ATOLL_ASSIGN_OR_RETURN(std::string path, FilePathOf(uri));
  if (local_) {
    ATOLL_ASSIGN_OR_RETURN(auto writer,
                           LocalWriter::Create(std::string(uri), path, root_path_ + "/" + kPartsFolder, false));
    return writer;
  }
  const std::string what = fmt::format("cannot write {}", uri);
  ATOLL_ASSIGN_OR_RETURN(const auto access, Reach());
  ATOLL_ASSIGN_OR_RETURN_ARROW(auto stream, access->filesystem->OpenOutputStream(path), what);
  return std::make_unique<RemoteWriter>(std::string(uri), path, access->filesystem, std::move(stream));
}

absl::StatusOr<WrittenFile> BlobStore::Write(std::string_view uri, std::string_view bytes) {
  ATOLL_ASSIGN_OR_RETURN(const auto writer, OpenWriter(uri));
  ATOLL_RETURN_IF_ERROR(writer->Append(bytes));
  return writer->Finish();
}

absl::StatusOr<WrittenFile> BlobStore::CreateOnce(std::string_view uri, std::string_view bytes) {
  ATOLL_ASSIGN_OR_RETURN(const std::string path, FilePathOf(uri));
  if (!local_) {
    ATOLL_ASSIGN_OR_RETURN(const auto access, Reach());
    ATOLL_RETURN_IF_ERROR(CheckCreateOnce(*access));
    ATOLL_ASSIGN_OR_RETURN(const bool created,
                           access->conditional_put->PutIfAbsent(path, bytes, fmt::format("cannot write {}", uri)));
    if (!created) return ExistsAlready(uri);
    return WrittenFile{std::string(uri), static_cast<int64_t>(bytes.size()), Sha256(bytes)};
  }
  ATOLL_ASSIGN_OR_RETURN(const auto writer,
                         LocalWriter::Create(std::string(uri), path, root_path_ + "/" + kPartsFolder, true));
  ATOLL_RETURN_IF_ERROR(writer->Append(bytes));
  return writer->Finish();
}

absl::Status BlobStore::CheckCreateOnce(const Access& access) {
  // The coordinator that had keys granted has tried it, and they need not open the object of the trial.
  if (&access != opened_.get() || creates_once_) return absl::OkStatus();
  ATOLL_ASSIGN_OR_RETURN(const bool honoured,
                         access.conditional_put->Probe(fmt::format("{}/{}", root_path_, kProbeFile),
                                                       fmt::format("cannot write {}", UriOf(kProbeFile))));
  if (!honoured) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition, "CREATE_ONCE_UNSUPPORTED",
        fmt::format("{}: expected a server with conditional writes (PutObject with If-None-Match: *), found "
                    "one that writes all the same or refuses them",
                    root_uri_));
  }
  creates_once_ = true;
  return absl::OkStatus();
}

absl::StatusOr<std::string> BlobStore::Read(std::string_view uri, int64_t limit) {
  ATOLL_ASSIGN_OR_RETURN(const std::string path, FilePathOf(uri));
  const std::string what = fmt::format("cannot read {}", uri);
  ATOLL_ASSIGN_OR_RETURN(const auto access, Reach());
  ATOLL_ASSIGN_OR_RETURN_ARROW(const auto file, access->filesystem->OpenInputFile(path), what);
  ATOLL_ASSIGN_OR_RETURN_ARROW(const int64_t size, file->GetSize(), what);
  if (size > limit) {
    return MakeError(absl::StatusCode::kResourceExhausted, "BLOB_TOO_LARGE",
                     fmt::format("{}: expected at most {} bytes, found {}", uri, limit, size));
  }
  std::string bytes(static_cast<size_t>(size), '\0');
  ATOLL_RETURN_IF_ERROR(ReadRange(*file, 0, absl::MakeSpan(bytes), what));
  return bytes;
}

absl::StatusOr<std::string> BlobStore::ReadVerified(std::string_view uri, std::string_view sha256) {
  for (bool again = !local_;; again = false) {
    ATOLL_ASSIGN_OR_RETURN(std::string bytes, Read(uri, std::numeric_limits<int64_t>::max()));
    const std::string found = Sha256(bytes);
    if (found == sha256) return bytes;
    // A second transfer distinguishes a damaged file from a damaged transfer.
    if (!again) return HashMismatch(uri, sha256, found);
  }
}

absl::StatusOr<MappedFile> BlobStore::MapVerified(std::string_view uri, std::string_view sha256) {
  const std::string what = fmt::format("cannot read {}", uri);
  for (bool again = !local_;; again = false) {
    // A local file is hashed as it is mapped, so that what is checked is what is used.
    ATOLL_ASSIGN_OR_RETURN(const std::string path, LocalPath(uri, local_ ? "" : sha256));
    ATOLL_ASSIGN_OR_RETURN_ARROW(const auto file, arrow::io::MemoryMappedFile::Open(path, arrow::io::FileMode::READ),
                                 what);
    ATOLL_ASSIGN_OR_RETURN_ARROW(const int64_t size, file->GetSize(), what);
    ATOLL_ASSIGN_OR_RETURN_ARROW(std::shared_ptr<arrow::Buffer> buffer, file->ReadAt(0, size), what);
    const std::string_view bytes(reinterpret_cast<const char*>(buffer->data()), static_cast<size_t>(buffer->size()));
    const std::string found = Sha256(bytes);
    if (found == sha256) return MappedFile{.bytes = bytes, .mapping = std::move(buffer)};
    if (!again) return HashMismatch(uri, sha256, found);
    // Another copy distinguishes a damaged file from a damaged copy.
    copies_.Forget(CopyKey(uri, sha256));
  }
}

absl::StatusOr<std::string> BlobStore::LocalPath(std::string_view uri, std::string_view sha256) {
  ATOLL_ASSIGN_OR_RETURN(const std::string path, FilePathOf(uri));
  if (!local_) return Download(uri, sha256);
  ATOLL_ASSIGN_OR_RETURN(const bool exists, Exists(uri));
  if (!exists) return FromErrno(ENOENT, fmt::format("cannot read {}", uri));
  if (!sha256.empty()) {
    ATOLL_ASSIGN_OR_RETURN(const WrittenFile found, Hash(uri));
    if (found.sha256 != sha256) return HashMismatch(uri, sha256, found.sha256);
  }
  return path;
}

absl::Status BlobStore::ReadPieces(std::string_view uri, const std::function<absl::Status(std::string_view)>& take) {
  ATOLL_ASSIGN_OR_RETURN(const std::string path, FilePathOf(uri));
  const std::string what = fmt::format("cannot read {}", uri);
  ATOLL_ASSIGN_OR_RETURN(const auto access, Reach());
  ATOLL_ASSIGN_OR_RETURN_ARROW(const auto file, access->filesystem->OpenInputFile(path), what);
  ATOLL_ASSIGN_OR_RETURN_ARROW(const int64_t size, file->GetSize(), what);
  std::string piece;
  for (int64_t offset = 0; offset < size; offset += kPieceBytes) {
    piece.resize(static_cast<size_t>(std::min(kPieceBytes, size - offset)));
    ATOLL_RETURN_IF_ERROR(ReadRange(*file, offset, absl::MakeSpan(piece), what));
    ATOLL_RETURN_IF_ERROR(take(piece));
  }
  return absl::OkStatus();
}

absl::StatusOr<WrittenFile> BlobStore::Hash(std::string_view uri) {
  Sha256Hasher hasher;
  WrittenFile file{.uri = std::string(uri)};
  ATOLL_RETURN_IF_ERROR(ReadPieces(uri, [&](std::string_view piece) {
    hasher.Update(piece);
    file.bytes += static_cast<int64_t>(piece.size());
    return absl::OkStatus();
  }));
  file.sha256 = hasher.FinishHex();
  return file;
}

absl::StatusOr<std::string> BlobStore::Download(std::string_view uri, std::string_view sha256) {
  const std::string key = CopyKey(uri, sha256);
  if (!sha256.empty()) {
    if (auto copy = copies_.Find(key, absl::Now()); copy.has_value()) return *std::move(copy);
  }
  ATOLL_ASSIGN_OR_RETURN(std::string copy, copies_.NewPath());
  absl::Cleanup remove = [&copy] {
    std::error_code error;
    std::filesystem::remove(copy, error);
  };
  // A second transfer distinguishes a damaged file from a damaged transfer.
  for (bool again = true;; again = false) {
    std::ofstream file(copy, std::ios::binary | std::ios::trunc);
    Sha256Hasher hasher;
    int64_t bytes = 0;
    ATOLL_RETURN_IF_ERROR(ReadPieces(uri, [&](std::string_view piece) {
      hasher.Update(piece);
      bytes += static_cast<int64_t>(piece.size());
      file.write(piece.data(), static_cast<std::streamsize>(piece.size()));
      return file ? absl::OkStatus() : FromErrno(errno, fmt::format("cannot write the copy {} of {}", copy, uri));
    }));
    file.close();
    if (!file) return FromErrno(errno, fmt::format("cannot write the copy {} of {}", copy, uri));
    const std::string found = hasher.FinishHex();
    if (sha256.empty() || found == sha256) {
      std::move(remove).Cancel();
      return copies_.Keep(sha256.empty() ? copy : key, copy, bytes, absl::Now());
    }
    if (!again) return HashMismatch(uri, sha256, found);
  }
}

absl::StatusOr<std::vector<FileInfo>> BlobStore::List(std::string_view uri_prefix) {
  ATOLL_ASSIGN_OR_RETURN(const std::string path, PathOf(uri_prefix));
  const std::string what = fmt::format("cannot list {}", uri_prefix);
  ATOLL_ASSIGN_OR_RETURN(const auto access, Reach());
  ATOLL_ASSIGN_OR_RETURN_ARROW(const auto self, access->filesystem->GetFileInfo(path), what);
  std::vector<arrow::fs::FileInfo> entries;
  if (self.IsFile()) {
    entries.push_back(self);
  } else {
    arrow::fs::FileSelector selector;
    selector.base_dir = path;
    selector.recursive = true;
    selector.allow_not_found = true;
    ATOLL_ASSIGN_OR_RETURN_ARROW(entries, access->filesystem->GetFileInfo(selector), what);
  }
  const std::string parts = fmt::format("{}/{}/", root_path_, kPartsFolder);
  const std::string own = fmt::format("{}/{}/", root_path_, kOwnFolder);
  std::vector<FileInfo> files;
  for (const arrow::fs::FileInfo& entry : entries) {
    if (!entry.IsFile() || entry.path().starts_with(parts) || entry.path().starts_with(own)) continue;
    files.push_back({.uri = root_uri_ + entry.path().substr(root_path_.size()),
                     .bytes = entry.size(),
                     .modified = absl::FromUnixNanos(entry.mtime().time_since_epoch().count())});
  }
  std::sort(files.begin(), files.end(), [](const FileInfo& a, const FileInfo& b) { return a.uri < b.uri; });
  return files;
}

absl::StatusOr<bool> BlobStore::IsPlain(std::string_view uri) const {
  ATOLL_ASSIGN_OR_RETURN(const std::string path, FilePathOf(uri));
  for (size_t end = root_path_.size(); local_ && end != std::string::npos;) {
    end = path.find('/', end + 1);
    std::error_code error;
    const auto type = std::filesystem::symlink_status(path.substr(0, end), error).type();
    if (type == std::filesystem::file_type::not_found) break;
    const auto expected =
        end == std::string::npos ? std::filesystem::file_type::regular : std::filesystem::file_type::directory;
    if (type != expected) return false;
  }
  return true;
}

absl::Status BlobStore::Delete(std::string_view uri) {
  ATOLL_ASSIGN_OR_RETURN(const std::string path, FilePathOf(uri));
  if (local_) return DeleteLocalFile(path);
  ATOLL_ASSIGN_OR_RETURN(const bool exists, Exists(uri));
  if (!exists) return absl::OkStatus();
  ATOLL_ASSIGN_OR_RETURN(const auto access, Reach());
  return FromArrow(access->filesystem->DeleteFile(path), fmt::format("cannot delete {}", uri));
}

absl::Status BlobStore::DeleteTree(std::string_view uri_prefix) {
  ATOLL_ASSIGN_OR_RETURN(const std::string path, FilePathOf(uri_prefix));
  const std::string what = fmt::format("cannot delete {}", uri_prefix);
  ATOLL_ASSIGN_OR_RETURN(const auto access, Reach());
  ATOLL_ASSIGN_OR_RETURN_ARROW(const auto info, access->filesystem->GetFileInfo(path), what);
  if (info.type() == arrow::fs::FileType::NotFound) return absl::OkStatus();
  if (info.IsFile()) return Delete(uri_prefix);
  ATOLL_RETURN_IF_ARROW_ERROR(access->filesystem->DeleteDir(path), what);
  return local_ ? SyncFolder(path.substr(0, path.rfind('/'))) : absl::OkStatus();
}

absl::StatusOr<bool> BlobStore::Exists(std::string_view uri) {
  ATOLL_ASSIGN_OR_RETURN(const std::string path, PathOf(uri));
  ATOLL_ASSIGN_OR_RETURN(const auto access, Reach());
  ATOLL_ASSIGN_OR_RETURN_ARROW(const auto info, access->filesystem->GetFileInfo(path),
                               fmt::format("cannot look up {}", uri));
  return info.IsFile();
}

}  // namespace atl::storage
