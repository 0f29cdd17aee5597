#include "worker/island/island.h"

#include <openssl/crypto.h>

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "common/base/errors.h"
#include "common/wire/task_wire.h"
#include "common/wire/time_wire.h"

namespace atl::worker {
namespace {

namespace pb = atlpb::island::v1;
using atlpb::island::v1::JoinRequest;
using atlpb::island::v1::JoinResponse;

// Ranks of one island that are asked to end together do not give the leader the same deadline to the millisecond.
constexpr absl::Duration kSameDeadline = absl::Seconds(1);

// Takes the same time wherever the first difference lies.
bool SecretsEqual(const std::string& a, const std::string& b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

absl::StatusCode CodeNamed(const std::string& name) {
  for (int code = 0; code <= 16; ++code) {
    if (absl::StatusCodeToString(static_cast<absl::StatusCode>(code)) == name)
      return static_cast<absl::StatusCode>(code);
  }
  return absl::StatusCode::kUnknown;
}

JoinResponse AbortMessage(int64_t attempt, const absl::Status& reason) {
  JoinResponse message;
  message.mutable_abort()->set_attempt(attempt);
  message.mutable_abort()->set_reason(std::string(reason.message()));
  return message;
}

// The attempt's folder, and the newest keys.
pb::StorageGrant StorageOf(const pb::TaskGrant& grant, const pb::StorageGrant& renewed) {
  pb::StorageGrant storage = renewed;
  storage.set_write_prefix(grant.storage().write_prefix());
  return storage;
}

}  // namespace

Island::Island(IslandSettings settings, Clock* clock, WorkerMetrics* metrics, IslandEvents events)
    : settings_(std::move(settings)),
      clock_(clock),
      metrics_(metrics),
      events_(std::move(events)),
      state_(settings_.state),
      present_({0}),
      thread_([this] { Loop(); }) {}

Island::~Island() {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
  }
  thread_.join();
}

void Island::SetLocalRunner(RankRunner* runner) {
  absl::MutexLock lock(&mutex_);
  local_ = runner;
}

void Island::Report(JoinRequest message) {
  Post([this, message = std::move(message)] { OnRankMessage(0, message); });
}

void Island::SetIncarnation(int64_t incarnation) {
  absl::MutexLock lock(&mutex_);
  incarnation_ = incarnation;
}

std::vector<int32_t> Island::AwaitRanks(absl::Duration timeout) {
  const absl::Duration deadline = clock_->Monotonic() + timeout;
  absl::MutexLock lock(&mutex_);
  const auto all = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return interrupted_ || static_cast<int32_t>(present_.size()) == settings_.state.ranks;
  };
  clock_->AwaitUntil(&mutex_, absl::Condition(&all), deadline);
  return present_;
}

std::vector<int32_t> Island::Present() const {
  absl::MutexLock lock(&mutex_);
  return present_;
}

void Island::Interrupt() {
  absl::MutexLock lock(&mutex_);
  interrupted_ = true;
}

void Island::BeginAttempt(const atlpb::island::v1::StartAttempt& start, const std::vector<int32_t>& ranks) {
  {
    absl::MutexLock lock(&mutex_);
    outcome_.reset();
  }
  Post([this, start, ranks] {
    start_ = start;
    stop_deadline_.reset();
    std::vector<IslandCommand> commands;
    const absl::Status begun = state_.Begin(start.grant().token().attempt(), ranks, clock_->Monotonic(), &commands);
    if (!begun.ok()) return Finish({.status = begun});
    Execute(commands);
  });
}

AttemptOutcome Island::AwaitOutcome() {
  absl::MutexLock lock(&mutex_);
  const auto over = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return outcome_ != nullptr; };
  mutex_.Await(absl::Condition(&over));
  return *outcome_;
}

void Island::Abort(const absl::Status& reason) {
  Post([this, reason] { Execute(state_.Abort(reason, clock_->Monotonic())); });
}

void Island::StopSoon(StopRequest request) {
  Post([this, request = std::move(request)] { StopOrAbort(request); });
}

void Island::RenewStorage(const spec::LeaseToken& token, const spec::StorageGrant& storage) {
  Post([this, token, storage] {
    renewed_ = token;
    renewed_storage_ = wire::ToProto(storage);
    if (!(wire::FromProto(start_.grant().token()) == token)) return;
    JoinResponse message;
    message.mutable_storage_renewed()->set_attempt(token.attempt);
    *message.mutable_storage_renewed()->mutable_storage() = renewed_storage_;
    SendToWorking(message);
  });
}

void Island::StopOrAbort(const StopRequest& request) {
  if (state_.phase() == IslandPhase::kGathering) return;
  if (stop_deadline_ && request.deadline >= *stop_deadline_ - kSameDeadline) return;
  const AttemptProgress local = Local()->progress();
  const absl::Duration written = local.checkpoint_time;
  StopFacts facts{.left = request.deadline - clock_->Monotonic(),
                  .step_time = local.step_time,
                  .checkpoint_time = written > absl::ZeroDuration() ? written + events_.commit_time() : written};
  if (stop_deadline_) facts.steps_left = std::max<int64_t>(local.stop_after - local.step, 0);
  const StopPlan plan = DecideStop(facts);
  spdlog::info("attempt {}: {}: {}", state_.attempt(), request.reason, plan.reason);
  const bool told = stop_deadline_.has_value();
  stop_deadline_ = request.deadline;
  if (!plan.checkpoint) {
    const absl::Status why =
        MakeError(absl::StatusCode::kCancelled, "DRAINED", fmt::format("{}: {}", request.reason, plan.reason));
    Execute(state_.Abort(why, clock_->Monotonic()));
    return;
  }
  if (told) return;
  JoinResponse message;
  message.mutable_stop_after()->set_attempt(state_.attempt());
  message.mutable_stop_after()->set_step(local.step + plan.steps);
  message.mutable_stop_after()->set_reason(request.reason);
  SendToWorking(message);
}

void Island::ShutDownRanks(const absl::Status& status) {
  Post([this, status] {
    ending_ = true;
    for (auto& [rank, stream] : streams_) {
      JoinResponse message;
      message.mutable_shutdown()->set_reason(status.ok() ? "the leader ends" : std::string(status.message()));
      message.mutable_shutdown()->set_failed(!status.ok());
      stream->Send(std::move(message));
      stream->Close(absl::OkStatus(), /*at_once=*/false);
    }
  });
}

grpc::ServerBidiReactor<JoinRequest, JoinResponse>* Island::Join(grpc::CallbackServerContext* context) {
  const StreamPtr stream = RankStream::Open(
      context,
      {.received =
           [this](StreamPtr from, JoinRequest message) {
             Post([this, from = std::move(from), message = std::move(message)] { OnStreamMessage(from, message); });
           },
       .closed = [this](StreamPtr from) { Post([this, from = std::move(from)] { OnStreamClosed(from); }); }});
  Post([this, stream] { strangers_.emplace(stream, clock_->Monotonic()); });
  return stream.get();
}

void Island::Post(std::function<void()> work) {
  absl::MutexLock lock(&mutex_);
  if (!closing_) work_.push_back(std::move(work));
}

void Island::Loop() {
  next_beat_ = clock_->Monotonic() + settings_.beat_interval;
  for (;;) {
    std::deque<std::function<void()>> work;
    {
      absl::MutexLock lock(&mutex_);
      const auto due = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !work_.empty() || closing_; };
      clock_->AwaitUntil(&mutex_, absl::Condition(&due), next_beat_);
      if (closing_) break;
      work.swap(work_);
    }
    for (const std::function<void()>& item : work) item();
    if (clock_->Monotonic() >= next_beat_) Beat();
  }
  streams_.clear();
  strangers_.clear();
}

void Island::Beat() {
  const absl::Duration now = clock_->Monotonic();
  next_beat_ = now + settings_.beat_interval;
  Execute(state_.Tick(now));
  if (state_.Working(0)) TakeOverdue(0, Local()->FindOverdue());
  DropSilentStrangers();
  ++sequence_;
  for (auto& [rank, stream] : streams_) {
    JoinResponse message;
    message.mutable_beat()->set_sequence(sequence_);
    stream->Send(std::move(message));
  }
}

void Island::DropSilentStrangers() {
  const absl::Duration oldest = clock_->Monotonic() - settings_.state.silence_timeout;
  for (auto it = strangers_.begin(); it != strangers_.end();) {
    if (it->second < oldest) {
      it->first->Close(absl::DeadlineExceededError("expected a Hello, found silence"), /*at_once=*/true);
      it = strangers_.erase(it);
    } else {
      ++it;
    }
  }
}

void Island::OnStreamMessage(const StreamPtr& stream, const JoinRequest& message) {
  if (strangers_.erase(stream) > 0) {
    const absl::Status admitted = message.has_hello()
                                      ? Admit(stream, message.hello())
                                      : absl::InvalidArgumentError("first message of Join: expected Hello");
    if (!admitted.ok()) {
      spdlog::warn("refused a rank: {}", admitted.ToString());
      stream->Close(admitted, /*at_once=*/false);
    }
    return;
  }
  for (const auto& [rank, known] : streams_) {
    if (known == stream) return OnRankMessage(rank, message);
  }
}

absl::Status Island::Admit(const StreamPtr& stream, const atlpb::island::v1::Hello& hello) {
  if (!SecretsEqual(hello.island_secret(), settings_.secret)) {
    return MakeError(absl::StatusCode::kUnauthenticated, "WRONG_ISLAND_SECRET",
                     fmt::format("rank {} of {} does not know the island's secret", hello.rank(), hello.where()));
  }
  const absl::Duration now = clock_->Monotonic();
  std::vector<RankDevice> devices;
  for (const auto& device : hello.devices()) devices.push_back({.label = device.label(), .id = device.id()});
  // A stream can outlive its process by a moment; the silence finds out.
  const absl::Status joined = state_.Join(hello.rank(), hello.build(), hello.where(), std::move(devices), now);
  if (!joined.ok()) return joined;
  streams_[hello.rank()] = stream;
  JoinResponse welcome;
  {
    absl::MutexLock lock(&mutex_);
    welcome.mutable_welcome()->set_incarnation(incarnation_);
  }
  stream->Send(std::move(welcome));
  spdlog::info("rank {} ({}) joined; {} of {} ranks are there", hello.rank(), hello.where(), state_.Present().size(),
               settings_.state.ranks);
  PublishPresent();
  return absl::OkStatus();
}

void Island::OnStreamClosed(const StreamPtr& stream) {
  strangers_.erase(stream);
  for (const auto& [rank, known] : streams_) {
    if (known == stream) return Drop(rank, absl::UnavailableError("its stream closed"));
  }
}

void Island::Drop(int32_t rank, const absl::Status& reason) {
  const auto it = streams_.find(rank);
  if (it == streams_.end()) return;
  const StreamPtr stream = it->second;
  streams_.erase(it);
  const IslandPhase phase = state_.phase();
  const std::vector<IslandCommand> commands = state_.Left(rank, reason, clock_->Monotonic());
  if (ending_ || state_.LeftWell(rank)) {
    spdlog::info("rank {} has left", rank);
  } else {
    spdlog::warn("lost rank {}: {}; the island was {}", rank, std::string(reason.message()), ToString(phase));
    metrics_->lost_ranks->Increment();
  }
  stream->Close(reason, /*at_once=*/true);
  // Publishes first: the thread that learns of the attempt's end plans the next one for the present ranks.
  PublishPresent();
  Execute(commands);
}

void Island::OnRankMessage(int32_t rank, const JoinRequest& message) {
  const absl::Duration now = clock_->Monotonic();
  state_.Heard(rank, now);
  if (message.has_ready()) {
    Execute(state_.Ready(rank, message.ready().attempt(), message.ready().transport_address(), now));
  } else if (message.has_stage_files()) {
    if (message.stage_files().attempt() == state_.attempt()) events_.stage_files(rank, message.stage_files());
  } else if (message.has_step_done()) {
    if (message.step_done().attempt() == state_.attempt()) events_.step_done(message.step_done());
  } else if (message.has_rank_profile()) {
    if (message.rank_profile().attempt() == state_.attempt()) events_.rank_profile(rank, message.rank_profile());
  } else if (message.has_diverged()) {
    if (message.diverged().attempt() == state_.attempt()) events_.diverged(message.diverged());
  } else if (message.has_beat()) {
    const pb::Overdue& overdue = message.beat().overdue();
    TakeOverdue(rank, message.beat().has_overdue() ? std::optional(RankRunner::OverdueAttempt{
                                                         overdue.attempt(), {overdue.waiting(), overdue.what()}})
                                                   : std::nullopt);
  } else if (message.has_attempt_ended()) {
    OnAttemptEnded(rank, message.attempt_ended());
  } else if (message.has_leave()) {
    spdlog::info("rank {} wants to leave: {}", rank, message.leave().reason());
    state_.Leaving(rank);
    PublishPresent();
    if (state_.Working(rank)) {
      const pb::Leave& leave = message.leave();
      StopOrAbort({.reason = fmt::format("rank {} leaves: {}", rank, leave.reason()),
                   .deadline = leave.has_left() ? clock_->Monotonic() + wire::FromProto(leave.left())
                                                : absl::InfiniteDuration()});
    }
  }
}

void Island::TakeOverdue(int32_t rank, const std::optional<RankRunner::OverdueAttempt>& found) {
  const std::optional<engine::Overdue> overdue = found ? std::optional(found->overdue) : std::nullopt;
  Execute(state_.Beat(rank, found ? found->attempt : state_.attempt(), overdue, clock_->Monotonic()));
}

void Island::OnAttemptEnded(int32_t rank, const atlpb::island::v1::AttemptEnded& ended) {
  const absl::StatusCode code = CodeNamed(ended.code());
  const absl::Status status =
      code == absl::StatusCode::kOk ? absl::OkStatus() : MakeError(code, ended.reason(), ended.message());
  Execute(state_.Ended(rank, ended.attempt(), status, ended.step(), clock_->Monotonic()));
}

void Island::Execute(const std::vector<IslandCommand>& commands) {
  for (const IslandCommand& command : commands) {
    switch (command.kind) {
      case IslandCommand::Kind::kStart: {
        JoinResponse message;
        *message.mutable_start() = start_;
        message.mutable_start()->set_plan_rank(command.plan_rank);
        message.mutable_start()->set_device(command.device);
        if (wire::FromProto(start_.grant().token()) == renewed_) {
          *message.mutable_start()->mutable_grant()->mutable_storage() = StorageOf(start_.grant(), renewed_storage_);
        }
        SendTo(command.rank, std::move(message));
        break;
      }
      case IslandCommand::Kind::kConnect: {
        JoinResponse message;
        message.mutable_connect()->set_attempt(state_.attempt());
        for (const std::string& address : command.addresses) {
          message.mutable_connect()->add_transport_addresses(address);
        }
        SendTo(command.rank, std::move(message));
        break;
      }
      case IslandCommand::Kind::kAbort:
        spdlog::warn("attempt {}: aborting rank {}: {}", state_.attempt(), command.rank,
                     std::string(command.reason.message()));
        SendTo(command.rank, AbortMessage(state_.attempt(), command.reason));
        break;
      case IslandCommand::Kind::kDrop:
        Drop(command.rank, command.reason);
        break;
      case IslandCommand::Kind::kHung:
        spdlog::critical("attempt {}: rank 0 does not end it: {}", state_.attempt(),
                         std::string(command.reason.message()));
        if (events_.hung) events_.hung(command.reason);
        break;
      case IslandCommand::Kind::kFinished:
        Finish({.status = command.reason, .step = command.step});
        break;
    }
  }
}

void Island::SendTo(int32_t rank, JoinResponse message) {
  if (rank == 0) return Local()->Handle(message);
  const auto it = streams_.find(rank);
  if (it != streams_.end()) it->second->Send(std::move(message));
}

void Island::SendToWorking(const JoinResponse& message) {
  for (int32_t rank = 0; rank < settings_.state.ranks; ++rank) {
    if (state_.Working(rank)) SendTo(rank, message);
  }
}

RankRunner* Island::Local() {
  absl::MutexLock lock(&mutex_);
  return local_;
}

void Island::PublishPresent() {
  std::vector<int32_t> present = state_.Present();
  metrics_->present_ranks->Set(static_cast<double>(present.size()));
  absl::MutexLock lock(&mutex_);
  present_ = std::move(present);
}

void Island::Finish(AttemptOutcome outcome) {
  absl::MutexLock lock(&mutex_);
  outcome_ = std::make_unique<AttemptOutcome>(std::move(outcome));
}

}  // namespace atl::worker
