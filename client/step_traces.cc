#include "client/step_traces.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "client/job_text.h"
#include "client/table.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "nlohmann/json.hpp"

namespace atl::client {
namespace {

using atlpb::job::v1::Job;
using atlpb::job::v1::Task;

// Shorter waits are the engine's own look at what has arrived.
constexpr absl::Duration kShownWait = absl::Microseconds(20);
constexpr int64_t kLargestTrace = int64_t{64} << 20;

// Later ones sort first.
struct StepKey {
  int64_t store_epoch = 0;
  int64_t attempt = 0;
  int64_t step = 0;
  bool operator<(const StepKey& other) const {
    return std::tie(other.store_epoch, other.attempt, other.step) < std::tie(store_epoch, attempt, step);
  }
};

// By step, the files by rank.
using TraceFiles = std::map<StepKey, std::map<int32_t, std::string>>;

bool Trains(const Task& task) {
  return task.kind() == atlpb::job::v1::TASK_KIND_TRAIN_EXPERT || task.kind() == atlpb::job::v1::TASK_KIND_TRAIN_ROUTER;
}

absl::StatusOr<std::vector<std::string>> ChooseTasks(const Job& job, const std::string& wanted) {
  std::vector<std::string> ids;
  for (const Task& task : job.tasks()) {
    if (!Trains(task)) continue;
    if (task.task_id() == wanted || task.task_id() == job.job_id() + "/" + wanted || TaskName(task) == wanted) {
      return std::vector<std::string>{task.task_id()};
    }
    ids.push_back(task.task_id());
  }
  if (wanted.empty()) return ids;
  return MakeError(absl::StatusCode::kNotFound, "TASK_UNKNOWN",
                   fmt::format("job {}: expected a task that trains ({}), found '{}'", job.job_id(),
                               ids.empty() ? "it has none" : fmt::format("{}", fmt::join(ids, ", ")), wanted));
}

absl::StatusOr<TraceFiles> ListTraces(storage::BlobStore* store, const std::string& task_id) {
  const std::string folder = store->UriOf(fmt::format("jobs/{}/", task_id));
  ATOLL_ASSIGN_OR_RETURN(const std::vector<storage::FileInfo> files, store->List(folder));
  TraceFiles traces;
  for (const storage::FileInfo& file : files) {
    if (!file.uri.starts_with(folder)) continue;
    const auto name = storage::ParseStepTraceName(std::string_view(file.uri).substr(folder.size()));
    if (name.has_value()) traces[{name->store_epoch, name->attempt, name->step}].emplace(name->rank, file.uri);
  }
  return traces;
}

// Missing ranks are known only once a file has been read: it says how many there are.
absl::StatusOr<TracedStep> ReadRanks(storage::BlobStore* store, const std::map<int32_t, std::string>& files) {
  TracedStep step;
  std::vector<int32_t> found;
  for (const auto& [rank, uri] : files) {
    ATOLL_ASSIGN_OR_RETURN(const std::string text, store->Read(uri, kLargestTrace));
    ATOLL_ASSIGN_OR_RETURN(step.ranks.emplace_back(), storage::ParseStepTrace(text, uri));
    found.push_back(rank);
    if (step.ranks.back().rank == rank && step.ranks.back().ranks == step.ranks.front().ranks) continue;
    return MakeError(absl::StatusCode::kDataLoss, "FILE_MALFORMED",
                     fmt::format("{}: expected the trace of rank {} of {}, found that of rank {} of {}", uri, rank,
                                 step.ranks.front().ranks, step.ranks.back().rank, step.ranks.back().ranks));
  }
  const storage::StepTrace& first = step.ranks.front();
  if (static_cast<int32_t>(found.size()) != first.ranks) {
    return MakeError(absl::StatusCode::kDataLoss, "TRACE_INCOMPLETE",
                     fmt::format("task {}, attempt {}, step {}: expected the traces of {} ranks, found only rank {}",
                                 first.task_id, first.attempt, first.step, first.ranks, fmt::join(found, ", ")));
  }
  step.starts = storage::AlignedStarts(step.ranks);
  return step;
}

absl::Status NoTraces(const Job& job, const std::vector<std::string>& task_ids) {
  return MakeError(
      absl::StatusCode::kNotFound, "TRACE_UNKNOWN",
      fmt::format("job {}: expected traces of {}, found none; a training task leaves the first at its third "
                  "step, and they are deleted a day after the task has ended",
                  job.job_id(),
                  task_ids.empty() ? "a task that trains" : fmt::format("{}", fmt::join(task_ids, ", "))));
}

absl::StatusOr<TracedStep> ReadStep(storage::BlobStore* store, const TraceFiles& traces, const std::string& task_id,
                                    int64_t step) {
  std::set<int64_t> steps;
  for (const auto& [key, files] : traces) {
    if (key.step == step) return ReadRanks(store, files);
    steps.insert(key.step);
  }
  return MakeError(
      absl::StatusCode::kNotFound, "TRACE_UNKNOWN",
      fmt::format("task {}: expected a step that left traces ({}), found {}", task_id, fmt::join(steps, ", "), step));
}

// The step of a task that does no frozen work, since no step comes after it; none where nothing is frozen.
std::optional<int64_t> StepWithoutFrozenWork(const Job& job, const std::string& task_id) {
  if (job.spec().frozen_size() == 0) return std::nullopt;
  for (const Task& task : job.tasks()) {
    if (task.task_id() != task_id) continue;
    return task.kind() == atlpb::job::v1::TASK_KIND_TRAIN_ROUTER ? job.spec().router_training().steps()
                                                                 : job.spec().training().steps();
  }
  return std::nullopt;
}

// While a step's files are being written, the one before it is whole. The step that shows less than others do is taken
// only where its attempt left no other.
absl::StatusOr<TracedStep> ReadLatest(storage::BlobStore* store, const TraceFiles& traces,
                                      std::optional<int64_t> shows_less) {
  absl::Status incomplete;
  std::optional<TracedStep> found;
  StepKey found_at;
  for (const auto& [key, files] : traces) {
    if (found.has_value() && (key.store_epoch != found_at.store_epoch || key.attempt != found_at.attempt)) break;
    absl::StatusOr<TracedStep> read = ReadRanks(store, files);
    if (!read.ok()) {
      if (ErrorReason(read.status()) != "TRACE_INCOMPLETE") return read;
      if (incomplete.ok()) incomplete = read.status();
    } else if (key.step != shows_less) {
      return read;
    } else {
      found = *std::move(read);
      found_at = key;
    }
  }
  if (found.has_value()) return *std::move(found);
  return incomplete;
}

// How much of a step each part took; what is left of `step` came after the last action.
struct RankTimes {
  absl::Duration compute;
  absl::Duration waiting;
  absl::Duration engine;
  absl::Duration rest;
};

RankTimes TimesOf(const storage::StepTrace& trace) {
  RankTimes times;
  absl::Duration free_since;
  for (const storage::TracedAction& traced : trace.actions) {
    times.compute += traced.end - traced.start;
    times.waiting += traced.ready - free_since;
    times.engine += (traced.start - traced.ready) + (traced.passed_on - traced.end);
    free_since = traced.passed_on;
  }
  times.rest = trace.step_duration - free_since;
  return times;
}

std::string ShareText(absl::Duration part, absl::Duration whole) {
  return fmt::format("{:.2f} ms {:5.1f} %", absl::ToDoubleMilliseconds(part),
                     whole > absl::ZeroDuration() ? 100 * absl::FDivDuration(part, whole) : 0.0);
}

// Draws the span as `columns` letters: the action that took most of each column, '.' for none, '=' after the last
// action.
std::string Lane(const TracedStep& step, size_t rank, size_t columns) {
  const storage::StepTrace& trace = step.ranks[rank];
  const absl::Duration cell = std::max(step.Span() / static_cast<int64_t>(columns), absl::Nanoseconds(1));
  std::string lane;
  size_t next = 0;
  for (size_t column = 0; column < columns; ++column) {
    const absl::Duration begin = cell * static_cast<int64_t>(column) - step.starts[rank];
    const absl::Duration end = begin + cell;
    std::map<char, absl::Duration> covered;
    const auto cover = [&](char letter, absl::Duration from, absl::Duration to) {
      covered[letter] += std::max(std::min(end, to) - std::max(begin, from), absl::ZeroDuration());
    };
    while (next < trace.actions.size() && trace.actions[next].end <= begin) ++next;
    for (size_t i = next; i < trace.actions.size() && trace.actions[i].start < end; ++i) {
      cover(schedule::KindLetter(trace.actions[i].action.kind), trace.actions[i].start, trace.actions[i].end);
    }
    if (!trace.actions.empty()) cover('=', trace.actions.back().passed_on, trace.step_duration);
    char letter = '.';
    absl::Duration most = cell;  // of nothing
    for (const auto& [candidate, duration] : covered) most -= duration;
    for (const auto& [candidate, duration] : covered) {
      if (duration >= most) letter = candidate, most = duration;
    }
    lane += letter;
  }
  return lane;
}

// Where and when an action's output was made.
struct Made {
  schedule::Action action;
  size_t rank = 0;
  double end_seconds = 0;
};
// By replica, stage and micro-batch.
using MadeAt = std::map<std::tuple<int32_t, int32_t, int32_t>, Made>;

constexpr schedule::ActionKind kForward = schedule::ActionKind::kForward;
constexpr schedule::ActionKind kSelfConditioning = schedule::ActionKind::kSelfConditioning;

bool MakesInputGradient(schedule::ActionKind kind) {
  return kind == schedule::ActionKind::kInputGradient || kind == schedule::ActionKind::kBackward;
}

int32_t ReplicaOf(const storage::StepTrace& trace) {
  return trace.rank / trace.pipeline_ranks;
}

// The outputs that the ranks of a step produced.
struct MadeInStep {
  int32_t last_stage = 0;
  MadeAt outputs;
  MadeAt gradients;
  MadeAt estimates;  // by C
};

// Where what the action read was made; null: it read nothing of another action.
const Made* FindInput(const MadeInStep& made, int32_t replica, const schedule::Action& action) {
  const auto find = [&](const MadeAt& from, int32_t stage) -> const Made* {
    const auto at = from.find({replica, stage, action.micro_batch});
    return at == from.end() ? nullptr : &at->second;
  };
  if (MakesInputGradient(action.kind)) return find(made.gradients, action.stage + 1);
  if (action.kind == kSelfConditioning) return find(made.estimates, action.stage - 1);
  if (action.kind != kForward) return nullptr;
  return action.stage > 0 ? find(made.outputs, action.stage - 1) : find(made.estimates, made.last_stage);
}

void AddTransfers(const TracedStep& step, schedule::Drawing* drawing) {
  MadeInStep made_in_step;
  for (size_t rank = 0; rank < step.ranks.size(); ++rank) {
    for (const storage::TracedAction& traced : step.ranks[rank].actions) {
      const Made made{traced.action, rank, absl::ToDoubleSeconds(step.starts[rank] + traced.end)};
      const std::tuple key(ReplicaOf(step.ranks[rank]), traced.action.stage, traced.action.micro_batch);
      made_in_step.last_stage = std::max(made_in_step.last_stage, traced.action.stage);
      if (traced.action.kind == kForward) made_in_step.outputs[key] = made;
      if (traced.action.kind == kSelfConditioning) made_in_step.estimates[key] = made;
      if (MakesInputGradient(traced.action.kind)) made_in_step.gradients[key] = made;
    }
  }
  for (size_t rank = 0; rank < step.ranks.size(); ++rank) {
    absl::Duration free_since;
    for (const storage::TracedAction& traced : step.ranks[rank].actions) {
      const bool waited = traced.ready - free_since >= kShownWait;
      free_since = traced.passed_on;
      if (!waited) continue;
      const Made* made = FindInput(made_in_step, ReplicaOf(step.ranks[rank]), traced.action);
      if (made == nullptr || made->rank == rank) continue;
      const double arrived = absl::ToDoubleSeconds(step.starts[rank] + traced.ready);
      drawing->transfers.push_back({made->action, static_cast<int32_t>(made->rank), static_cast<int32_t>(rank),
                                    std::min(made->end_seconds, arrived), arrived});
    }
  }
}

}  // namespace

absl::Duration TracedStep::Span() const {
  absl::Duration span;
  for (size_t rank = 0; rank < ranks.size(); ++rank) span = std::max(span, starts[rank] + ranks[rank].step_duration);
  return span;
}

absl::StatusOr<TracedStep> ReadTracedStep(storage::BlobStore* store, const Job& job, const std::string& task,
                                          std::optional<int64_t> step) {
  ATOLL_ASSIGN_OR_RETURN(const std::vector<std::string> task_ids, ChooseTasks(job, task));
  for (const std::string& task_id : task_ids) {
    ATOLL_ASSIGN_OR_RETURN(const TraceFiles traces, ListTraces(store, task_id));
    if (traces.empty()) continue;
    return step.has_value() ? ReadStep(store, traces, task_id, *step)
                            : ReadLatest(store, traces, StepWithoutFrozenWork(job, task_id));
  }
  return NoTraces(job, task_ids);
}

schedule::Drawing DrawTrace(const TracedStep& step) {
  const storage::StepTrace& first = step.ranks.front();
  schedule::Drawing drawing;
  drawing.title = fmt::format("{}, step {}", first.task_id, first.step);
  drawing.subtitle =
      fmt::format("Measured: {} over {} {}, {:.2f} ms, attempt {}", first.generator, first.ranks,
                  first.ranks == 1 ? "rank" : "ranks", absl::ToDoubleMilliseconds(step.Span()), first.attempt);
  for (size_t rank = 0; rank < step.ranks.size(); ++rank) {
    const storage::StepTrace& trace = step.ranks[rank];
    const auto at = [&](absl::Duration time) { return absl::ToDoubleSeconds(step.starts[rank] + time); };
    schedule::DrawnRank drawn;
    for (const storage::TracedAction& traced : trace.actions) {
      drawn.actions.push_back({traced.action, at(traced.start), at(traced.end)});
    }
    const absl::Duration last = trace.actions.empty() ? absl::ZeroDuration() : trace.actions.back().passed_on;
    if (last < trace.step_duration) drawn.updates.push_back({at(last), at(trace.step_duration)});
    drawing.ranks.push_back(std::move(drawn));
  }
  AddTransfers(step, &drawing);
  return drawing;
}

std::string DescribeTrace(const TracedStep& step, int width) {
  const storage::StepTrace& first = step.ranks.front();
  std::string text =
      fmt::format("task     {}, attempt {}\nstep     {}, {:.2f} ms\nschedule {} over {} {}\n\n", OneLine(first.task_id),
                  first.attempt, first.step, absl::ToDoubleMilliseconds(step.Span()), OneLine(first.generator),
                  first.ranks, first.ranks == 1 ? "rank" : "ranks");
  Table table({"RANK", "ACTIONS", "COMPUTE", "WAITING", "ENGINE", "AFTER THE LAST ACTION"});
  for (const storage::StepTrace& trace : step.ranks) {
    const RankTimes times = TimesOf(trace);
    table.Add({fmt::format("{}", trace.rank), fmt::format("{}", trace.actions.size()),
               ShareText(times.compute, trace.step_duration), ShareText(times.waiting, trace.step_duration),
               ShareText(times.engine, trace.step_duration), ShareText(times.rest, trace.step_duration)});
  }
  text += table.Text(width) + "\n";
  const std::string widest = fmt::format("rank {}: ", step.ranks.size() - 1);
  const size_t columns = static_cast<size_t>(std::max((width > 0 ? width : 100) - static_cast<int>(widest.size()), 20));
  for (size_t rank = 0; rank < step.ranks.size(); ++rank) {
    text += fmt::format("{:<{}}{}\n", fmt::format("rank {}:", rank), widest.size(), Lane(step, rank, columns));
  }
  return text +
         "\nF forward, C self-conditioning, I input gradient, W weight gradient, B both, E frozen layers,\n"
         "R reduction over replicas, = norm and optimizer, . nothing\n";
}

std::string TraceJson(const TracedStep& step) {
  nlohmann::ordered_json json;
  for (size_t rank = 0; rank < step.ranks.size(); ++rank) {
    nlohmann::ordered_json trace = nlohmann::ordered_json::parse(storage::ToJson(step.ranks[rank]));
    trace["aligned_start_us"] = absl::ToInt64Microseconds(step.starts[rank]);
    json["ranks"].push_back(std::move(trace));
  }
  return json.dump(2) + "\n";
}

}  // namespace atl::client
