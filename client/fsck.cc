#include "client/fsck.h"

#include <algorithm>
#include <atomic>
#include <set>
#include <thread>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/dataset/dataset.h"
#include "common/formats/checkpoint.h"
#include "common/formats/file_list.h"
#include "common/formats/hashed_bytes.h"
#include "common/formats/model_index.h"
#include "common/formats/profile_file.h"
#include "common/storage/json_reader.h"
#include "fmt/format.h"

namespace atl::fsck {
namespace {

constexpr int64_t kLargestManifest = int64_t{256} << 20;

std::string_view FolderOf(std::string_view uri) {
  return uri.substr(0, uri.rfind('/'));
}

void NameFiles(std::string_view manifest_uri, const std::vector<storage::CheckpointFile>& files,
               std::vector<NamedFile>* named) {
  for (const storage::CheckpointFile& file : files) {
    named->push_back({fmt::format("{}/{}", FolderOf(manifest_uri), file.name), file.sha256, std::string(manifest_uri)});
  }
}

// Files that say themselves what they are to hold.
enum class Kind : uint8_t { kNone, kDataset, kCheckpoint, kModel, kProfile, kPlan, kFrozen };

Kind KindOf(std::string_view path) {
  if (path.starts_with("datasets/") && path.ends_with("/manifest.json")) return Kind::kDataset;
  if (path.starts_with("jobs/") && path.ends_with("/manifest.json")) return Kind::kCheckpoint;
  if (path.starts_with("models/") && path.ends_with("/model_index.json")) return Kind::kModel;
  if (path.starts_with("profiles/") && path.ends_with(".json")) return Kind::kProfile;
  if (path.starts_with("plans/") && path.ends_with(".binpb")) return Kind::kPlan;
  if (path.starts_with("frozen/") && path.ends_with(".safetensors")) return Kind::kFrozen;
  return Kind::kNone;
}

// Appends what the file names. An error says what is wrong with it.
absl::Status ReadManifest(Kind kind, std::string_view text, const std::string& uri, std::vector<NamedFile>* named) {
  if (kind == Kind::kPlan) return storage::WithoutHash(text, uri).status();
  if (kind == Kind::kProfile) {
    ATOLL_RETURN_IF_ERROR(storage::ParseProfile(text, uri).status());
  } else if (kind == Kind::kDataset) {
    ATOLL_ASSIGN_OR_RETURN(const dataset::DatasetManifest manifest, dataset::ParseDatasetManifest(text, uri));
    for (const dataset::Shard& shard : manifest.shards) named->push_back({shard.uri, shard.sha256, uri});
  } else if (kind == Kind::kCheckpoint) {
    ATOLL_ASSIGN_OR_RETURN(const storage::CheckpointManifest manifest, storage::ParseManifest(text, uri));
    NameFiles(uri, manifest.files, named);
  } else {
    ATOLL_ASSIGN_OR_RETURN(const storage::ModelIndex index, storage::ParseModelIndex(text, uri));
    NameFiles(uri, index.files, named);
  }
  if (storage::IsSealed(text)) return absl::OkStatus();
  return MakeError(absl::StatusCode::kDataLoss, "HASH_MISMATCH",
                   fmt::format("{}: expected its own SHA-256 in its last line, found none", uri));
}

class Run {
 public:
  Run(storage::BlobStore* store, const FsckOptions& options) : store_(store), options_(options) {
    for (const std::string& folder : options.below) {
      const bool whole = folder == store->root() || folder.starts_with(store->root() + "/");
      below_.emplace_back(whole ? PathOf(folder) : folder);
    }
  }

  absl::StatusOr<FsckReport> Check() {
    ATOLL_ASSIGN_OR_RETURN(const std::vector<storage::FileInfo> files, store_->List(store_->root()));
    ATOLL_RETURN_IF_ERROR(CheckFolders(files));
    for (const NamedFile& known : options_.known) Want(known);
    std::vector<std::string> manifests;
    for (const storage::FileInfo& file : files) {
      if (!Chosen(file.uri)) continue;
      sizes_[file.uri] = file.bytes;
      const Kind kind = KindOf(PathOf(file.uri));
      if (kind == Kind::kFrozen) WantByName(file.uri);
      if (kind != Kind::kNone && kind != Kind::kFrozen) manifests.push_back(file.uri);
    }
    InParallel(manifests.size(), [&](size_t i) { CheckManifest(manifests[i]); });
    std::vector<NamedFile> wanted;
    {
      absl::MutexLock lock(&mutex_);
      for (const auto& [uri, file] : wanted_) wanted.push_back(file);
    }
    InParallel(wanted.size(), [&](size_t i) { CheckFile(wanted[i]); });
    absl::MutexLock lock(&mutex_);
    for (const auto& [uri, bytes] : sizes_) {
      if (wanted_.contains(uri) || manifests_.contains(uri)) continue;
      ++report_.unnamed_files;
      report_.unnamed_bytes += bytes;
    }
    // A file that is bad to several is bad once, as the first found it.
    std::stable_sort(report_.bad.begin(), report_.bad.end(),
                     [](const BadFile& a, const BadFile& b) { return a.uri < b.uri; });
    const auto same = [](const BadFile& a, const BadFile& b) { return a.uri == b.uri; };
    report_.bad.erase(std::unique(report_.bad.begin(), report_.bad.end(), same), report_.bad.end());
    return report_;
  }

 private:
  std::string_view PathOf(std::string_view uri) const {
    return uri.substr(std::min(uri.size(), store_->root().size() + 1));
  }

  // By whole parts of the path, with or without a slash at the folder's end; a file lies below itself.
  bool LiesBelow(std::string_view uri, std::string_view folder) const {
    if (!uri.starts_with(store_->root() + "/")) return false;
    while (folder.ends_with('/')) folder.remove_suffix(1);
    const std::string_view path = PathOf(uri);
    if (folder.empty() || path == folder) return true;
    return path.starts_with(folder) && path[folder.size()] == '/';
  }

  bool Chosen(std::string_view uri) const {
    if (!uri.starts_with(store_->root())) return false;
    const auto below = [&](const std::string& folder) { return LiesBelow(uri, folder); };
    return below_.empty() || std::any_of(below_.begin(), below_.end(), below);
  }

  // A folder with a typo must not look like one that is whole.
  absl::Status CheckFolders(const std::vector<storage::FileInfo>& files) const {
    for (const std::string& folder : below_) {
      const auto below = [&](const auto& file) { return LiesBelow(file.uri, folder); };
      if (std::any_of(files.begin(), files.end(), below)) continue;
      if (std::any_of(options_.known.begin(), options_.known.end(), below)) continue;
      return MakeError(absl::StatusCode::kNotFound, "NOTHING_BELOW",
                       fmt::format("{}: expected files below '{}', found none", store_->root(), folder));
    }
    return absl::OkStatus();
  }

  void Want(const NamedFile& file) {
    if (!file.uri.starts_with(store_->root() + "/")) {
      return Report({file.uri, BadFile::Problem::kUnreadable,
                     fmt::format("expected a file below {}, found another root", store_->root()), file.named_by});
    }
    if (!Chosen(file.uri)) return;
    absl::MutexLock lock(&mutex_);
    const auto [known, fresh] = wanted_.emplace(file.uri, file);
    if (fresh || known->second.sha256 == file.sha256) return;
    report_.bad.push_back({file.uri, BadFile::Problem::kDamaged,
                           fmt::format("expected SHA-256 {} by {}, and {} by {}", known->second.sha256,
                                       known->second.named_by, file.sha256, file.named_by),
                           file.named_by});
  }

  // "<input>-<first>-<end>-<sha256>.safetensors"
  void WantByName(const std::string& uri) {
    const std::string_view stem = std::string_view(uri).substr(0, uri.rfind('.'));
    const std::string_view hash = stem.substr(stem.rfind('-') + 1);
    if (storage::IsSha256Hex(hash)) {
      Want({uri, std::string(hash), "its name"});
    } else {
      Report({uri, BadFile::Problem::kDamaged, "expected a SHA-256 at the end of its name, found none", ""});
    }
  }

  void Report(BadFile bad) {
    absl::MutexLock lock(&mutex_);
    report_.bad.push_back(std::move(bad));
  }

  void Count(int64_t bytes) {
    absl::MutexLock lock(&mutex_);
    ++report_.files;
    report_.bytes += bytes;
  }

  void CheckManifest(const std::string& uri) {
    const absl::StatusOr<std::string> text = store_->Read(uri, kLargestManifest);
    if (absl::IsNotFound(text.status())) return;  // deleted since it was listed
    std::vector<NamedFile> named;
    const absl::Status status = text.ok() ? ReadManifest(KindOf(PathOf(uri)), *text, uri, &named) : text.status();
    for (const NamedFile& file : named) Want(file);
    if (!status.ok()) {
      const bool unreadable = !text.ok() && !absl::IsDataLoss(text.status());
      Report({uri, unreadable ? BadFile::Problem::kUnreadable : BadFile::Problem::kDamaged,
              std::string(status.message()), "itself"});
    }
    absl::MutexLock lock(&mutex_);
    manifests_.insert(uri);
    // A manifest that another file names is counted when its hash is compared.
    if (wanted_.contains(uri)) return;
    ++report_.files;
    report_.bytes += text.ok() ? static_cast<int64_t>(text->size()) : 0;
  }

  void CheckFile(const NamedFile& file) {
    absl::StatusOr<storage::WrittenFile> found = store_->Hash(file.uri);
    // A second transfer tells a damaged file from a damaged transfer.
    if (found.ok() && found->sha256 != file.sha256) found = store_->Hash(file.uri);
    if (absl::IsNotFound(found.status()) && !StillNamed(file)) return;
    Count(found.ok() ? found->bytes : 0);
    if (found.ok() && found->sha256 == file.sha256) return;
    if (found.ok()) {
      Report({file.uri, BadFile::Problem::kDamaged,
              fmt::format("expected SHA-256 {}, found {}", file.sha256, found->sha256), file.named_by});
    } else if (absl::IsNotFound(found.status())) {
      Report({file.uri, BadFile::Problem::kMissing, "expected a file, found none", file.named_by});
    } else {
      Report({file.uri, BadFile::Problem::kUnreadable, std::string(found.status().message()), file.named_by});
    }
  }

  // False when the manifest that named the file has been deleted with it.
  bool StillNamed(const NamedFile& file) {
    if (!file.named_by.starts_with(store_->root())) return true;
    const absl::StatusOr<bool> there = store_->Exists(file.named_by);
    return !there.ok() || *there;
  }

  template <typename Work>
  void InParallel(size_t count, Work work) const {
    std::atomic<size_t> next = 0;
    std::vector<std::thread> threads;
    for (int i = 0; i < std::max(1, options_.threads); ++i) {
      threads.emplace_back([&] {
        for (size_t at = next++; at < count; at = next++) work(at);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }

  storage::BlobStore* const store_;
  const FsckOptions& options_;
  std::vector<std::string> below_;        // paths below the root
  std::map<std::string, int64_t> sizes_;  // of every file that was listed
  absl::Mutex mutex_;
  std::map<std::string, NamedFile> wanted_ ABSL_GUARDED_BY(mutex_);
  std::set<std::string> manifests_ ABSL_GUARDED_BY(mutex_);
  FsckReport report_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

std::string_view ToString(BadFile::Problem problem) {
  switch (problem) {
    case BadFile::Problem::kMissing:
      return "missing";
    case BadFile::Problem::kDamaged:
      return "damaged";
    case BadFile::Problem::kUnreadable:
      return "unreadable";
  }
  return "";
}

absl::StatusOr<FsckReport> CheckBlobStore(storage::BlobStore* store, const FsckOptions& options) {
  return Run(store, options).Check();
}

}  // namespace atl::fsck
