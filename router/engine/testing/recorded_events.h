// For tests: records the events of one request. Thread-safe.
#pragma once

#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "fmt/format.h"
#include "router/engine/flight.h"

namespace atl::router {

class RecordedEvents : public SampleEvents {
 public:
  void OnQueued(int64_t position, const std::string& version) override {
    Add(fmt::format("queued {} {}", position, version));
  }
  void OnProgress(int32_t step, int32_t total_steps) override { Add(fmt::format("progress {}/{}", step, total_steps)); }
  void OnImage(SampledImage image) override {
    Add(fmt::format("image {}", image.index));
    absl::MutexLock lock(&mutex_);
    images_.push_back(std::move(image));
  }
  void OnDone(const SampleReport& report) override {
    Add("done");
    absl::MutexLock lock(&mutex_);
    report_ = report;
  }
  void OnError(const absl::Status& status) override {
    Add("error");
    absl::MutexLock lock(&mutex_);
    status_ = status;
  }

  std::vector<std::string> log() const { return Get(log_); }
  std::vector<SampledImage> images() const { return Get(images_); }
  SampleReport report() const { return Get(report_); }
  absl::Status status() const { return Get(status_); }
  bool over() const {
    absl::MutexLock lock(&mutex_);
    return !log_.empty() && (log_.back() == "done" || log_.back() == "error");
  }
  // Returns the raw pixels of image `index`; empty if it did not come.
  std::vector<float> Pixels(int32_t index) const {
    absl::MutexLock lock(&mutex_);
    for (const SampledImage& image : images_) {
      if (image.index != index) continue;
      const auto* data = reinterpret_cast<const float*>(image.data.data());
      return {data, data + image.data.size() / sizeof(float)};
    }
    return {};
  }

 private:
  void Add(std::string entry) {
    absl::MutexLock lock(&mutex_);
    log_.push_back(std::move(entry));
  }
  template <typename T>
  T Get(const T& value) const {
    absl::MutexLock lock(&mutex_);
    return value;
  }

  mutable absl::Mutex mutex_;
  std::vector<std::string> log_;
  std::vector<SampledImage> images_;
  SampleReport report_;
  absl::Status status_;
};

}  // namespace atl::router
