// A cloud's metadata server for tests, on a port of its own choice: answers as all three clouds do, or as none should.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "CivetServer.h"
#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "worker/service/spot_notices.h"

namespace atl::worker {

// Thread-safe.
class FakeMetadata {
 public:
  // Of a machine named "vm7" that nobody wants back.
  explicit FakeMetadata(Cloud cloud) : cloud_(cloud) {
    Quiet();
    server_.addHandler("**", handler_);
  }
  ~FakeMetadata() {
    Release();
    server_.close();
  }

  std::string url() { return fmt::format("http://127.0.0.1:{}", server_.getListeningPorts().at(0)); }

  // No notice.
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
  // The machine goes at `at`; on GCP half a minute after it was asked.
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
  // To whoever asks for a notice.
  void AnswerNotices(MetadataAnswer answer) {
    Answer(cloud_ == Cloud::kAws   ? kAwsAction
           : cloud_ == Cloud::kGcp ? kGcpPreempted
                                   : kAzureEvents,
           std::move(answer));
  }
  // From now on callers wait, until Release.
  void Hold() {
    absl::MutexLock lock(&mutex_);
    held_ = true;
  }
  void Release() {
    absl::MutexLock lock(&mutex_);
    held_ = false;
  }

  // Blocks until so many requests came since the start; false after 30 s.
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

  class Handler : public CivetHandler {
   public:
    explicit Handler(FakeMetadata* owner) : owner_(owner) {}
    bool handleGet(CivetServer*, mg_connection* connection) override { return owner_->Handle(connection, false); }
    bool handlePut(CivetServer*, mg_connection* connection) override { return owner_->Handle(connection, true); }

   private:
    FakeMetadata* const owner_;
  };

  void Answer(const std::string& path, MetadataAnswer answer) {
    absl::MutexLock lock(&mutex_);
    answers_[path] = std::move(answer);
  }

  // What each cloud asks of its callers.
  bool Admits(mg_connection* connection, const std::string& path, bool put) const {
    const auto header = [&](const char* name) {
      const char* value = mg_get_header(connection, name);
      return std::string(value == nullptr ? "" : value);
    };
    switch (cloud_) {
      case Cloud::kAws:
        if (path == "/latest/api/token") return put && !header("X-aws-ec2-metadata-token-ttl-seconds").empty();
        return header("X-aws-ec2-metadata-token") == "token-1";
      case Cloud::kGcp:
        return header("Metadata-Flavor") == "Google";
      case Cloud::kAzure:
        return header("Metadata") == "true";
    }
    return false;
  }

  bool Handle(mg_connection* connection, bool put) {
    const std::string path = mg_get_request_info(connection)->local_uri;
    MetadataAnswer answer{404, ""};
    {
      absl::MutexLock lock(&mutex_);
      ++asked_;
      const auto released = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !held_; };
      mutex_.Await(absl::Condition(&released));
      const auto it = answers_.find(path);
      if (it != answers_.end()) answer = it->second;
    }
    if (!Admits(connection, path, put)) answer = {cloud_ == Cloud::kAws ? 401 : 403, ""};
    mg_printf(connection, "HTTP/1.1 %d X\r\nContent-Length: %zu\r\nConnection: close\r\n\r\n", answer.code,
              answer.body.size());
    mg_write(connection, answer.body.data(), answer.body.size());
    return true;
  }

  const Cloud cloud_;
  Handler handler_{this};

  absl::Mutex mutex_;
  std::map<std::string, MetadataAnswer> answers_ ABSL_GUARDED_BY(mutex_);
  bool held_ ABSL_GUARDED_BY(mutex_) = false;
  int asked_ ABSL_GUARDED_BY(mutex_) = 0;

  CivetServer server_{std::vector<std::string>{"listening_ports", "127.0.0.1:0", "num_threads", "4"}};
};

}  // namespace atl::worker
