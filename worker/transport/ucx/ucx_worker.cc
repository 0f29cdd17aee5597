#include "worker/transport/ucx/ucx_worker.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "common/base/clock.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"
#include "worker/transport/failures.h"
#include "worker/transport/ucx/ucx_log.h"

namespace atl::transport {
namespace {

// Longest flush of an instance that is destroyed without Abort.
constexpr absl::Duration kFlushPatience = absl::Seconds(2);
// Calls of progress before the progress thread offers the mutex to others.
constexpr int kProgressBatch = 16;
// Batches of progress before a worker is destroyed.
constexpr int kDrainRounds = 64;
// UCX refuses to be armed while a message waits for room at a peer. A peer that makes none (stopped, dead) is asked
// again at this interval after so many fruitless rounds.
constexpr int kFruitlessRounds = 100;
constexpr int kRoomIntervalMs = 1;
constexpr uint64_t kWholeTag = ~uint64_t{0};

absl::Status UcxError(int32_t rank, const char* what, ucs_status_t status) {
  return MakeError(absl::StatusCode::kUnavailable, "TRANSPORT_UCX",
                   fmt::format("rank {}: {} failed: {}", rank, what, ucs_status_string(status)));
}

absl::Status SystemError(int32_t rank, const char* what) {
  return MakeError(absl::StatusCode::kUnavailable, "TRANSPORT_UCX",
                   fmt::format("rank {}: {} failed: {}", rank, what, std::strerror(errno)));
}

absl::Status PeerLost(int32_t rank, int32_t peer, ucs_status_t status) {
  return MakeError(absl::StatusCode::kUnavailable, "TRANSPORT_PEER_LOST",
                   fmt::format("rank {}: rank {} is gone: {}", rank, peer, ucs_status_string(status)));
}

}  // namespace

class UcxWorker::CallerLock {
 public:
  explicit CallerLock(UcxWorker* worker) : lock_(worker->mutex_, std::defer_lock) {
    worker->callers_waiting_.fetch_add(1);
    lock_.lock();
    worker->callers_waiting_.fetch_sub(1);
  }

 private:
  std::unique_lock<std::mutex> lock_;
};

absl::StatusOr<std::unique_ptr<UcxWorker>> UcxWorker::Create(const UcxOptions& options, int32_t rank) {
  std::unique_ptr<UcxWorker> worker(new UcxWorker(rank));
  ATOLL_RETURN_IF_ERROR(worker->Start(options));
  return worker;
}

absl::Status UcxWorker::Start(const UcxOptions& options) {
  RouteUcxLog();
  ATOLL_RETURN_IF_ERROR(StartContext(options));
  ATOLL_RETURN_IF_ERROR(StartWorker());
  ATOLL_RETURN_IF_ERROR(StartWakeups());
  progress_ = std::thread(&UcxWorker::ProgressLoop, this);
  pthread_setname_np(progress_.native_handle(), fmt::format("ucx-{}", rank_).c_str());
  return absl::OkStatus();
}

absl::Status UcxWorker::StartContext(const UcxOptions& options) {
  ucp_config_t* config = nullptr;
  if (const ucs_status_t status = ucp_config_read(nullptr, nullptr, &config); status != UCS_OK) {
    return UcxError(rank_, "reading UCX's configuration", status);
  }
  ucs_status_t status = ucp_config_modify(config, "NET_DEVICES", options.interface.c_str());
  // The configuration already contains the settings of the environment.
  if (status == UCS_OK && std::getenv("UCX_TLS") == nullptr) {
    status = ucp_config_modify(config, "TLS", options.transports.c_str());
  }
  if (status == UCS_OK) {
    ucp_params_t params = {};
    params.field_mask = UCP_PARAM_FIELD_FEATURES;
    params.features = UCP_FEATURE_TAG | UCP_FEATURE_WAKEUP;
    status = ucp_init(&params, config, &context_);
  }
  ucp_config_release(config);
  if (status == UCS_OK) return absl::OkStatus();
  return WithContext(UcxError(rank_, "starting UCX", status),
                     fmt::format("interface '{}', transports '{}'", options.interface, options.transports));
}

absl::Status UcxWorker::StartWorker() {
  ucp_worker_params_t params = {};
  params.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE;
  params.thread_mode = UCS_THREAD_MODE_SERIALIZED;
  if (const ucs_status_t status = ucp_worker_create(context_, &params, &worker_); status != UCS_OK) {
    return UcxError(rank_, "creating UCX's worker", status);
  }
  ucp_address_t* address = nullptr;
  size_t size = 0;
  if (const ucs_status_t status = ucp_worker_get_address(worker_, &address, &size); status != UCS_OK) {
    return UcxError(rank_, "reading the address of UCX's worker", status);
  }
  address_.assign(reinterpret_cast<const char*>(address), size);
  ucp_worker_release_address(worker_, address);
  return absl::OkStatus();
}

absl::Status UcxWorker::StartWakeups() {
  int ucx_fd = -1;
  if (const ucs_status_t status = ucp_worker_get_efd(worker_, &ucx_fd); status != UCS_OK) {
    return UcxError(rank_, "reading UCX's wakeup descriptor", status);
  }
  wake_fd_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  if (wake_fd_ < 0 || epoll_fd_ < 0) return SystemError(rank_, "creating a wakeup descriptor");
  for (const int fd : {ucx_fd, wake_fd_}) {
    epoll_event event = {.events = EPOLLIN, .data = {.fd = fd}};
    if (epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) != 0) return SystemError(rank_, "watching a wakeup descriptor");
  }
  return absl::OkStatus();
}

UcxWorker::~UcxWorker() {
  if (progress_.joinable()) {
    if (failure().ok()) Flush(kFlushPatience);
    Abort(Closed(rank_));
    progress_.join();
  } else {
    TearDown();  // Start failed half-way
  }
  if (epoll_fd_ >= 0) close(epoll_fd_);
  if (wake_fd_ >= 0) close(wake_fd_);
  if (context_ != nullptr) ucp_cleanup(context_);
}

absl::Status UcxWorker::OpenEndpoints(const std::vector<std::string>& addresses) {
  const CallerLock lock(this);
  ATOLL_RETURN_IF_ERROR(failure_);
  endpoints_.resize(addresses.size());  // never again: UCX keeps pointers into it
  for (size_t peer = 0; peer < addresses.size(); ++peer) {
    Endpoint& endpoint = endpoints_[peer];
    endpoint.worker = this;
    endpoint.rank = static_cast<int32_t>(peer);
    ucp_ep_params_t params = {};
    params.field_mask =
        UCP_EP_PARAM_FIELD_REMOTE_ADDRESS | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE | UCP_EP_PARAM_FIELD_ERR_HANDLER;
    params.address = reinterpret_cast<const ucp_address_t*>(addresses[peer].data());
    // Not ..._PEER: it keeps large messages between processes of one host from being read straight out of the sender's
    // memory (cma), and instead feeds them through a queue that a busy sender's progress thread must refill: 12 ms
    // instead of 0.2 ms for 512 KiB. A broken TCP connection is reported in this mode too.
    params.err_mode = UCP_ERR_HANDLING_MODE_NONE;
    params.err_handler = {.cb = &UcxWorker::OnEndpointError, .arg = &endpoint};
    if (const ucs_status_t status = ucp_ep_create(worker_, &params, &endpoint.handle); status != UCS_OK) {
      endpoint.handle = nullptr;
      return UcxError(rank_, fmt::format("opening an endpoint to rank {}", peer).c_str(), status);
    }
  }
  WakeProgressThread();
  return absl::OkStatus();
}

absl::Status UcxWorker::failure() {
  const CallerLock lock(this);
  return failure_;
}

UcxWorker::Pending& UcxWorker::AddPending(const Lane& lane, int32_t peer, size_t bytes) {
  Pending& pending = pending_.emplace_back();
  pending = {.worker = this,
             .operation = std::make_shared<Operation>(),
             .lane = lane,
             .peer = peer,
             .bytes = bytes,
             .self = std::prev(pending_.end())};
  return pending;
}

absl::StatusOr<std::shared_ptr<Operation>> UcxWorker::Send(const Lane& lane, uint64_t tag,
                                                           std::span<const std::byte> bytes) {
  const CallerLock lock(this);
  ATOLL_RETURN_IF_ERROR(failure_);
  const Endpoint& endpoint = endpoints_[lane.to];
  if (!endpoint.lost.ok()) FailLocked(endpoint.lost);
  ATOLL_RETURN_IF_ERROR(failure_);
  Pending& pending = AddPending(lane, lane.to, bytes.size());
  ucp_request_param_t param = {};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
  param.cb.send = &UcxWorker::OnSent;
  param.user_data = &pending;
  return Sent(pending, ucp_tag_send_nbx(endpoint.handle, bytes.data(), bytes.size(), tag, &param));
}

absl::StatusOr<std::shared_ptr<Operation>> UcxWorker::Receive(const Lane& lane, uint64_t tag,
                                                              std::span<std::byte> bytes) {
  const CallerLock lock(this);
  ATOLL_RETURN_IF_ERROR(failure_);
  Pending& pending = AddPending(lane, lane.from, bytes.size());
  const std::shared_ptr<Operation> operation = pending.operation;
  ucp_request_param_t param = {};
  // A receive whose message has already arrived must also call back, from within the post: only the callback receives
  // the message's size (UCX 1.13 leaves recv_info unset).
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FLAG_NO_IMM_CMPL;
  param.cb.recv = &UcxWorker::OnReceived;
  param.user_data = &pending;
  pending.posting = true;
  const ucs_status_ptr_t result = ucp_tag_recv_nbx(worker_, bytes.data(), bytes.size(), tag, kWholeTag, &param);
  pending.posting = false;
  if (!UCS_PTR_IS_PTR(result)) {
    EndReceive(pending, UCS_PTR_STATUS(result), 0);
  } else if (pending.ended_in_post) {
    ucp_request_free(result);
    EndReceive(pending, pending.ended_in_post->status, pending.ended_in_post->found_bytes);
  } else {
    KeepRequest(pending, result);
  }
  // All data that a lost peer sent has arrived: a receive that has not ended by now never will.
  const absl::Status& lost = endpoints_[lane.from].lost;
  if (!lost.ok() && !operation->Done()) FailLocked(lost);
  return operation;
}

std::shared_ptr<Operation> UcxWorker::Sent(Pending& pending, ucs_status_ptr_t result) {
  std::shared_ptr<Operation> operation = pending.operation;
  if (UCS_PTR_IS_PTR(result)) {
    KeepRequest(pending, result);
  } else {
    EndSend(pending, UCS_PTR_STATUS(result));
  }
  return operation;
}

void UcxWorker::KeepRequest(Pending& pending, void* request) {
  pending.request = request;
  // UCX was armed before this post and may owe it progress that no event announces.
  WakeProgressThread();
}

void UcxWorker::Flush(absl::Duration timeout) {
  std::shared_ptr<Operation> operation;
  {
    const CallerLock lock(this);
    if (!failure_.ok()) return;
    Pending& pending = AddPending({}, -1, 0);
    ucp_request_param_t param = {};
    param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA;
    param.cb.send = &UcxWorker::OnSent;
    param.user_data = &pending;
    operation = Sent(pending, ucp_worker_flush_nbx(worker_, &param));
  }
  (void)operation->WaitFor(timeout);
}

void UcxWorker::Abort(const absl::Status& reason) {
  const CallerLock lock(this);
  FailLocked(reason.ok() ? AbortedWithoutReason(rank_) : reason);
}

void UcxWorker::FailLocked(const absl::Status& reason) {
  if (!failure_.ok()) return;
  failure_ = reason;
  WakeProgressThread();
}

void UcxWorker::WakeProgressThread() {
  const uint64_t one = 1;
  (void)!write(wake_fd_, &one, sizeof(one));  // fails only when the counter is full, and then it wakes as well
}

void UcxWorker::OnSent(void* request, ucs_status_t status, void* pending) {
  ucp_request_free(request);
  auto& sent = *static_cast<Pending*>(pending);
  sent.worker->EndSend(sent, status);
}

void UcxWorker::OnReceived(void* request, ucs_status_t status, const ucp_tag_recv_info_t* info, void* pending) {
  auto& received = *static_cast<Pending*>(pending);
  if (received.posting) {
    received.ended_in_post = {.status = status, .found_bytes = info->length};
    return;
  }
  ucp_request_free(request);
  received.worker->EndReceive(received, status, info->length);
}

void UcxWorker::OnEndpointError(void* endpoint, ucp_ep_h /*handle*/, ucs_status_t status) {
  auto& lost = *static_cast<Endpoint*>(endpoint);
  lost.worker->LosePeer(lost, status);
}

void UcxWorker::EndSend(Pending& pending, ucs_status_t status) {
  pending.request = nullptr;
  if (status == UCS_OK) {
    pending.operation->Finish(absl::OkStatus());
    pending_.erase(pending.self);
    return;
  }
  // Failed operations end after the tear-down only, when nothing can touch their buffers any more.
  FailLocked(PeerLost(rank_, pending.peer, status));
}

void UcxWorker::EndReceive(Pending& pending, ucs_status_t status, size_t found_bytes) {
  const bool sizes_differ = status == UCS_ERR_MESSAGE_TRUNCATED || (status == UCS_OK && found_bytes != pending.bytes);
  if (!sizes_differ) return EndSend(pending, status);
  pending.request = nullptr;
  FailLocked(SizeMismatch(pending.lane, pending.bytes, found_bytes));
}

void UcxWorker::LosePeer(Endpoint& endpoint, ucs_status_t status) {
  if (!endpoint.lost.ok()) return;
  endpoint.lost = PeerLost(rank_, endpoint.rank, status);
  const bool needed = std::any_of(pending_.begin(), pending_.end(),
                                  [&endpoint](const Pending& pending) { return pending.peer == endpoint.rank; });
  if (needed) FailLocked(endpoint.lost);
}

bool UcxWorker::ProgressSome() {
  for (int i = 0; i < kProgressBatch; ++i) {
    if (ucp_worker_progress(worker_) == 0) return false;
  }
  return true;
}

UcxWorker::Round UcxWorker::ProgressAndArm() {
  const std::lock_guard lock(mutex_);
  if (!failure_.ok()) return Round::kFailed;
  if (ProgressSome()) return Round::kProgressed;
  const ucs_status_t armed = ucp_worker_arm(worker_);
  if (armed == UCS_OK) return Round::kArmed;
  if (armed == UCS_ERR_BUSY) return Round::kBusy;
  FailLocked(UcxError(rank_, "arming UCX's wakeup descriptor", armed));
  return Round::kFailed;
}

void UcxWorker::ProgressLoop() {
  int fruitless = 0;
  for (Round round; (round = ProgressAndArm()) != Round::kFailed;) {
    fruitless = round == Round::kBusy ? fruitless + 1 : 0;
    if (round == Round::kArmed) {
      SleepUntilEvent(-1);
    } else if (fruitless > kFruitlessRounds) {
      SleepUntilEvent(kRoomIntervalMs);
    } else if (callers_waiting_.load() > 0) {
      std::this_thread::yield();
    }
  }
  const std::lock_guard lock(mutex_);
  TearDown();
}

void UcxWorker::SleepUntilEvent(int timeout_ms) {
  epoll_event events[2];
  (void)epoll_wait(epoll_fd_, events, 2, timeout_ms);  // an interrupted wait is a wakeup like any other
  uint64_t count = 0;
  (void)!read(wake_fd_, &count, sizeof(count));
}

void UcxWorker::TearDown() {
  if (worker_ == nullptr) return;
  for (Pending& pending : pending_) {
    if (pending.request != nullptr) ucp_request_cancel(worker_, pending.request);
  }
  // UCX 1.13 ends the process ("ucs_arbiter_group_is_empty") when an endpoint that copies from a peer's memory is
  // closed with a copy in its queue. Copies need no peer, so that progress empties the queue.
  for (int i = 0; i < kDrainRounds && ProgressSome(); ++i) {
  }
  // Closes the endpoints as well; to close them one by one takes the other error mode, or the peers' help.
  ucp_worker_destroy(worker_);
  worker_ = nullptr;
  for (const Pending& pending : pending_) pending.operation->Finish(failure_);
  pending_.clear();
}

}  // namespace atl::transport
