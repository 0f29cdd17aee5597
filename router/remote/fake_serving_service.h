// For tests: the coordinator's registry of expert servers, with answers set by the test.
#pragma once

#include <optional>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "atoll/serving/v1/serving_service.grpc.pb.h"

namespace atl::router {

// Thread-safe.
class FakeServingService final : public atlpb::serving::v1::ServingService::Service {
 public:
  // Sends the list to all present watchers, and as the first message to new ones.
  void List(const atlpb::serving::v1::WatchServersResponse& list) {
    absl::MutexLock lock(&mutex_);
    list_ = list;
    ++changes_;
  }
  void End() {
    absl::MutexLock lock(&mutex_);
    ending_ = true;
  }
  // Waits for the `index`-th report.
  std::optional<atlpb::serving::v1::ReportRoutingRequest> AwaitReport(size_t index) {
    absl::MutexLock lock(&mutex_);
    const auto came = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return reports_.size() > index; };
    if (!mutex_.AwaitWithTimeout(absl::Condition(&came), absl::Seconds(20))) return std::nullopt;
    return reports_[index];
  }
  size_t reports() {
    absl::MutexLock lock(&mutex_);
    return reports_.size();
  }

  grpc::Status WatchServers(grpc::ServerContext* context, const atlpb::serving::v1::WatchServersRequest*,
                            grpc::ServerWriter<atlpb::serving::v1::WatchServersResponse>* writer) override {
    int64_t sent = 0;
    while (!context->IsCancelled()) {
      atlpb::serving::v1::WatchServersResponse response;
      {
        absl::MutexLock lock(&mutex_);
        const auto changed = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return ending_ || changes_ != sent; };
        if (!mutex_.AwaitWithTimeout(absl::Condition(&changed), absl::Milliseconds(20))) continue;
        if (ending_) return grpc::Status(grpc::StatusCode::UNAVAILABLE, "going away");
        response = list_;
        sent = changes_;
      }
      if (!writer->Write(response)) break;
    }
    return grpc::Status::OK;
  }
  grpc::Status ReportRouting(grpc::ServerContext*, const atlpb::serving::v1::ReportRoutingRequest* request,
                             atlpb::serving::v1::ReportRoutingResponse* response) override {
    absl::MutexLock lock(&mutex_);
    reports_.push_back(*request);
    response->mutable_report_interval()->set_nanos(100'000'000);
    return grpc::Status::OK;
  }

 private:
  absl::Mutex mutex_;
  atlpb::serving::v1::WatchServersResponse list_ ABSL_GUARDED_BY(mutex_);
  int64_t changes_ ABSL_GUARDED_BY(mutex_) = 1;
  std::vector<atlpb::serving::v1::ReportRoutingRequest> reports_ ABSL_GUARDED_BY(mutex_);
  bool ending_ ABSL_GUARDED_BY(mutex_) = false;
};

}  // namespace atl::router
