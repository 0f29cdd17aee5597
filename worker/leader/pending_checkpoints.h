// Checkpoints of one attempt on their way to a commit: collects every rank's files, step by step, and says what to
// commit next. Keeps at most two complete ones: training goes on while the coordinator is away, and the newest counts.
// Pure.
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

  // A rank wrote its part: `part.files` of `part.step`. Returns the steps that are given up by it, whose files nobody
  // needs: incomplete ones before a complete one (a rank writes in order, so their missing parts will not come), and
  // complete ones that waited while two newer ones came, unless a commit of it was tried (it may have succeeded
  // unheard).
  std::vector<int64_t> Add(int32_t rank, storage::CheckpointManifest part);

  // The oldest complete one, with every rank's files in rank order. From now on it counts as tried.
  std::optional<storage::CheckpointManifest> Next();
  // The one that Next returned is committed, or refused for good.
  void Done(int64_t step);

  // Complete and not done.
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
