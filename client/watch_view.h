// The display of `jobs watch`: bars that are redrawn on a terminal, single lines elsewhere. Pure but for the stream.
#pragma once

#include <map>
#include <ostream>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "atoll/job/v1/job.pb.h"

namespace atl::client {

// Returns one line per trained network (bar, step, loss, samples/s, time left), one for the tasks before and after, and
// the newest rollbacks. Every line fits `width` columns.
std::vector<std::string> RenderBars(const atlpb::job::v1::Job& job, int width, bool colour);

// Shows successive versions of one job. Not thread-safe.
class WatchView {
 public:
  WatchView(std::ostream* out, bool terminal, int width, bool colour)
      : out_(out), terminal_(terminal), width_(width), colour_(colour) {}

  // On a terminal, redraws. Elsewhere prints a line for each task whose state changed, and for each network in training
  // at most every 10 s and every tenth of its steps.
  void Show(const atlpb::job::v1::Job& job, absl::Time now);
  // A line that stays, such as "reconnecting".
  void Note(const std::string& line);

 private:
  struct Seen {
    atlpb::job::v1::Task::State state = atlpb::job::v1::Task::STATE_UNSPECIFIED;
    int64_t step = -1;
    int rollbacks = 0;
    absl::Time time = absl::InfinitePast();
  };

  void Erase();
  void PrintChanges(const atlpb::job::v1::Job& job, absl::Time now);

  std::ostream* const out_;
  const bool terminal_;
  const int width_;
  const bool colour_;
  int drawn_lines_ = 0;
  std::map<std::string, Seen> seen_;
  atlpb::job::v1::Job::State state_ = atlpb::job::v1::Job::STATE_UNSPECIFIED;
};

}  // namespace atl::client
