// Measures the cost of faults. It reads the coordinator's reports of jobs, counts repeated steps, and measures the time
// until the first new step. Pure: takes reports and times, returns figures.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "atoll/job/v1/job.pb.h"
#include "tests/chaos/schedule.h"

namespace atl::chaos {

// Steps are known as often as leaders report them (about five times a second), so figures may lack the steps since the
// last report. Not thread-safe.
class Watcher {
 public:
  void OnJob(const atlpb::job::v1::Job& job, absl::Duration now);
  // The fault just began.
  void OnFault(const Fault& fault);

  struct CycleCost {
    std::vector<Fault> faults;
    int ended_attempts = 0;      // of training
    int64_t repeated_steps = 0;  // the most that one of them lost
    // The longest time from a kill of a rank to the next new step of its island's task.
    absl::Duration first_new_step = absl::ZeroDuration();
  };
  const std::map<int, CycleCost>& cycles() const { return cycles_; }
  // Returns the kills after which no new step came.
  std::vector<Fault> unanswered() const;
  // Returns the share of new steps among all steps.
  double goodput() const {
    return done_ == 0 ? 1 : static_cast<double>(done_ - repeated_) / static_cast<double>(done_);
  }

 private:
  struct Attempt {
    std::string island;
    int64_t number = 0;
    int64_t first = 0;  // the step that it went on from
    int64_t last = 0;   // the newest that was reported
    bool leased = false;
    bool over = false;  // the task has succeeded
  };
  struct Kill {
    Fault fault;
    std::string task_id;
    int64_t attempt = 0;
  };

  std::map<std::string, Attempt> attempts_;  // by training task
  std::vector<Kill> kills_;                  // not answered yet
  std::map<int, CycleCost> cycles_;
  int cycle_ = -1;
  int64_t done_ = 0;
  int64_t repeated_ = 0;
};

}  // namespace atl::chaos
