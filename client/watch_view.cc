#include "client/watch_view.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "client/job_text.h"
#include "client/table.h"
#include "common/wire/time_wire.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace atl::client {
namespace {

using atlpb::job::v1::Job;
using atlpb::job::v1::Rollback;
using atlpb::job::v1::Task;

// The picture is redrawn by going up over its lines, which a terminal does no further than its top.
constexpr size_t kRollbacksShown = 5;

bool Trains(const Task& task) {
  return task.kind() == atlpb::job::v1::TASK_KIND_TRAIN_EXPERT || task.kind() == atlpb::job::v1::TASK_KIND_TRAIN_ROUTER;
}

int64_t TotalSteps(const Job& job, const Task& task) {
  if (task.progress().total_steps() > 0) return task.progress().total_steps();
  return task.kind() == atlpb::job::v1::TASK_KIND_TRAIN_ROUTER ? job.spec().router_training().steps()
                                                               : job.spec().training().steps();
}

int64_t DoneSteps(const Job& job, const Task& task) {
  if (task.state() == Task::STATE_SUCCEEDED) return TotalSteps(job, task);
  return std::max(task.progress().step(), task.committed_step());
}

// "loss 0.2130  812/s  0:12 left", as much of it as is known.
std::string Figures(const Task& task) {
  std::vector<std::string> parts;
  const auto& progress = task.progress();
  if (progress.step() > 0 && std::isfinite(progress.loss()))
    parts.push_back(fmt::format("loss {:.4f}", progress.loss()));
  const auto accuracy = progress.metrics().find("accuracy");
  if (accuracy != progress.metrics().end()) parts.push_back(fmt::format("accuracy {:.3f}", accuracy->second));
  if (task.state() == Task::STATE_LEASED && progress.samples_per_second() > 0) {
    parts.push_back(RateText(progress.samples_per_second()) + " samples/s");
    parts.push_back(DurationText(wire::FromProto(progress.time_left())) + " left");
  }
  if (task.state() == Task::STATE_READY || task.state() == Task::STATE_BLOCKED) parts.push_back("waiting");
  if (task.state() == Task::STATE_FAILED) parts.push_back("failed: " + OneLine(task.message()));
  if (task.state() == Task::STATE_CANCELLED) parts.push_back("cancelled");
  if (task.state() == Task::STATE_SUCCEEDED) parts.push_back("done");
  return fmt::format("{}", fmt::join(parts, "  "));
}

std::string Coloured(const Task& task, const std::string& text, bool colour) {
  if (!colour) return text;
  const char* code = task.state() == Task::STATE_SUCCEEDED ? "32" : task.state() == Task::STATE_FAILED ? "31" : "36";
  return fmt::format("\x1b[{}m{}\x1b[0m", code, text);
}

std::string TrainingLine(const Job& job, const Task& task, int width, bool colour) {
  const int64_t total = TotalSteps(job, task);
  const int64_t done = DoneSteps(job, task);
  const std::string name = fmt::format("{:<9}", TaskName(task));
  const int digits = static_cast<int>(fmt::format("{}", total).size());
  const std::string steps = fmt::format(" {:>{}}/{}  ", done, digits, total);
  constexpr int kFigures = 48;
  const int cells = std::clamp(width - 10 - static_cast<int>(steps.size()) - kFigures, 0, 30);
  const std::string bar = Bar(total > 0 ? static_cast<double>(done) / static_cast<double>(total) : 0, cells);
  const std::string figures = Shorten(Figures(task), width - 10 - cells - static_cast<int>(steps.size()));
  return Shorten(name, width) + (width > 20 ? " " + Coloured(task, bar, colour) + steps + figures : "");
}

// "featurize 2/3, cluster, partition 0/1": tasks that do not train, by kind, in order; done kinds bear a tick.
std::string OtherTasks(const Job& job) {
  std::vector<atlpb::job::v1::TaskKind> order;
  std::map<atlpb::job::v1::TaskKind, std::pair<int, int>> done_of;
  std::string failed;
  for (const Task& task : job.tasks()) {
    if (Trains(task)) continue;
    if (done_of.count(task.kind()) == 0) order.push_back(task.kind());
    auto& [done, all] = done_of[task.kind()];
    ++all;
    done += task.state() == Task::STATE_SUCCEEDED ? 1 : 0;
    if (task.state() == Task::STATE_FAILED) failed = TaskName(task) + " failed: " + OneLine(task.message());
  }
  std::vector<std::string> parts;
  for (const auto kind : order) {
    const auto& [done, all] = done_of[kind];
    parts.push_back(done == all ? KindName(kind) + " ✓"
                    : all == 1  ? KindName(kind)
                                : fmt::format("{} {}/{}", KindName(kind), done, all));
  }
  return failed.empty() ? fmt::format("{}", fmt::join(parts, " · ")) : failed;
}

// The newest of all tasks, oldest first, below the number of those before them.
std::vector<std::string> RollbackLines(const Job& job) {
  std::vector<std::pair<const Task*, const Rollback*>> all;
  for (const Task& task : job.tasks()) {
    for (const Rollback& rollback : task.rollbacks()) all.emplace_back(&task, &rollback);
  }
  std::stable_sort(all.begin(), all.end(), [](const auto& a, const auto& b) {
    return wire::FromProto(a.second->time()) < wire::FromProto(b.second->time());
  });
  const size_t earlier = all.size() - std::min(all.size(), kRollbacksShown);
  std::vector<std::string> lines;
  if (earlier > 0) {
    lines.push_back(fmt::format("earlier rollbacks: {} (atoll jobs get {})", earlier, OneLine(job.job_id())));
  }
  for (size_t i = earlier; i < all.size(); ++i) {
    lines.push_back(fmt::format("{}: {}", TaskName(*all[i].first), DescribeRollback(*all[i].second)));
  }
  return lines;
}

}  // namespace

std::vector<std::string> RenderBars(const Job& job, int width, bool colour) {
  std::vector<std::string> lines;
  lines.push_back(
      Shorten(fmt::format("job {}  {}  {}", OneLine(job.job_id()), StateName(job.state()), OtherTasks(job)), width));
  for (const Task& task : job.tasks()) {
    if (Trains(task)) lines.push_back(TrainingLine(job, task, width, colour));
  }
  for (const std::string& line : RollbackLines(job)) lines.push_back(Shorten(line, width));
  if (!job.message().empty()) lines.push_back(Shorten(OneLine(job.message()), width));
  return lines;
}

void WatchView::Erase() {
  if (drawn_lines_ > 0) *out_ << "\x1b[" << drawn_lines_ << "A\x1b[J";
  drawn_lines_ = 0;
}

void WatchView::Note(const std::string& line) {
  Erase();
  *out_ << line << std::endl;
}

void WatchView::Show(const Job& job, absl::Time now) {
  if (!terminal_) {
    PrintChanges(job, now);
    return;
  }
  Erase();
  // One column is left free: a line that fills the last one would wrap on some terminals.
  const std::vector<std::string> lines = RenderBars(job, width_ - 1, colour_);
  for (const std::string& line : lines) *out_ << line << "\n";
  out_->flush();
  drawn_lines_ = static_cast<int>(lines.size());
}

void WatchView::PrintChanges(const Job& job, absl::Time now) {
  for (const Task& task : job.tasks()) {
    Seen& seen = seen_[task.task_id()];
    const bool changed = task.state() != seen.state && task.state() != Task::STATE_BLOCKED;
    const int64_t done = DoneSteps(job, task);
    const int64_t total = TotalSteps(job, task);
    const bool moved =
        Trains(task) && task.state() == Task::STATE_LEASED && done > seen.step &&
        (done - std::max<int64_t>(seen.step, 0) >= (total + 9) / 10 || now - seen.time >= absl::Seconds(10));
    seen.state = task.state();
    for (; seen.rollbacks < task.rollbacks_size(); ++seen.rollbacks) {
      *out_ << fmt::format("{:<12} {}", TaskName(task), DescribeRollback(task.rollbacks(seen.rollbacks))) << std::endl;
      seen.step = task.committed_step();
    }
    if (!changed && !moved) continue;
    seen.step = done;
    seen.time = now;
    const std::string steps = Trains(task) ? fmt::format("{}/{}  ", done, total) : "";
    const std::string figures = Trains(task) ? Figures(task) : OneLine(task.message());
    std::string line = fmt::format("{:<12} {:<9} {}{}", TaskName(task), StateName(task.state()), steps, figures);
    line.erase(line.find_last_not_of(' ') + 1);
    *out_ << line << std::endl;
  }
  if (job.state() != state_) {
    state_ = job.state();
    *out_ << fmt::format("job {} {}{}{}", OneLine(job.job_id()), StateName(job.state()),
                         job.message().empty() ? "" : ": ", OneLine(job.message()))
          << std::endl;
  }
}

}  // namespace atl::client
