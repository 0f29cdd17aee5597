#include "router/engine/engine.h"

#include <algorithm>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"

namespace atl::router {
namespace {

// A request without a deadline, or with a later one, ends after this.
constexpr absl::Duration kMaxRequestTime = absl::Minutes(30);
// The rate of image-steps is taken over so much time or so many steps, whichever comes first.
constexpr absl::Duration kRatePeriod = absl::Seconds(1);
constexpr int64_t kRateSteps = 256;
// Weight of the newest period.
constexpr double kRateSmoothing = 0.3;

absl::Status DrainingStatus() {
  return MakeError(absl::StatusCode::kUnavailable, "DRAINING",
                   "the router is shutting down; send the request to another");
}

enum class LeaveReason { kCancelled, kExpired, kDrained };

absl::Status LeaveStatus(const ActiveRequest& request, LeaveReason reason) {
  int32_t least = static_cast<int32_t>(request.grid.size());
  for (const ActiveImage& image : request.images) least = std::min(least, image.steps_done);
  const std::string where = request.images.empty() ? std::string("in the queue")
                                                   : fmt::format("after step {} of {}", least, request.grid.size());
  if (reason == LeaveReason::kDrained) {
    return MakeError(absl::StatusCode::kUnavailable, "VERSION_DRAINED",
                     fmt::format("version '{}' of model '{}' was replaced and has to go, {}; send the request again",
                                 request.model->info.version, request.model->info.model, where));
  }
  if (reason == LeaveReason::kExpired) {
    return MakeError(absl::StatusCode::kDeadlineExceeded, "DEADLINE_EXPIRED",
                     fmt::format("the request's deadline passed {}", where));
  }
  return MakeError(absl::StatusCode::kCancelled, "REQUEST_CANCELLED",
                   fmt::format("the request was cancelled {}", where));
}

int64_t StepsLeft(const ActiveRequest& request) {
  if (!request.started) {
    return static_cast<int64_t>(request.order.images.size() * request.grid.size());
  }
  int64_t left = 0;
  for (const ActiveImage& image : request.images) left += static_cast<int64_t>(request.grid.size()) - image.steps_done;
  return left;
}

}  // namespace

SampleTicket::~SampleTicket() {
  engine_->Release(id_);
}

Engine::Engine(EngineOptions options, Clock* clock, EngineObserver* observer)
    : options_(std::move(options)), clock_(clock), observer_(observer) {
  dispatcher_ = std::make_unique<Dispatcher>(clock, inbox_, observer);
}

Engine::~Engine() {
  Stop();
}

void Engine::Start() {
  encoder_ = std::make_unique<Encoder>(inbox_);
  thread_ = std::thread([this] { Loop(); });
}

void Engine::Drain(absl::Duration grace) {
  absl::MutexLock lock(&mutex_);
  draining_ = true;
  const auto idle = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return std::none_of(admitted_.begin(), admitted_.end(), [](const auto& entry) { return entry.second.sampling; });
  };
  clock_->AwaitUntil(&mutex_, absl::Condition(&idle), clock_->Monotonic() + grace);
}

void Engine::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    draining_ = true;
    stopping_ = true;
  }
  inbox_->Wake();
  if (thread_.joinable()) thread_.join();
  encoder_.reset();
  std::vector<std::unique_ptr<ActiveRequest>> left = std::move(active_);
  active_.clear();
  flights_.clear();
  dispatcher_.reset();
  {
    absl::MutexLock lock(&mutex_);
    std::move(queue_.begin(), queue_.end(), std::back_inserter(left));
    queue_.clear();
  }
  for (const auto& request : left) End(request.get(), DrainingStatus());
}

void Engine::EndRequestsOn(const std::string& model, const std::string& version) {
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [id, entry] : admitted_) {
      if (entry.sampling && entry.model == model && entry.version == version) drained_.insert(id);
    }
  }
  inbox_->Wake();
}

void Engine::Forget(const ServedVersion& version) {
  absl::MutexLock lock(&mutex_);
  lane_calls_.push_back([version](Dispatcher* dispatcher) { dispatcher->Forget(version); });
}

void Engine::AddLane(std::shared_ptr<ExpertLane> lane) {
  {
    absl::MutexLock lock(&mutex_);
    lane_calls_.push_back([lane = std::move(lane)](Dispatcher* dispatcher) { dispatcher->AddLane(lane); });
  }
  inbox_->Wake();
}

void Engine::RemoveLane(const std::string& name) {
  {
    absl::MutexLock lock(&mutex_);
    lane_calls_.push_back([name](Dispatcher* dispatcher) { dispatcher->RemoveLane(name); });
  }
  inbox_->Wake();
}

int64_t Engine::RequestsOn(const std::string& model, const std::string& version) {
  absl::MutexLock lock(&mutex_);
  return std::count_if(admitted_.begin(), admitted_.end(), [&](const auto& entry) {
    return entry.second.sampling && entry.second.model == model && entry.second.version == version;
  });
}

std::map<std::pair<std::string, std::string>, std::vector<int64_t>> Engine::TakeChosen() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(chosen_, {});
}

bool Engine::takes_requests() {
  absl::MutexLock lock(&mutex_);
  return !draining_ &&
         std::any_of(models_.begin(), models_.end(), [](const auto& entry) { return entry.second.serving != nullptr; });
}

AdmissionState Engine::CurrentState() {
  AdmissionState state{.image_steps_left = image_steps_left_, .time_per_image_step = time_per_image_step_};
  for (const auto& [id, entry] : admitted_) {
    if (entry.joined || !entry.sampling) {
      state.images_in_flight += entry.images;
    } else {
      ++state.queued_requests;
      state.queued_images += entry.images;
      state.queued_init_values += entry.init_values;
    }
  }
  return state;
}

absl::StatusOr<std::unique_ptr<ActiveRequest>> Engine::Reserve(const SampleRequest& request, absl::Duration deadline,
                                                               int64_t* ahead) {
  absl::MutexLock lock(&mutex_);
  if (draining_) return DrainingStatus();
  ATOLL_ASSIGN_OR_RETURN(const std::shared_ptr<const ServedVersion> version, FindVersion(request));
  const SamplerInfo& info = version->info;
  auto active = std::make_unique<ActiveRequest>();
  ATOLL_ASSIGN_OR_RETURN(active->order, ResolveRequest(request, info, options_.limits));
  const auto images = static_cast<int64_t>(active->order.images.size());
  int64_t init_values = 0;
  for (const InitImage& init : request.init_images) init_values += static_cast<int64_t>(init.pixels->size());
  ATOLL_ASSIGN_OR_RETURN(*ahead, Admit(images, init_values, CurrentState(), options_.admission));

  const absl::Duration now = clock_->Monotonic();
  active->id = next_id_++;
  active->grid = active->order.Grid();
  active->model = version;
  active->deadline = std::min(deadline, now + kMaxRequestTime);
  active->submitted = now;
  admitted_[active->id] = {.images = images, .init_values = init_values, .model = info.model, .version = info.version};
  image_steps_left_ += StepsLeft(*active);
  return active;
}

absl::StatusOr<std::unique_ptr<SampleTicket>> Engine::Submit(const SampleRequest& request, absl::Duration deadline,
                                                             std::shared_ptr<SampleEvents> events) {
  int64_t ahead = 0;
  absl::StatusOr<std::unique_ptr<ActiveRequest>> reserved = Reserve(request, deadline, &ahead);
  if (!reserved.ok()) {
    if (observer_ != nullptr) {
      const absl::StatusOr<SamplerInfo> info = Info(request.model);
      observer_->OnRejected(info.ok() ? info->model : "", reserved.status().code());
    }
    return reserved.status();
  }
  std::unique_ptr<ActiveRequest> active = *std::move(reserved);
  auto ticket = std::make_unique<SampleTicket>(this, active->id);
  events->OnQueued(ahead, active->model->info.version);
  active->events = std::move(events);
  {
    absl::MutexLock lock(&mutex_);
    if (!stopping_) queue_.push_back(std::move(active));
  }
  if (active != nullptr) End(active.get(), DrainingStatus());
  inbox_->Wake();
  ReportQueue();
  return ticket;
}

void Engine::Release(int64_t id) {
  {
    // Dropped after the lock: it may be the last reference.
    std::shared_ptr<SampleEvents> events;
    absl::MutexLock lock(&mutex_);
    const auto entry = admitted_.find(id);
    if (entry == admitted_.end()) return;
    entry->second.ticket_held = false;
    events = std::move(entry->second.events);
    if (entry->second.sampling) cancelled_.insert(id);
    ForgetIfOver(id);
  }
  inbox_->Wake();
}

void Engine::ForgetIfOver(int64_t id) {
  const auto entry = admitted_.find(id);
  if (entry == admitted_.end() || entry->second.sampling) return;
  cancelled_.erase(id);
  drained_.erase(id);
  if (!entry->second.ticket_held) admitted_.erase(entry);
}

std::vector<Joining> Engine::Joinable() const {
  if (queue_.empty()) return {};
  int64_t in_flight = 0;
  int64_t beside = 0;
  for (const auto& [id, entry] : admitted_) {
    if (entry.joined) (entry.beside ? beside : in_flight) += entry.images;
  }
  const absl::Duration now = clock_->Monotonic();
  std::vector<QueuedRequest> queued;
  for (const auto& request : queue_) {
    queued.push_back({.images = static_cast<int64_t>(request->order.images.size()),
                      .priority = request->order.priority,
                      .waited = now - request->submitted});
  }
  return ChooseJoining(queued, in_flight, beside, options_.admission);
}

absl::Duration Engine::NextWake() {
  absl::Duration next = dispatcher_->look_again_at();
  for (const auto& request : active_) next = std::min(next, request->deadline);
  absl::MutexLock lock(&mutex_);
  for (const auto& request : queue_) next = std::min(next, request->deadline);
  for (const auto& [id, entry] : admitted_) next = std::min(next, entry.give_up_at);
  return next;
}

void Engine::Loop() {
  while (true) {
    inbox_->Await(clock_, NextWake());
    {
      absl::MutexLock lock(&mutex_);
      if (stopping_) return;
    }
    ApplyLaneCalls();
    TakeIn();
    RemoveLeavers();
    GiveUpDeliveries();
    LetJoin();
    BeginSteps();
    dispatcher_->StartBatches();
    DeliverProgress();
    EndRequests();
    CountSteps();
    ReportQueue();
  }
}

void Engine::ApplyLaneCalls() {
  std::vector<std::function<void(Dispatcher*)>> calls;
  {
    absl::MutexLock lock(&mutex_);
    calls = std::exchange(lane_calls_, {});
  }
  for (const auto& call : calls) call(dispatcher_.get());
}

void Engine::RemoveLeavers() {
  std::vector<std::pair<std::unique_ptr<ActiveRequest>, LeaveReason>> leaving;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Duration now = clock_->Monotonic();
    const auto take = [&](auto& from) {
      for (auto it = from.begin(); it != from.end();) {
        const int64_t id = (*it)->id;
        const bool cancelled = cancelled_.contains(id);
        if (!cancelled && !drained_.contains(id) && now < (*it)->deadline) {
          ++it;
          continue;
        }
        const LeaveReason reason = cancelled               ? LeaveReason::kCancelled
                                   : drained_.contains(id) ? LeaveReason::kDrained
                                                           : LeaveReason::kExpired;
        leaving.emplace_back(std::move(*it), reason);
        it = from.erase(it);
      }
    };
    take(active_);
    take(queue_);
  }
  for (const auto& [request, reason] : leaving) {
    Forget(*request);
    End(request.get(), LeaveStatus(*request, reason));
  }
}

void Engine::GiveUpDeliveries() {
  std::vector<std::shared_ptr<SampleEvents>> given_up;
  {
    absl::MutexLock lock(&mutex_);
    const absl::Duration now = clock_->Monotonic();
    for (auto& [id, entry] : admitted_) {
      if (now < entry.give_up_at) continue;
      entry.give_up_at = absl::InfiniteDuration();
      given_up.push_back(std::move(entry.events));
    }
  }
  for (const auto& events : given_up) events->OnNotTaken();
}

void Engine::LetJoin() {
  const size_t before = active_.size();
  {
    absl::MutexLock lock(&mutex_);
    for (const Joining& joining : Joinable()) {
      std::unique_ptr<ActiveRequest>& request = queue_[joining.queued];
      request->started = clock_->Monotonic();
      admitted_[request->id].joined = true;
      admitted_[request->id].beside = joining.beside;
      ++active_requests_;
      active_.push_back(std::move(request));
    }
    std::erase(queue_, nullptr);
  }
  for (size_t i = before; i < active_.size(); ++i) {
    ActiveRequest& request = *active_[i];
    request.model_key = dispatcher_->KeyOf(*request.model);
    dispatcher_->Join(request.id, request.order.priority, static_cast<int64_t>(request.order.images.size()));
    StartImages(&request);
    for (ActiveImage& image : request.images) {
      image.id = next_image_++;
      flights_[image.id] = {&request, &image};
    }
  }
}

void Engine::BeginSteps() {
  const absl::Duration now = clock_->Monotonic();
  for (const auto& request : active_) {
    if (!request->failure.ok()) continue;
    for (ActiveImage& image : request->images) {
      if (image.step || image.delivering) continue;
      image.step.emplace(request->model->info, request->order, image.order, request->grid[image.steps_done],
                         &image.state);
      image.step_began = now;
      image.asked.clear();
      image.renormalised = false;
      if (image.step->need() == StepNeed::kVelocities) CountChoice(request.get(), &image);
      Proceed({request.get(), &image});
    }
  }
}

void Engine::Proceed(const Flight& flight) {
  ActiveRequest* const request = flight.request;
  ActiveImage* const image = flight.image;
  if (image->step->need() == StepNeed::kFinish) return FinishStep(flight);
  const EvaluationPoint point = image->step->point();
  const SamplerInfo& info = request->model->info;
  const auto ask = [&](int32_t network) {
    const ActiveImage::Asked asked{point.number, network};
    if (std::find(image->asked.begin(), image->asked.end(), asked) != image->asked.end()) return;
    image->asked.push_back(asked);
    Numerics numerics;
    if (request->order.reproducible) {
      Numerics& chosen = request->numerics[network];
      if (chosen.number == 0) chosen = dispatcher_->NumericsFor(request->model_key, network);
      numerics = chosen;
    }
    dispatcher_->Want(request->id, {.image = image->id, .step = image->steps_done, .point = point.number},
                      {.model = request->model_key,
                       .network = network,
                       .channels = info.channels,
                       .height = info.height,
                       .width = info.width,
                       .guided = point.guided,
                       .reproducible = request->order.reproducible,
                       .numerics = numerics.number},
                      &*image->step);
  };
  if (image->step->need() == StepNeed::kPosterior) return ask(kRouterNetwork);
  for (const int32_t expert : image->step->awaited()) ask(expert);
}

bool Engine::TakeIn() {
  Inbox::Content content = inbox_->Take();
  for (LaneAnswer& answer : content.answers) {
    if (const std::optional<FinishedCall> call = dispatcher_->TakeAnswer(std::move(answer))) TakeCall(*call);
  }
  const std::vector<FinishedCall> lost = dispatcher_->TakeLost();
  for (const FinishedCall& call : lost) TakeCall(call);
  for (EncodedImage& image : content.images) {
    const auto flight = flights_.find(image.image);
    if (flight == flights_.end()) continue;
    if (image.preview) {
      TakePreview(flight->second, std::move(image.encoded));
    } else {
      DeliverImage(flight->second.request, image.image, std::move(image.encoded));
    }
  }
  return !content.answers.empty() || !content.images.empty() || !lost.empty();
}

void Engine::TakeCall(const FinishedCall& call) {
  for (size_t row = 0; row < call.askers.size(); ++row) {
    const Asker& asker = call.askers[row];
    const auto found = flights_.find(asker.image);
    if (found == flights_.end()) continue;  // it has left
    const Flight flight = found->second;
    if (!flight.image->step || flight.image->steps_done != asker.step || !flight.request->failure.ok()) continue;
    if (call.answer.ok()) {
      TakeRow(call, row, flight);
      if (asker.failures > 0) ++flight.request->routing.failovers;
    } else {
      TakeLoss(call, flight);
    }
    if (flight.request->failure.ok()) Proceed(flight);
  }
}

void Engine::TakeRow(const FinishedCall& call, size_t row, const Flight& flight) {
  ActiveRequest* request = flight.request;
  if (request->order.reproducible) {
    Numerics& chosen = request->numerics[call.key.network];
    // Where no lane could be chosen the first answer chooses.
    if (chosen.number == 0 && chosen.fingerprint.empty()) chosen.fingerprint = call.answer->fingerprint;
    if (call.answer->fingerprint != chosen.fingerprint) {
      request->failure = MakeError(
          absl::StatusCode::kUnavailable, "NUMERICS_CHANGED",
          fmt::format("expected answers of '{}' to a reproducible request, found one of '{}'; send the request again",
                      chosen.fingerprint, call.answer->fingerprint));
      return;
    }
  }
  if (call.key.network == kRouterNetwork) return TakePosterior(call, row, flight);
  const auto pixels = static_cast<size_t>(flight.request->model->info.pixels());
  const std::span<const float> values = call.answer->values;
  const size_t null_row = call.key.guided ? call.askers.size() + row : row;
  flight.image->step->TakeVelocity(call.askers[row].point, call.key.network, values.subspan(row * pixels, pixels),
                                   values.subspan(null_row * pixels, pixels));
}

void Engine::TakeLoss(const FinishedCall& call, const Flight& flight) {
  const auto& [request, image] = flight;
  const absl::Status& why = call.answer.status();
  const int32_t expert = call.key.network;
  const std::string reason = ErrorReason(why);
  const bool lost = reason == "EXPERT_LOST";
  if (!lost || !request->order.allow_expert_loss || expert == kRouterNetwork) {
    // These name the network by themselves.
    request->failure =
        lost || reason == "NUMERICS_CHANGED"
            ? why
            : WithContext(why, expert == kRouterNetwork ? "router network" : fmt::format("expert {}", expert));
    return;
  }
  const size_t drawing = image->step->choice().experts.size();
  request->failure = image->step->LoseExpert(expert, why);
  if (!request->failure.ok() || image->step->choice().experts.size() == drawing) return;
  dispatcher_->Retract(image->id, image->step->point().number);
  if (!std::exchange(image->renormalised, true)) ++request->routing.renormalised_image_steps;
  request->routing.lost_experts.insert(expert);
}

void Engine::TakePosterior(const FinishedCall& call, size_t row, const Flight& flight) {
  const auto& [request, image] = flight;
  if (image->step->need() != StepNeed::kPosterior) return;
  const auto experts = static_cast<size_t>(request->model->info.experts);
  if (call.answer->values.size() != experts * call.askers.size()) {
    request->failure = MakeError(absl::StatusCode::kInternal, "NETWORK_FAILED",
                                 fmt::format("router network: expected {} probabilities for each of {} rows, found {} "
                                             "numbers",
                                             experts, call.askers.size(), call.answer->values.size()));
    return;
  }
  const std::span<const float> posterior = std::span(call.answer->values).subspan(row * experts, experts);
  request->failure = image->step->TakePosterior(posterior);
  if (!request->failure.ok()) return;
  CountChoice(request, image);
  ++request->routing.routed_image_steps;
  request->routing.entropy_sum += Entropy(posterior);
}

// Counts the chosen experts, lost or not: this load decides how experts are placed.
void Engine::CountChoice(ActiveRequest* request, ActiveImage* image) {
  const ExpertChoice& choice = image->step->choice();
  const SamplerInfo& info = request->model->info;
  absl::MutexLock lock(&mutex_);
  std::vector<int64_t>& chosen = chosen_[{info.model, info.version}];
  chosen.resize(static_cast<size_t>(info.experts));
  for (const ExpertWeight& expert : choice.experts) ++chosen[static_cast<size_t>(expert.expert)];
}

void Engine::FinishStep(const Flight& flight) {
  const auto& [request, image] = flight;
  // Now, when it is known which of the chosen experts were lost.
  request->routing.Count(image->step->choice(), &image->experts);
  image->step->Finish();
  image->step.reset();
  ++image->steps_done;
  ++request->steps_taken;
  ++steps_in_busy_time_;
  if (observer_ != nullptr) {
    observer_->OnImageStep(request->model->info.model, clock_->Monotonic() - image->step_began);
  }
  if (image->steps_done == static_cast<int32_t>(request->grid.size())) image->delivering = true;
}

void Engine::EndRequests() {
  std::erase_if(active_, [this](const auto& request) {
    if (request->failure.ok()) StartDelivery(request.get());
    if (request->failure.ok() && !request->images.empty()) return false;
    Forget(*request);
    End(request.get(), request->failure);
    return true;
  });
}

void Engine::Forget(const ActiveRequest& request) {
  dispatcher_->Leave(request.id);
  for (const ActiveImage& image : request.images) flights_.erase(image.id);
}

void Engine::CountSteps() {
  const absl::Duration now = clock_->Monotonic();
  if (busy_) busy_time_ += now - counted_at_;
  counted_at_ = now;
  busy_ = !active_.empty();
  int64_t steps = 0;
  for (const auto& request : active_) steps += std::exchange(request->steps_taken, 0);
  absl::MutexLock lock(&mutex_);
  image_steps_left_ -= steps;
  if (steps_in_busy_time_ == 0 || (busy_time_ < kRatePeriod && steps_in_busy_time_ < kRateSteps)) return;
  const absl::Duration measured = busy_time_ / steps_in_busy_time_;
  time_per_image_step_ = time_per_image_step_ == absl::ZeroDuration()
                             ? measured
                             : time_per_image_step_ * (1 - kRateSmoothing) + measured * kRateSmoothing;
  busy_time_ = absl::ZeroDuration();
  steps_in_busy_time_ = 0;
}

void Engine::End(ActiveRequest* request, const absl::Status& status) {
  const absl::Duration now = clock_->Monotonic();
  const bool joined = request->started.has_value();
  RequestStats stats{.model = request->model->info.model,
                     .outcome = status.code(),
                     .images = static_cast<int64_t>(request->order.images.size()),
                     .queue_time = request->started.value_or(now) - request->submitted,
                     .sample_time = joined ? now - *request->started : absl::ZeroDuration(),
                     .routing = request->routing,
                     .first_image_time = request->first_image.value_or(now) - request->submitted};
  if (!status.ok()) stats.images = joined ? stats.images - static_cast<int64_t>(request->images.size()) : 0;
  if (observer_ != nullptr) observer_->OnRequestEnd(stats);
  if (status.ok()) {
    request->events->OnDone({.routing = request->routing,
                             .queue_time = stats.queue_time,
                             .sample_time = stats.sample_time,
                             .version = request->model->info.version,
                             .first_image_time = stats.first_image_time,
                             .fingerprint = DescribeNumerics(request->numerics)});
  } else {
    request->events->OnError(status);
  }
  // This comes last, so that all events are delivered before the engine counts as idle.
  absl::MutexLock lock(&mutex_);
  image_steps_left_ -= StepsLeft(*request) + std::exchange(request->steps_taken, 0);
  if (joined) --active_requests_;
  Admitted& admitted = admitted_[request->id];
  admitted.sampling = false;
  if (admitted.ticket_held) {
    admitted.events = request->events;
    admitted.give_up_at = now + options_.max_delivery_time;
  }
  ForgetIfOver(request->id);
}

void Engine::ReportQueue() {
  if (observer_ == nullptr) return;
  QueueStats stats;
  {
    absl::MutexLock lock(&mutex_);
    const AdmissionState state = CurrentState();
    stats = {.queued_requests = state.queued_requests,
             .queued_images = state.queued_images,
             .images_in_flight = state.images_in_flight};
  }
  observer_->OnQueue(stats);
}

}  // namespace atl::router
