#include "coordinator/core/epoch.h"

#include <charconv>
#include <vector>

#include "common/base/errors.h"
#include "common/base/failpoint.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"
#include "spdlog/spdlog.h"

namespace atl::coordinator {
namespace {

constexpr std::string_view kFolder = "coordinator/epochs/";
constexpr int kMaxRaces = 100;

int64_t EpochOf(std::string_view uri) {
  const std::string_view name = uri.substr(uri.rfind('/') + 1);
  int64_t epoch = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), epoch);
  return error == std::errc() && end == name.data() + name.size() ? epoch : 0;
}

absl::Status TakeEpoch(storage::BlobStore& blobs, store::Store& store, int64_t epoch) {
  for (int race = 0; race < kMaxRaces; ++race, ++epoch) {
    ATOLL_RETURN_IF_ERROR(Failpoint("epoch.before_create"));
    const auto written = blobs.CreateOnce(EpochUri(blobs.root(), epoch), store.store_id());
    if (written.ok()) {
      ATOLL_RETURN_IF_ERROR(Failpoint("epoch.after_create"));
      spdlog::info("store {} takes epoch {}", store.store_id(), epoch);
      return store.AdoptEpoch(epoch);
    }
    if (written.status().code() != absl::StatusCode::kAlreadyExists) return written.status();
  }
  return MakeError(absl::StatusCode::kUnavailable, "EPOCH_CONTENDED",
                   fmt::format("{} other stores took epochs before this one could", kMaxRaces));
}

absl::Status NotItsBlobStore(std::string_view root, int64_t epoch, const EpochHolder& newest) {
  return MakeError(
      absl::StatusCode::kFailedPrecondition, "BLOB_STORE_UNKNOWN",
      fmt::format("{}: expected the blob store in which this store took epoch {}, found {}; is --blob-store the one of "
                  "before, and mounted? If its files were moved here without coordinator/, start with --restored and "
                  "without --adopt",
                  root, epoch,
                  newest.epoch == 0 ? "none" : fmt::format("epoch {} of store {}", newest.epoch, newest.store_id)));
}

}  // namespace

// Fixed width, so that names sort as numbers do.
std::string EpochUri(std::string_view blob_root, int64_t epoch) {
  return fmt::format("{}/{}{:012d}", blob_root, kFolder, epoch);
}

absl::StatusOr<EpochHolder> NewestEpoch(storage::BlobStore& blobs) {
  EpochHolder newest;
  std::string uri;
  ATOLL_ASSIGN_OR_RETURN(const std::vector<storage::FileInfo> files, blobs.List(blobs.UriOf(kFolder)));
  for (const storage::FileInfo& file : files) {
    const int64_t epoch = EpochOf(file.uri);
    if (epoch <= newest.epoch) continue;
    newest.epoch = epoch;
    uri = file.uri;
  }
  if (newest.epoch == 0) return newest;
  ATOLL_ASSIGN_OR_RETURN(newest.store_id, blobs.Read(uri, 1024));
  return newest;
}

absl::Status EstablishEpoch(storage::BlobStore& blobs, store::Store& store, bool restored) {
  // First, and durably: a process that dies before it has its epoch is a restored one at its next start too.
  if (restored && !store.restored()) ATOLL_RETURN_IF_ERROR(store.MarkRestored());
  ATOLL_ASSIGN_OR_RETURN(const EpochHolder newest, NewestEpoch(blobs));
  const int64_t next = std::max(newest.epoch, store.epoch()) + 1;
  // A process that died between taking an epoch and writing it down left one that is its own and that no token bears.
  const bool unused = newest.epoch > store.epoch() && newest.store_id == store.store_id();
  if (store.epoch() == 0 && newest.epoch > 0 && !unused && !store.restored()) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition, "STORE_EMPTY",
        fmt::format(
            "{}: store {} took epoch {} here, and this store is an empty one; is --store the one of before, and "
            "mounted? To begin anew beside these files, start with --restored",
            blobs.root(), newest.store_id, newest.epoch));
  }
  if (store.epoch() == 0 || store.restored() || store.promoted() || unused) return TakeEpoch(blobs, store, next);
  if (newest.epoch > store.epoch()) {
    return MakeError(
        absl::StatusCode::kFailedPrecondition, "STORE_SUPERSEDED",
        fmt::format("this store has epoch {}, but store {} took epoch {} at {}; if this store is to take over, "
                    "start with --restored",
                    store.epoch(), newest.store_id, newest.epoch, blobs.root()));
  }
  if (newest.epoch == store.epoch() && newest.store_id == store.store_id()) return absl::OkStatus();
  // Its jobs' files are not here: islands would fail every one of them.
  return NotItsBlobStore(blobs.root(), store.epoch(), newest);
}

absl::Status CheckRanHere(storage::BlobStore& blobs, const store::Store& store) {
  if (store.epoch() == 0) return absl::OkStatus();
  ATOLL_ASSIGN_OR_RETURN(const bool known, blobs.Exists(EpochUri(blobs.root(), store.epoch())));
  if (known) return absl::OkStatus();
  ATOLL_ASSIGN_OR_RETURN(const EpochHolder newest, NewestEpoch(blobs));
  return NotItsBlobStore(blobs.root(), store.epoch(), newest);
}

}  // namespace atl::coordinator
