// A server stream that always sends the newest state: a change during a write replaces the waiting message, so that a
// slow reader costs one message of memory.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/support/server_callback.h"

namespace atl::coordinator {

// Thread-safe. Keeps itself alive until gRPC releases it; others hold it by shared_ptr. Key distinguishes messages that
// must not replace each other (models of one stream).
template <typename Message>
class StreamWriter : public grpc::ServerWriteReactor<Message>,
                     public std::enable_shared_from_this<StreamWriter<Message>> {
 public:
  // `ended` runs once, on a gRPC thread, after the last message, with the stream's final status; it must not block.
  static std::shared_ptr<StreamWriter> Create(std::function<void(grpc::Status)> ended) {
    auto writer = std::shared_ptr<StreamWriter>(new StreamWriter(std::move(ended)));
    writer->self_ = writer;
    return writer;
  }

  void Send(const std::string& key, Message message) {
    absl::MutexLock lock(&mutex_);
    if (finish_ || finished_) return;
    waiting_[key] = std::move(message);
    Advance();
  }

  // Ends the stream after the waiting messages have been sent.
  void End(grpc::Status status) {
    absl::MutexLock lock(&mutex_);
    if (finish_ || finished_) return;
    finish_ = std::move(status);
    Advance();
  }

  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mutex_);
    writing_ = false;
    if (!ok) {
      waiting_.clear();
      if (!finish_) finish_ = grpc::Status(grpc::StatusCode::CANCELLED, "the reader went away");
    }
    Advance();
  }

  void OnCancel() override {
    absl::MutexLock lock(&mutex_);
    waiting_.clear();
    if (!finish_) finish_ = grpc::Status(grpc::StatusCode::CANCELLED, "the reader went away");
    Advance();
  }

  void OnDone() override {
    grpc::Status status;
    {
      absl::MutexLock lock(&mutex_);
      status = finish_.value_or(grpc::Status::OK);
    }
    ended_(status);
    // The last use: `self` may be the last reference.
    const std::shared_ptr<StreamWriter> self = std::move(self_);
  }

 private:
  explicit StreamWriter(std::function<void(grpc::Status)> ended) : ended_(std::move(ended)) {}

  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (writing_ || finished_) return;
    if (!waiting_.empty()) {
      current_ = std::move(waiting_.begin()->second);
      waiting_.erase(waiting_.begin());
      writing_ = true;
      this->StartWrite(&current_);
    } else if (finish_) {
      finished_ = true;
      this->Finish(*finish_);
    }
  }

  const std::function<void(grpc::Status)> ended_;
  std::shared_ptr<StreamWriter> self_;
  absl::Mutex mutex_;
  std::map<std::string, Message> waiting_ ABSL_GUARDED_BY(mutex_);
  Message current_;  // of the write under way
  bool writing_ ABSL_GUARDED_BY(mutex_) = false;
  std::optional<grpc::Status> finish_ ABSL_GUARDED_BY(mutex_);
  bool finished_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace atl::coordinator
