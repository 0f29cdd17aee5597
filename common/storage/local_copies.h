// Copies of an object store's files on the local disk, in a temporary folder that is deleted with this object.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"

namespace atl::storage {

// Thread-safe.
class LocalCopies {
 public:
  // While all copies together exceed `limit_bytes`, the least recently requested one is removed, but none that was
  // requested within kGrace, because its caller may not have opened it yet. An open file may be removed.
  static constexpr absl::Duration kGrace = absl::Minutes(1);
  explicit LocalCopies(int64_t limit_bytes) : limit_bytes_(limit_bytes) {}
  ~LocalCopies();
  LocalCopies(const LocalCopies&) = delete;
  LocalCopies& operator=(const LocalCopies&) = delete;

  // Returns the path of the copy kept under `key`, if it still exists.
  std::optional<std::string> Find(std::string_view key, absl::Time now);
  // Removes the copy kept under `key`, if there is one.
  void Forget(std::string_view key);
  // Returns a path for a new copy. Creates the folder: in TMPDIR, or /tmp.
  absl::StatusOr<std::string> NewPath();
  // Keeps the file at `path`. Two files with one key both stay valid; later calls of Find return the first.
  std::string Keep(std::string_view key, std::string path, int64_t bytes, absl::Time now);

  int64_t bytes() const;

 private:
  struct Copy {
    std::string path;
    int64_t bytes = 0;
    absl::Time asked;
  };

  void Shrink(absl::Time now) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int64_t limit_bytes_;
  mutable absl::Mutex mutex_;
  std::string folder_ ABSL_GUARDED_BY(mutex_);
  std::map<std::string, Copy, std::less<>> copies_ ABSL_GUARDED_BY(mutex_);
  int64_t bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace atl::storage
