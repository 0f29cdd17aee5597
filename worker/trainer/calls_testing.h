// For tests and benchmarks: records the ATen operators that a thread calls.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <ATen/record_function.h>

namespace atl::trainer {

// While it lives, counts and times the operators called by the thread that created it, including backward passes of CPU
// graphs. At most one per thread; destroy it on its thread.
class RecordedCalls {
 public:
  struct Calls {
    int64_t count = 0;
    double seconds = 0;  // without the operators called by these
  };

  RecordedCalls() {
    current_ = this;
    handle_ = at::addThreadLocalCallback(at::RecordFunctionCallback(Begin, End).scopes({at::RecordScope::FUNCTION}));
  }
  ~RecordedCalls() {
    at::removeCallback(handle_);
    current_ = nullptr;
  }
  RecordedCalls(const RecordedCalls&) = delete;
  RecordedCalls& operator=(const RecordedCalls&) = delete;

  // By name, such as "aten::item".
  const std::map<std::string, Calls>& all() const { return calls_; }
  int64_t Count(const std::string& name) const { return calls_.contains(name) ? calls_.at(name).count : 0; }

 private:
  using Clock = std::chrono::steady_clock;
  struct Open {
    Clock::time_point start;
    double inner_seconds = 0;
  };

  static std::unique_ptr<at::ObserverContext> Begin(const at::RecordFunction&) {
    current_->open_.push_back({Clock::now()});
    return nullptr;
  }
  static void End(const at::RecordFunction& function, at::ObserverContext*) {
    const Open ended = current_->open_.back();
    current_->open_.pop_back();
    const double seconds = std::chrono::duration<double>(Clock::now() - ended.start).count();
    Calls& calls = current_->calls_[function.name()];
    ++calls.count;
    calls.seconds += seconds - ended.inner_seconds;
    if (!current_->open_.empty()) current_->open_.back().inner_seconds += seconds;
  }

  inline static thread_local RecordedCalls* current_ = nullptr;
  at::CallbackHandle handle_{};
  std::vector<Open> open_;
  std::map<std::string, Calls> calls_;
};

}  // namespace atl::trainer
