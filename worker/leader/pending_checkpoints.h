// Uncommitted checkpoints of one attempt: collects every rank's files, step by step, and selects the next one to
// commit. Keeps at most two complete ones: training continues while the coordinator is unreachable, and the newest
// counts. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <vector>

#include "common/formats/checkpoint.h"

namespace atl::worker {

class PendingCheckpoints {
 public:
  // `ranks`: how many ranks write a part.
  explicit PendingCheckpoints(int32_t ranks) : ranks_(ranks) {}

  // Adds a rank's part: `part.files` of `part.step`. Returns the steps that it gives up, whose files are no longer
  // needed: incomplete ones before a complete one (a rank writes in order, so their missing parts will not come), and
  // complete ones that waited while two newer ones came. A step whose commit was tried is kept, because the commit may
  // have succeeded without an answer.
  std::vector<int64_t> Add(int32_t rank, storage::CheckpointManifest part);

  // Returns the oldest complete one, with every rank's files in rank order. From now on it counts as tried.
  std::optional<storage::CheckpointManifest> Next();
  // The checkpoint that Next returned is committed, or rejected permanently.
  void Done(int64_t step);

  // Returns how many are complete and not done.
  int32_t waiting() const;

 private:
  struct Entry {
    std::map<int32_t, storage::CheckpointManifest> parts;  // by rank
    bool tried = false;
  };
  bool IsComplete(const Entry& entry) const { return static_cast<int32_t>(entry.parts.size()) == ranks_; }

  const int32_t ranks_;
  std::map<int64_t, Entry> entries_;  // by step
};

}  // namespace atl::worker
