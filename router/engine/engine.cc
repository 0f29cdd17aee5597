#include "router/engine/engine.h"

#include <algorithm>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"
#include "router/policy/step_batching.h"

namespace atl::router {
namespace {

// Weight of the newest tick in the running cost per image and step.
constexpr double kCostSmoothing = 0.1;

absl::Status DrainingStatus() {
  return MakeError(absl::StatusCode::kUnavailable, "DRAINING",
                   "the router is shutting down; send the request to another");
}

absl::Status LeaveStatus(const ActiveRequest& request, bool expired) {
  int32_t least = static_cast<int32_t>(request.grid.size());
  for (const ActiveImage& image : request.images) least = std::min(least, image.steps_done);
  const std::string where = request.images.empty() ? std::string("in the queue")
                                                   : fmt::format("after step {} of {}", least, request.grid.size());
  if (expired) {
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
    : options_(std::move(options)), clock_(clock), observer_(observer) {}

Engine::~Engine() {
  Stop();
}

void Engine::Start() {
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
  if (thread_.joinable()) thread_.join();
  std::vector<std::unique_ptr<ActiveRequest>> left = std::move(active_);
  active_.clear();
  {
    absl::MutexLock lock(&mutex_);
    std::move(queue_.begin(), queue_.end(), std::back_inserter(left));
    queue_.clear();
  }
  for (const auto& request : left) End(request.get(), DrainingStatus());
}

void Engine::Serve(std::shared_ptr<ModelBackend> model) {
  const std::string name = model->info().model;
  // The replaced backend is dropped after the lock: it may be the last reference to gigabytes.
  ServedModel replaced;
  absl::MutexLock lock(&mutex_);
  ServedModel& served = models_[name];
  replaced = std::exchange(served, ServedModel{std::move(model), next_model_key_++});
}

int64_t Engine::RequestsOn(const std::string& model, const std::string& version) {
  absl::MutexLock lock(&mutex_);
  return std::count_if(admitted_.begin(), admitted_.end(), [&](const auto& entry) {
    return entry.second.sampling && entry.second.model == model && entry.second.version == version;
  });
}

absl::StatusOr<Engine::ServedModel> Engine::FindModel(const std::string& name) {
  if (models_.empty()) {
    return MakeError(absl::StatusCode::kFailedPrecondition, "NO_MODEL",
                     "no model version is served yet; publish one, or wait until it is loaded");
  }
  if (name.empty() && models_.size() == 1) return models_.begin()->second;
  const auto found = models_.find(name);
  if (found != models_.end()) return found->second;
  std::string known;
  for (const auto& [served, entry] : models_) known += (known.empty() ? "'" : ", '") + served + "'";
  if (name.empty()) {
    return FieldError("model", "MODEL_REQUIRED", fmt::format("expected one of {}, found none named", known));
  }
  return MakeErrorWithField(absl::StatusCode::kNotFound, "UNKNOWN_MODEL", "model",
                            fmt::format("model: expected one of {}, found '{}'", known, name));
}

absl::StatusOr<SamplerInfo> Engine::Info(const std::string& model) {
  absl::MutexLock lock(&mutex_);
  ATOLL_ASSIGN_OR_RETURN(const ServedModel served, FindModel(model));
  return served.backend->info();
}

std::vector<SamplerInfo> Engine::Served() {
  absl::MutexLock lock(&mutex_);
  std::vector<SamplerInfo> served;
  for (const auto& [name, model] : models_) served.push_back(model.backend->info());
  return served;
}

bool Engine::serves_any() {
  absl::MutexLock lock(&mutex_);
  return !models_.empty();
}

bool Engine::has_leavers() {
  absl::MutexLock lock(&mutex_);
  return !cancelled_.empty();
}

size_t Engine::waiting_requests() {
  absl::MutexLock lock(&mutex_);
  return queue_.size();
}

AdmissionState Engine::CurrentState() {
  AdmissionState state{.image_steps_left = image_steps_left_, .time_per_image_step = time_per_image_step_};
  for (const auto& [id, entry] : admitted_) {
    if (entry.joined || !entry.sampling) {
      state.images_in_flight += entry.images;
    } else {
      ++state.queued_requests;
      state.queued_images += entry.images;
    }
  }
  return state;
}

absl::StatusOr<std::unique_ptr<ActiveRequest>> Engine::Reserve(const SampleRequest& request, absl::Duration deadline,
                                                               AdmissionDecision* decision) {
  absl::MutexLock lock(&mutex_);
  if (draining_) return DrainingStatus();
  ATOLL_ASSIGN_OR_RETURN(const ServedModel served, FindModel(request.model));
  const SamplerInfo& info = served.backend->info();
  if (!request.version.empty() && request.version != info.version) {
    return MakeErrorWithField(absl::StatusCode::kNotFound, "UNKNOWN_VERSION", "version",
                              fmt::format("version: expected none or '{}', which model '{}' serves, found '{}'",
                                          info.version, info.model, request.version));
  }
  auto active = std::make_unique<ActiveRequest>();
  ATOLL_ASSIGN_OR_RETURN(active->order, ResolveRequest(request, info, options_.limits));
  const auto images = static_cast<int64_t>(active->order.images.size());
  *decision = Admit(images, CurrentState(), options_.admission);
  if (!decision->admitted) return RejectionStatus(*decision);

  const absl::Duration now = clock_->Monotonic();
  active->id = next_id_++;
  active->grid = active->order.Grid();
  active->model = served.backend;
  active->model_key = served.key;
  active->deadline = std::min(deadline, now + options_.max_request_time);
  active->submitted = now;
  admitted_[active->id] = {.images = images, .model = info.model, .version = info.version};
  image_steps_left_ += StepsLeft(*active);
  return active;
}

absl::StatusOr<std::unique_ptr<SampleTicket>> Engine::Submit(const SampleRequest& request, absl::Duration deadline,
                                                             std::shared_ptr<SampleEvents> events) {
  AdmissionDecision decision;
  absl::StatusOr<std::unique_ptr<ActiveRequest>> reserved = Reserve(request, deadline, &decision);
  if (!reserved.ok()) {
    if (observer_ != nullptr) {
      const absl::StatusOr<SamplerInfo> info = Info(request.model);
      observer_->OnRejected(info.ok() ? info->model : "", reserved.status().code());
    }
    return reserved.status();
  }
  std::unique_ptr<ActiveRequest> active = *std::move(reserved);
  auto ticket = std::make_unique<SampleTicket>(this, active->id);
  events->OnQueued(decision.position, active->model->info().version);
  active->events = std::move(events);
  {
    absl::MutexLock lock(&mutex_);
    if (!stopping_) queue_.push_back(std::move(active));
  }
  if (active != nullptr) End(active.get(), DrainingStatus());
  ReportQueue();
  return ticket;
}

void Engine::Release(int64_t id) {
  absl::MutexLock lock(&mutex_);
  const auto entry = admitted_.find(id);
  if (entry == admitted_.end()) return;
  entry->second.ticket_held = false;
  if (entry->second.sampling) cancelled_.insert(id);
  ForgetIfOver(id);
}

void Engine::ForgetIfOver(int64_t id) {
  const auto entry = admitted_.find(id);
  if (entry == admitted_.end() || entry->second.sampling) return;
  cancelled_.erase(id);
  if (!entry->second.ticket_held) admitted_.erase(entry);
}

size_t Engine::Joinable() const {
  int64_t in_flight = 0;
  for (const auto& [id, entry] : admitted_) in_flight += entry.joined ? entry.images : 0;
  std::vector<int64_t> queued;
  for (const auto& request : queue_) queued.push_back(static_cast<int64_t>(request->order.images.size()));
  return CountJoining(queued, in_flight, options_.admission);
}

bool Engine::HasWork() const {
  return active_requests_ > 0 || !cancelled_.empty() || Joinable() > 0;
}

absl::Duration Engine::EarliestQueuedDeadline() const {
  absl::Duration earliest = absl::InfiniteDuration();
  for (const auto& request : queue_) earliest = std::min(earliest, request->deadline);
  return earliest;
}

void Engine::Loop() {
  while (true) {
    {
      absl::MutexLock lock(&mutex_);
      const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || HasWork(); };
      clock_->AwaitUntil(&mutex_, absl::Condition(&ready), EarliestQueuedDeadline());
      if (stopping_) return;
    }
    RunTick();
  }
}

bool Engine::RunTick() {
  ++tick_;
  RemoveLeavers();
  LetJoin();
  const absl::Duration start = clock_->Monotonic();
  const StepStats step = StepSome();
  const absl::Duration duration = clock_->Monotonic() - start;
  if (step.images > 0) {
    absl::MutexLock lock(&mutex_);
    const absl::Duration cost = duration / step.images;
    time_per_image_step_ = time_per_image_step_ == absl::ZeroDuration()
                               ? cost
                               : time_per_image_step_ * (1 - kCostSmoothing) + cost * kCostSmoothing;
    for (const auto& request : active_) image_steps_left_ -= std::exchange(request->steps_taken, 0);
  }
  if (observer_ != nullptr && step.images > 0) observer_->OnTick({.duration = duration, .step = step});
  DeliverProgress();
  std::erase_if(active_, [this](const auto& request) { return DeliverImages(request.get()); });
  ReportQueue();
  absl::MutexLock lock(&mutex_);
  return HasWork();
}

void Engine::RemoveLeavers() {
  std::vector<std::pair<std::unique_ptr<ActiveRequest>, bool>> leaving;  // with whether it expired
  {
    absl::MutexLock lock(&mutex_);
    std::vector<FlightRequest> requests;
    const auto add = [&](const ActiveRequest& request) {
      requests.push_back(
          {.request = request.id, .cancelled = cancelled_.contains(request.id), .deadline = request.deadline});
    };
    for (const auto& request : active_) add(*request);
    for (const auto& request : queue_) add(*request);
    for (const Departure& departure : Departures(clock_->Monotonic(), requests)) {
      const auto take = [&](auto& from) {
        const auto it = std::find_if(from.begin(), from.end(),
                                     [&](const auto& request) { return request->id == departure.request; });
        if (it == from.end()) return;
        leaving.emplace_back(std::move(*it), departure.expired);
        from.erase(it);
      };
      take(active_);
      take(queue_);
    }
  }
  for (const auto& [request, expired] : leaving) End(request.get(), LeaveStatus(*request, expired));
}

void Engine::LetJoin() {
  const size_t before = active_.size();
  {
    absl::MutexLock lock(&mutex_);
    for (size_t joining = Joinable(); joining > 0; --joining) {
      queue_.front()->started = clock_->Monotonic();
      admitted_[queue_.front()->id].joined = true;
      ++active_requests_;
      active_.push_back(std::move(queue_.front()));
      queue_.pop_front();
    }
  }
  for (size_t i = before; i < active_.size(); ++i) StartImages(active_[i].get(), tick_);
}

StepStats Engine::StepSome() {
  std::vector<FlightImage> flight;
  std::vector<StepItem> all;
  for (const auto& request : active_) {
    for (ActiveImage& image : request->images) {
      flight.push_back({.request = request->id, .last_tick = image.last_tick});
      all.push_back({request.get(), &image});
    }
  }
  std::vector<StepItem> items;
  for (const size_t i : PickImages(flight, options_.max_images_per_tick)) {
    items.push_back(all[i]);
    all[i].image->last_tick = tick_;
  }
  if (items.empty()) return {};
  return StepImages(items, options_.max_rows_per_batch);
}

void Engine::DeliverProgress() {
  for (const auto& request : active_) {
    if (!request->failure.ok()) continue;
    int32_t least = static_cast<int32_t>(request->grid.size());
    for (const ActiveImage& image : request->images) least = std::min(least, image.steps_done);
    if (least == request->reported_step) continue;
    request->reported_step = least;
    request->events->OnProgress(least, static_cast<int32_t>(request->grid.size()));
    if (std::vector<SampledImage> previews = TakePreviews(request.get()); !previews.empty()) {
      request->events->OnPreviews(std::move(previews));
    }
  }
}

bool Engine::DeliverImages(ActiveRequest* request) {
  const auto finished = [&](const ActiveImage& image) {
    return image.steps_done == static_cast<int32_t>(request->grid.size());
  };
  for (const ActiveImage& image : request->images) {
    if (!request->failure.ok()) break;
    if (!finished(image)) continue;
    absl::StatusOr<SampledImage> sampled = FinishImage(image, request->model->info(), request->order.format);
    if (sampled.ok()) {
      if (!request->first_image) request->first_image = clock_->Monotonic();
      request->events->OnImage(*std::move(sampled));
    } else {
      request->failure = sampled.status();
    }
  }
  if (!request->failure.ok()) {
    End(request, request->failure);
    return true;
  }
  std::erase_if(request->images, finished);
  if (!request->images.empty()) return false;
  End(request, absl::OkStatus());
  return true;
}

void Engine::End(ActiveRequest* request, const absl::Status& status) {
  const absl::Duration now = clock_->Monotonic();
  const bool joined = request->started.has_value();
  RequestStats stats{.model = request->model->info().model,
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
                             .version = request->model->info().version,
                             .first_image_time = stats.first_image_time});
  } else {
    request->events->OnError(status);
  }
  // Last, so that whoever waits for the engine to be idle finds every event delivered.
  absl::MutexLock lock(&mutex_);
  image_steps_left_ -= StepsLeft(*request);
  if (joined) --active_requests_;
  admitted_[request->id].sampling = false;
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
