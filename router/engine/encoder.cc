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
  absl::MutexLock lock(&mutex_);
  jobs_.push_back(std::make_unique<Job>(std::move(job)));
}

void Encoder::Loop() {
  const auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return stopping_ || !jobs_.empty(); };
  while (true) {
    std::unique_ptr<Job> job;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&ready));
      if (stopping_) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    inbox_->Add(EncodedImage{job->image.id, FinishImage(job->image, job->model->info, job->format)});
  }
}

}  // namespace atl::router
