// One UCX worker with its endpoints and its progress thread: tagged messages between ranks, independent of attempts and
// handshakes.
#pragma once

#include <ucp/api/ucp.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "worker/transport/operation.h"
#include "worker/transport/transport.h"
#include "worker/transport/ucx/ucx_transport.h"

namespace atl::transport {

// Thread-safe: `mutex_` guards every call into UCX (whose worker is created for serialised use by several threads) and
// every non-constant member. Posts run on the caller's thread, so that a message leaves without waiting for another
// thread. All other work runs on the progress thread.
//
// Life: Create -> OpenEndpoints -> posts -> failed (first Abort, error or destruction; final). On failure the progress
// thread cancels pending operations, destroys UCX's worker with its endpoints, and only then ends these operations: no
// thread writes to a buffer whose operation has ended.
class UcxWorker {
 public:
  static absl::StatusOr<std::unique_ptr<UcxWorker>> Create(const UcxOptions& options, int32_t rank);
  // Blocks for at most kFlushPatience until sent data has left this host, unless aborted.
  ~UcxWorker();

  const std::string& address() const { return address_; }

  // Opens one endpoint per rank, including this one. Called once. Does not wait for the peers.
  absl::Status OpenEndpoints(const std::vector<std::string>& addresses);

  // Returns the first failure, or OK.
  absl::Status failure();

  // Post one message. `lane` is for log and error texts. Messages of one tag between two ranks keep their order.
  absl::StatusOr<std::shared_ptr<Operation>> Send(const Lane& lane, uint64_t tag, std::span<const std::byte> bytes);
  absl::StatusOr<std::shared_ptr<Operation>> Receive(const Lane& lane, uint64_t tag, std::span<std::byte> bytes);

  // Waits until sent data has left, at most `timeout`. Returns no error, because it only serves orderly ends.
  void Flush(absl::Duration timeout);

  // Fails all operations with `reason`; the first reason stays.
  void Abort(const absl::Status& reason);

 private:
  struct Ended {
    ucs_status_t status = UCS_OK;
    size_t found_bytes = 0;
  };
  struct Pending {
    UcxWorker* worker = nullptr;
    std::shared_ptr<Operation> operation;
    Lane lane;
    int32_t peer = -1;  // -1: no single one
    size_t bytes = 0;   // expected, of a receive
    void* request = nullptr;
    bool posting = false;  // a receive is being posted; its callback only records the end
    std::optional<Ended> ended_in_post;
    std::list<Pending>::iterator self;
  };
  struct Endpoint {
    UcxWorker* worker = nullptr;
    int32_t rank = 0;
    ucp_ep_h handle = nullptr;
    absl::Status lost;  // OK while the peer is connected
  };
  // Locks mutex_ for a caller other than the progress thread, which yields to it.
  class CallerLock;

  explicit UcxWorker(int32_t rank) : rank_(rank) {}
  absl::Status Start(const UcxOptions& options);
  absl::Status StartContext(const UcxOptions& options);
  absl::Status StartWorker();
  absl::Status StartWakeups();
  void WakeProgressThread();

  // The result of one round of the progress thread.
  enum class Round : uint8_t { kProgressed, kArmed, kBusy, kFailed };
  void ProgressLoop();
  Round ProgressAndArm();
  void SleepUntilEvent(int timeout_ms);

  // These need mutex_.
  bool ProgressSome();
  Pending& AddPending(const Lane& lane, int32_t peer, size_t bytes);
  // Takes the result that UCX returned for a send or a flush.
  std::shared_ptr<Operation> Sent(Pending& pending, ucs_status_ptr_t result);
  void KeepRequest(Pending& pending, void* request);
  void EndSend(Pending& pending, ucs_status_t status);
  void EndReceive(Pending& pending, ucs_status_t status, size_t found_bytes);
  void FailLocked(const absl::Status& reason);
  void LosePeer(Endpoint& endpoint, ucs_status_t status);
  void TearDown();

  static void OnSent(void* request, ucs_status_t status, void* pending);
  static void OnReceived(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info, void* pending);
  static void OnEndpointError(void* endpoint, ucp_ep_h handle, ucs_status_t status);

  const int32_t rank_;
  std::string address_;  // constant after Create
  int wake_fd_ = -1;     // eventfd: posts and Abort wake the progress thread
  int epoll_fd_ = -1;    // wake_fd_ and UCX's wakeup descriptor

  std::mutex mutex_;
  std::atomic<int> callers_waiting_ = 0;  // for mutex_
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;  // null once torn down
  std::vector<Endpoint> endpoints_;
  std::list<Pending> pending_;
  absl::Status failure_;

  std::thread progress_;
};

}  // namespace atl::transport
