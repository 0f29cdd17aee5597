#include "router/engine/encoder.h"

namespace atl::router {

Encoder::Encoder(std::shared_ptr<Inbox> inbox) : inbox_(std::move(inbox)), thread_([this] { Loop(); }) {}

Encoder::~Encoder() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

void Encoder::Start(Job job) {
  auto entry = std::make_unique<Job>(std::move(job));
  absl::MutexLock lock(&mutex_);
  (entry->preview ? previews_ : jobs_).push_back(std::move(entry));
}

void Encoder::Loop() {
  const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return stopping_ || !jobs_.empty() || !previews_.empty();
  };
  while (true) {
    std::unique_ptr<Job> job;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&ready));
      if (stopping_) return;
      std::deque<std::unique_ptr<Job>>& next = jobs_.empty() ? previews_ : jobs_;
      job = std::move(next.front());
      next.pop_front();
    }
    inbox_->Add(EncodedImage{.image = job->image.id,
                             .encoded = FinishImage(job->image, job->model->info, job->format),
                             .preview = job->preview});
  }
}

}  // namespace atl::router
