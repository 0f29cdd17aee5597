#include "worker/leader/pending_checkpoints.h"

#include <utility>

namespace atl::worker {
namespace {

constexpr int32_t kMostWaiting = 2;

}  // namespace

std::vector<int64_t> PendingCheckpoints::Add(int32_t rank, storage::CheckpointManifest part) {
  const int64_t step = part.step;
  Entry& entry = entries_[step];
  entry.parts[rank] = std::move(part);
  std::vector<int64_t> given_up;
  if (!IsComplete(entry)) return given_up;
  for (auto it = entries_.begin(); it != entries_.end() && it->first < step;) {
    const bool obsolete = !IsComplete(it->second) || (!it->second.tried && waiting() > kMostWaiting);
    if (obsolete) given_up.push_back(it->first);
    it = obsolete ? entries_.erase(it) : std::next(it);
  }
  return given_up;
}

std::optional<storage::CheckpointManifest> PendingCheckpoints::Next() {
  for (auto& [step, entry] : entries_) {
    if (!IsComplete(entry)) continue;
    entry.tried = true;
    storage::CheckpointManifest manifest = entry.parts.begin()->second;
    manifest.files.clear();
    for (const auto& [rank, part] : entry.parts) {
      manifest.files.insert(manifest.files.end(), part.files.begin(), part.files.end());
    }
    return manifest;
  }
  return std::nullopt;
}

void PendingCheckpoints::Done(int64_t step) {
  entries_.erase(step);
}

int32_t PendingCheckpoints::waiting() const {
  int32_t count = 0;
  for (const auto& [step, entry] : entries_) count += IsComplete(entry) ? 1 : 0;
  return count;
}

}  // namespace atl::worker
