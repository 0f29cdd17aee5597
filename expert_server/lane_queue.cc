#include "expert_server/lane_queue.h"

#include <algorithm>
#include <utility>

#include "common/base/errors.h"
#include "fmt/format.h"
#include "inference/hosted_networks.h"

namespace atl::worker {

using router::EvaluationAnswer;
using router::ExpertLane;
using router::FindHosted;
using router::HostedNetwork;

namespace {

absl::Status NotHosted(const NetworkId& id) {
  return MakeError(absl::StatusCode::kNotFound, "NETWORK_NOT_HOSTED",
                   fmt::format("this expert server does not host {} with digest '{}'", Describe(id), id.digest));
}

absl::Status Stopping() {
  return MakeError(absl::StatusCode::kUnavailable, "EXPERT_SERVER_STOPPING", "this expert server stops");
}

}  // namespace

LaneQueue::LaneQueue(std::vector<std::shared_ptr<ExpertLane>> lanes, Clock* clock,
                     std::function<void(const BatchEnd&)> ended)
    : clock_(clock), lanes_(std::move(lanes)), ended_(std::move(ended)), states_(lanes_.size()) {
  for (const auto& lane : lanes_) lane->Watch([this] { OnLaneChanged(); });
  Dispatch();
}

LaneQueue::~LaneQueue() {
  std::list<Waiting> waiting;
  std::vector<std::pair<ExpertLane*, int64_t>> running;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    waiting.swap(waiting_);
    for (size_t i = 0; i < lanes_.size(); ++i) {
      for (const int64_t id : states_[i].running) running.emplace_back(lanes_[i].get(), id);
    }
  }
  for (const auto& lane : lanes_) lane->Watch(nullptr);
  for (const Waiting& batch : waiting) batch.done(Stopping());
  for (const auto& [lane, id] : running) lane->Cancel(id);
  absl::MutexLock lock(&mutex_);
  const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return unfinished_ == 0 && !dispatching_; };
  mutex_.Await(absl::Condition(&idle));
}

void LaneQueue::OnLaneChanged() {
  {
    absl::MutexLock lock(&mutex_);
    ask_lanes_ = true;
  }
  Dispatch();
}

void LaneQueue::AskLanes() {
  for (size_t i = 0; i < lanes_.size(); ++i) {
    auto hosted = lanes_[i]->hosted();
    const int32_t slots = lanes_[i]->info().slots;
    absl::MutexLock lock(&mutex_);
    states_[i].hosted = std::move(hosted);
    states_[i].slots = static_cast<size_t>(slots);
  }
}

ExpertLane::Done LaneQueue::Observed(const EvaluationPtr& evaluation, ExpertLane::Done done) const {
  if (!ended_) return done;
  return [this, network = evaluation->network, rows = evaluation->rows.count,
          done = std::move(done)](absl::StatusOr<EvaluationAnswer> answer) {
    BatchEnd end{.network = network, .rows = rows, .outcome = answer.status().code()};
    if (answer.ok()) {
      end.compute_time = answer->compute_time;
      end.queue_time = answer->queue_time;
    }
    ended_(end);
    done(std::move(answer));
  };
}

bool LaneQueue::AwaitIdle(absl::Duration deadline) {
  absl::MutexLock lock(&mutex_);
  const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return unfinished_ == 0 && waiting_.empty(); };
  return clock_->AwaitUntil(&mutex_, absl::Condition(&idle), deadline);
}

void LaneQueue::Submit(EvaluationPtr evaluation, ExpertLane::Done done) {
  done = Observed(evaluation, std::move(done));
  {
    absl::MutexLock lock(&mutex_);
    if (!stopping_) {
      waiting_.push_back({std::move(evaluation), std::move(done), clock_->Monotonic()});
      done = nullptr;
    }
  }
  if (done) return done(Stopping());
  Dispatch();
}

void LaneQueue::Cancel(int64_t evaluation) {
  ExpertLane::Done done;
  ExpertLane* running_on = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    const auto waiting = std::find_if(waiting_.begin(), waiting_.end(),
                                      [&](const Waiting& batch) { return batch.evaluation->id == evaluation; });
    if (waiting != waiting_.end()) {
      done = std::move(waiting->done);
      waiting_.erase(waiting);
    }
    for (size_t i = 0; i < lanes_.size(); ++i) {
      const std::vector<int64_t>& running = states_[i].running;
      if (std::count(running.begin(), running.end(), evaluation) > 0) running_on = lanes_[i].get();
    }
  }
  if (done) return done(absl::CancelledError("the batch was cancelled before it started"));
  if (running_on != nullptr) running_on->Cancel(evaluation);
}

int32_t LaneQueue::slots() const {
  absl::MutexLock lock(&mutex_);
  int32_t slots = 0;
  for (const LaneState& state : states_) slots += static_cast<int32_t>(state.slots);
  return slots;
}

size_t LaneQueue::waiting() const {
  absl::MutexLock lock(&mutex_);
  return waiting_.size();
}

int LaneQueue::FindLane(const NetworkId& network, bool* hosted) const {
  int best = -1;
  bool best_resident = false;
  bool somewhere = false;
  for (size_t i = 0; i < states_.size(); ++i) {
    const HostedNetwork* const found = FindHosted(*states_[i].hosted, network);
    if (found == nullptr) continue;
    *hosted = true;
    somewhere |= found->resident;
    if (states_[i].running.size() >= states_[i].slots) continue;
    const bool better = best < 0 || std::pair(!found->resident, states_[i].running.size()) <
                                        std::pair(!best_resident, states_[best].running.size());
    if (!better) continue;
    best = static_cast<int>(i);
    best_resident = found->resident;
  }
  // If a busy lane has the network resident, the batch waits for it rather than loading the network on another lane.
  if (best >= 0 && !best_resident && somewhere) return -1;
  return best;
}

bool LaneQueue::TakeNext(std::vector<Leaving>* leaving, Next* next) {
  const absl::Duration now = clock_->Monotonic();
  for (auto batch = waiting_.begin(); batch != waiting_.end();) {
    bool hosted = false;
    const int lane = FindLane(batch->evaluation->network, &hosted);
    if (batch->evaluation->deadline <= now) {
      leaving->push_back({std::move(batch->done), absl::DeadlineExceededError("nobody waits for the batch any more")});
    } else if (!hosted) {
      leaving->push_back({std::move(batch->done), NotHosted(batch->evaluation->network)});
    } else if (lane < 0) {
      ++batch;
      continue;
    } else {
      *next = {std::move(*batch), static_cast<size_t>(lane)};
      waiting_.erase(batch);
      states_[lane].running.push_back(next->batch.evaluation->id);
      ++unfinished_;
      return true;
    }
    batch = waiting_.erase(batch);
  }
  return false;
}

void LaneQueue::Dispatch() {
  {
    absl::MutexLock lock(&mutex_);
    look_again_ = true;
    if (dispatching_) return;
    dispatching_ = true;
  }
  for (;;) {
    bool ask_lanes = false;
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_ || !look_again_) {
        dispatching_ = false;
        return;
      }
      ask_lanes = std::exchange(ask_lanes_, false);
    }
    if (ask_lanes) AskLanes();
    std::vector<Leaving> leaving;
    Next next;
    bool found = false;
    {
      absl::MutexLock lock(&mutex_);
      look_again_ = false;
      if (!stopping_) found = TakeNext(&leaving, &next);
      look_again_ |= found || ask_lanes_;
    }
    for (const Leaving& batch : leaving) batch.done(batch.status);
    if (found) StartOn(std::move(next));
  }
}

void LaneQueue::StartOn(Next next) {
  const int64_t id = next.batch.evaluation->id;
  const absl::Duration waited = clock_->Monotonic() - next.batch.since;
  lanes_[next.lane]->Start(std::move(next.batch.evaluation),
                           [this, id, waited, index = next.lane, done = std::move(next.batch.done)](auto answer) {
                             {
                               absl::MutexLock lock(&mutex_);
                               std::erase(states_[index].running, id);
                             }
                             // The lane's next batch first: its thread is the one that calls.
                             Dispatch();
                             if (answer.ok()) answer->queue_time += waited;
                             done(std::move(answer));
                             absl::MutexLock lock(&mutex_);
                             --unfinished_;
                           });
}

}  // namespace atl::worker
