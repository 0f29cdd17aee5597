// Encodes finished samples and, with lower priority, previews, in parallel with sampling.
#pragma once

#include <deque>
#include <memory>
#include <thread>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "router/engine/inbox.h"
#include "router/engine/served_version.h"

namespace atl::router {

// One thread, joined by the destructor, which drops waiting jobs. Thread-safe. Its queues are bounded by the images in
// flight.
class Encoder {
 public:
  struct Job {
    ActiveImage image;  // its sample; the step is not read
    ImageFormat format = ImageFormat::kPng;
    std::shared_ptr<const ServedVersion> model;
    bool preview = false;  // waits for all jobs that are no previews
  };

  explicit Encoder(std::shared_ptr<Inbox> inbox);
  ~Encoder();
  Encoder(const Encoder&) = delete;
  Encoder& operator=(const Encoder&) = delete;

  // The inbox receives the result.
  void Start(Job job);

 private:
  void Loop();

  const std::shared_ptr<Inbox> inbox_;
  absl::Mutex mutex_;
  std::deque<std::unique_ptr<Job>> jobs_ ABSL_GUARDED_BY(mutex_);
  std::deque<std::unique_ptr<Job>> previews_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_;
};

}  // namespace atl::router
