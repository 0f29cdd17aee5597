// A cloud's metadata server for tests, on its own port: answers as each of the three clouds does, or incorrectly.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/http/http_server.h"
#include "worker/process/spot_notices.h"

namespace atl::worker {

// Thread-safe.
class FakeMetadata : private http::HttpService {
 public:
  // Answers for a machine named "vm7" without a notice.
  explicit FakeMetadata(Cloud cloud) : cloud_(cloud) {
    Quiet();
    server_ = *http::HttpServer::Start({.listen = "127.0.0.1:0", .what = "metadata"}, this);
  }
  ~FakeMetadata() override {
    Release();
    server_.reset();
  }

  std::string url() const { return "http://" + server_->address(); }

  // Answers without a notice.
  void Quiet() {
    switch (cloud_) {
      case Cloud::kAws:
        Answer("/latest/api/token", {200, "token-1"});
        return Answer(kAwsAction, {404, "none"});
      case Cloud::kGcp:
        Answer("/computeMetadata/v1/instance/id", {200, "12345"});
        return Answer(kGcpPreempted, {200, "FALSE"});
      case Cloud::kAzure:
        Answer("/metadata/instance/compute/name", {200, "vm7"});
        return Answer(kAzureEvents, {200, R"({"DocumentIncarnation":1,"Events":[]})"});
    }
  }
  // Announces that the machine ends at `at`; on GCP half a minute after the request.
  void Notice(absl::Time at) {
    const auto text = [&](const char* format) { return absl::FormatTime(format, at, absl::UTCTimeZone()); };
    switch (cloud_) {
      case Cloud::kAws:
        return Answer(kAwsAction,
                      {200, fmt::format(R"({{"action":"terminate","time":"{}"}})", text("%Y-%m-%dT%H:%M:%SZ"))});
      case Cloud::kGcp:
        return Answer(kGcpPreempted, {200, "TRUE"});
      case Cloud::kAzure:
        return Answer(
            kAzureEvents,
            {200, fmt::format(R"({{"Events":[{{"EventType":"Preempt","Resources":["vm7"],"NotBefore":"{}"}}]}})",
                              text("%a, %d %b %Y %H:%M:%S GMT"))});
    }
  }
  // Sets the answer to requests for a notice.
  void AnswerNotices(MetadataAnswer answer) {
    Answer(cloud_ == Cloud::kAws   ? kAwsAction
           : cloud_ == Cloud::kGcp ? kGcpPreempted
                                   : kAzureEvents,
           std::move(answer));
  }
  // Blocks callers from now on, until Release.
  void Hold() {
    absl::MutexLock lock(&mutex_);
    held_ = true;
  }
  void Release() {
    std::vector<std::shared_ptr<http::HttpExchange>> waiting;
    {
      absl::MutexLock lock(&mutex_);
      held_ = false;
      waiting.swap(waiting_);
    }
    for (const auto& exchange : waiting) Respond(exchange.get());
  }

  // Blocks until `count` requests came since the start; returns false after 30 s.
  bool AwaitAsked(int count) {
    absl::MutexLock lock(&mutex_);
    const auto asked = [this, count]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return asked_ >= count; };
    return mutex_.AwaitWithTimeout(absl::Condition(&asked), absl::Seconds(30));
  }
  int asked() {
    absl::MutexLock lock(&mutex_);
    return asked_;
  }

 private:
  static constexpr char kAwsAction[] = "/latest/meta-data/spot/instance-action";
  static constexpr char kGcpPreempted[] = "/computeMetadata/v1/instance/preempted";
  static constexpr char kAzureEvents[] = "/metadata/scheduledevents";

  void Answer(const std::string& path, MetadataAnswer answer) {
    absl::MutexLock lock(&mutex_);
    answers_[path] = std::move(answer);
  }

  // Checks that the request meets the cloud's requirements.
  bool Admits(const http::HttpRequest& request) const {
    switch (cloud_) {
      case Cloud::kAws:
        if (request.path == "/latest/api/token") {
          return request.method == "PUT" && !request.header("x-aws-ec2-metadata-token-ttl-seconds").empty();
        }
        return request.header("x-aws-ec2-metadata-token") == "token-1";
      case Cloud::kGcp:
        return request.header("metadata-flavor") == "Google";
      case Cloud::kAzure:
        return request.header("metadata") == "true";
    }
    return false;
  }

  bool IsGuarded(std::string_view) const override { return false; }
  std::optional<http::HttpResponse> CheckHead(const http::HttpRequest&, size_t*) override { return std::nullopt; }
  http::HttpResponse ErrorResponse(int code, const absl::Status&) const override { return {.code = code}; }

  void Handle(std::shared_ptr<http::HttpExchange> exchange) override {
    {
      absl::MutexLock lock(&mutex_);
      ++asked_;
      if (held_) return waiting_.push_back(std::move(exchange));
    }
    Respond(exchange.get());
  }

  void Respond(http::HttpExchange* exchange) {
    const http::HttpRequest& request = exchange->request();
    if (!Admits(request)) return exchange->Answer({.code = cloud_ == Cloud::kAws ? 401 : 403});
    absl::MutexLock lock(&mutex_);
    const auto it = answers_.find(request.path);
    if (it == answers_.end()) return exchange->Answer({.code = 404});
    exchange->Answer({.code = static_cast<int>(it->second.code), .body = it->second.body});
  }

  const Cloud cloud_;

  absl::Mutex mutex_;
  std::map<std::string, MetadataAnswer> answers_ ABSL_GUARDED_BY(mutex_);
  bool held_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::shared_ptr<http::HttpExchange>> waiting_ ABSL_GUARDED_BY(mutex_);
  int asked_ ABSL_GUARDED_BY(mutex_) = 0;

  std::unique_ptr<http::HttpServer> server_;
};

}  // namespace atl::worker
