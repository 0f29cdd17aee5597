// Watches of jobs and models.
#include <limits>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "coordinator/core/core.h"

namespace atl::coordinator {
namespace {

// The delay before a watch of models reads the store again after an error.
constexpr absl::Duration kReadAgain = absl::Seconds(1);

absl::Status Stopping() {
  return MakeError(absl::StatusCode::kUnavailable, "COORDINATOR_STOPPING", "the coordinator is stopping; try again");
}

}  // namespace

int64_t Core::WatchJob(std::string_view job_id, int64_t after_revision, JobCallback send) {
  const int64_t ticket = next_ticket_++;
  job_callbacks_[ticket] = std::move(send);
  job_watches_.Add(ticket, job_id, after_revision);
  return ticket;
}

int64_t Core::WatchModel(std::string_view name, int64_t after_generation, ModelCallback send) {
  const int64_t ticket = next_ticket_++;
  model_callbacks_[ticket] = std::move(send);
  model_watches_.Add(ticket, name, after_generation);
  return ticket;
}

void Core::CancelWatch(int64_t ticket) {
  job_watches_.Remove(ticket);
  model_watches_.Remove(ticket);
  job_callbacks_.erase(ticket);
  model_callbacks_.erase(ticket);
}

void Core::SendDueWatches() {
  for (WatchList::Watch* watch : job_watches_.TakeDue(Now())) SendJob(*watch);
  for (WatchList::Watch* watch : model_watches_.TakeDue(Now())) SendModel(*watch);
}

void Core::SendJob(WatchList::Watch& watch) {
  absl::StatusOr<JobView> view = GetJob(watch.key);
  const bool last = !view.ok() || jobs::IsFinal(view->record.job.state);
  if (view.ok() && !last) {
    // The first message tells what is new since the caller's revision; a change after that is sent even when it is of
    // progress only.
    const bool first = watch.sent.empty();
    watch.sent[watch.key] = view->record.job.revision;
    if (first && view->record.job.revision <= watch.after) return;
  }
  outbox_.push_back([send = job_callbacks_[watch.ticket], view = std::move(view), last] { send(view, last); });
  if (last) CancelWatch(watch.ticket);  // `watch` is gone
}

absl::StatusOr<std::vector<store::Model>> Core::WatchedModels(const std::string& name) {
  if (name.empty()) return store_.ListModels("", std::numeric_limits<int32_t>::max());
  absl::StatusOr<store::Model> model = store_.GetModel(name);
  if (absl::IsNotFound(model.status())) return std::vector<store::Model>();
  ATOLL_RETURN_IF_ERROR(model.status());
  return std::vector<store::Model>{*std::move(model)};
}

void Core::SendModel(WatchList::Watch& watch) {
  absl::StatusOr<std::vector<store::Model>> models = WatchedModels(watch.key);
  // The change must still be sent, and no further event would trigger it.
  if (!models.ok()) return WatchList::Postpone(watch, Now() + kReadAgain);
  for (store::Model& model : *models) {
    int64_t& sent = watch.sent.try_emplace(model.name, watch.after).first->second;
    if (model.serving.generation <= sent) continue;
    sent = model.serving.generation;
    outbox_.push_back([send = model_callbacks_[watch.ticket], model = std::move(model)] { send(model, false); });
  }
}

void Core::EndAllWaits() {
  while (!claims_.empty()) AnswerClaim(claims_.begin()->first, Stopping());
  for (const auto& [ticket, send] : job_callbacks_) {
    outbox_.push_back([send = send] { send(Stopping(), true); });
  }
  for (const auto& [ticket, send] : model_callbacks_) {
    outbox_.push_back([send = send] { send(Stopping(), true); });
  }
  for (const int64_t ticket : job_watches_.Tickets()) CancelWatch(ticket);
  for (const int64_t ticket : model_watches_.Tickets()) CancelWatch(ticket);
}

}  // namespace atl::coordinator
