// The queue that wakes the engine's thread: answers of lanes and finished pictures. Outlives the engine if a lane still
// has an answer outstanding.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "common/base/clock.h"
#include "inference/lane.h"
#include "router/engine/flight.h"

namespace atl::router {

// A lane's answer to one attempt.
struct LaneAnswer {
  int64_t evaluation = 0;
  int32_t lane = 0;
  absl::StatusOr<EvaluationAnswer> answer;
};

struct EncodedImage {
  int64_t image = 0;
  absl::StatusOr<SampledImage> encoded;
  bool preview = false;
};

// Thread-safe; only Await blocks. Bounded by the number of running evaluations and encodings.
class Inbox {
 public:
  struct Content {
    std::vector<LaneAnswer> answers;
    std::vector<EncodedImage> images;
  };

  void Add(LaneAnswer answer) {
    absl::MutexLock lock(&mutex_);
    content_.answers.push_back(std::move(answer));
    awake_ = true;
  }
  void Add(EncodedImage image) {
    absl::MutexLock lock(&mutex_);
    content_.images.push_back(std::move(image));
    awake_ = true;
  }
  // Wakes the thread for any other event.
  void Wake() {
    absl::MutexLock lock(&mutex_);
    awake_ = true;
  }
  // Returns when anything happened since the last return, or at `deadline`.
  void Await(Clock* clock, absl::Duration deadline) {
    absl::MutexLock lock(&mutex_);
    clock->AwaitUntil(&mutex_, absl::Condition(&awake_), deadline);
    awake_ = false;
  }
  Content Take() {
    absl::MutexLock lock(&mutex_);
    return std::exchange(content_, {});
  }

 private:
  absl::Mutex mutex_;
  bool awake_ ABSL_GUARDED_BY(mutex_) = false;
  Content content_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace atl::router
