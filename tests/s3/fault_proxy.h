// A proxy between an S3 client and its server that breaks selected requests.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace atl::testing_s3 {

struct Fault {
  enum class Kind : uint8_t {
    kStatus,      // answers `status` and `body` itself; with an empty body S3's error document of `code`
    kCutRequest,  // breaks the connection after `bytes` of the request's body
    kCutAnswer,   // breaks it after `bytes` of the answer, head and all: 0 loses the answer to what was done
    kSilence,     // takes the request and never answers
  };
  Kind kind = Kind::kStatus;
  std::string method;  // of the requests; empty: all
  std::string target;  // a part of their target; empty: all
  int times = 1;       // how many of them; -1: all
  int status = 503;
  std::string code = "SlowDown";
  int64_t bytes = 0;
  std::string body = {};
};

// Serves one request per connection, as the test's server does. Thread-safe. Failing steps of the harness itself end
// the test process, with their reason.
class FaultProxy {
 public:
  // Forwards to "127.0.0.1:port".
  explicit FaultProxy(int port);
  ~FaultProxy();  // breaks every connection
  FaultProxy(const FaultProxy&) = delete;
  FaultProxy& operator=(const FaultProxy&) = delete;

  int port() const { return port_; }
  // Adds a fault; if several match a request, the first one applies.
  void Add(Fault fault);
  // Ends all faults.
  void Heal();
  // Returns the number of requests so far whose head contains `text`.
  int Requests(const std::string& text) const;

 private:
  struct Connection {
    int client = -1;
    std::thread thread;
  };

  void Accept();
  void Serve(int client);
  bool Choose(const std::string& head, Fault* fault);
  // Relays both ways until an end closes, or `fault` (null: none) breaks the connection.
  void Relay(int client, std::string head, const Fault* fault) const;

  const int server_port_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<bool> stop_ = false;
  mutable absl::Mutex mutex_;
  std::vector<Fault> faults_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> requests_ ABSL_GUARDED_BY(mutex_);
  std::vector<Connection> connections_ ABSL_GUARDED_BY(mutex_);
  std::thread acceptor_;
};

}  // namespace atl::testing_s3
