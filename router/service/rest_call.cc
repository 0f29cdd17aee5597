#include "router/service/rest_call.h"

#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <filesystem>
#include <utility>

#include "absl/time/clock.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"

namespace atl::router {
namespace {

// How often a request looks for itself where this process had no descriptor left to be woken by.
constexpr int kLookMilliseconds = 100;

// 0 for what is no socket of the internet.
int LocalPort(int descriptor) {
  sockaddr_storage local{};
  socklen_t size = sizeof(local);
  if (getsockname(descriptor, reinterpret_cast<sockaddr*>(&local), &size) != 0) return 0;
  if (local.ss_family == AF_INET) return ntohs(reinterpret_cast<const sockaddr_in&>(local).sin_port);
  return local.ss_family == AF_INET6 ? ntohs(reinterpret_cast<const sockaddr_in6&>(local).sin6_port) : 0;
}

bool IsPeer(int descriptor, const std::string& address, const std::string& port) {
  sockaddr_storage peer{};
  socklen_t size = sizeof(peer);
  if (getpeername(descriptor, reinterpret_cast<sockaddr*>(&peer), &size) != 0) return false;
  if (peer.ss_family != AF_INET && peer.ss_family != AF_INET6) return false;
  char host[NI_MAXHOST];
  char service[NI_MAXSERV];
  return getnameinfo(reinterpret_cast<sockaddr*>(&peer), size, host, sizeof(host), service, sizeof(service),
                     NI_NUMERICHOST | NI_NUMERICSERV) == 0 &&
         address == host && port == service;
}

}  // namespace

WakeUp::WakeUp() : descriptor_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {}

WakeUp::~WakeUp() {
  if (descriptor_ >= 0) close(descriptor_);
}

void WakeUp::Set() {
  const uint64_t one = 1;
  // It fails only when the count is at its largest, and then it is set.
  [[maybe_unused]] const ssize_t written = write(descriptor_, &one, sizeof(one));
}

void WakeUp::Clear() {
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t taken = read(descriptor_, &count, sizeof(count));
}

void RestCall::OnPreviews(std::vector<SampledImage> previews) {
  {
    absl::MutexLock lock(&mutex_);
    for (SampledImage& preview : previews) {
      const int32_t index = preview.index;
      previews_[index] = std::move(preview);
    }
  }
  changed_.Set();
}

void RestCall::OnImage(SampledImage image) {
  {
    absl::MutexLock lock(&mutex_);
    previews_.erase(image.index);
    images_.push_back(std::move(image));
  }
  changed_.Set();
}

void RestCall::OnDone(const SampleReport& report) {
  {
    absl::MutexLock lock(&mutex_);
    report_ = report;
    status_ = absl::OkStatus();
  }
  changed_.Set();
}

void RestCall::OnError(const absl::Status& status) {
  {
    absl::MutexLock lock(&mutex_);
    status_ = status;
  }
  changed_.Set();
}

void RestCall::OnNotTaken() {
  OnError(MakeError(absl::StatusCode::kDeadlineExceeded, "RESULTS_NOT_TAKEN",
                    "the images were finished long ago and are still not read: the rest is dropped"));
}

absl::Status RestCall::AwaitDue(int socket, const WakeUp& stop, bool (RestCall::*due)()) {
  pollfd events[] = {{.fd = changed_.descriptor(), .events = POLLIN, .revents = 0},
                     {.fd = stop.descriptor(), .events = POLLIN, .revents = 0},
                     {.fd = socket, .events = POLLRDHUP, .revents = 0}};
  const int wait = changed_.descriptor() < 0 ? kLookMilliseconds : -1;
  while (true) {
    changed_.Clear();
    {
      absl::MutexLock lock(&mutex_);
      if ((this->*due)()) return absl::OkStatus();
    }
    if (events[1].revents != 0) {
      return MakeError(absl::StatusCode::kUnavailable, "DRAINING",
                       "the router is shutting down; send the request to another");
    }
    if (events[2].revents != 0) {
      return MakeError(absl::StatusCode::kCancelled, "REQUEST_CANCELLED", "the caller hung up");
    }
    // The engine ends every request by its deadline.
    poll(events, std::size(events), wait);
  }
}

absl::Status RestCall::Await(int socket, const WakeUp& stop) {
  ATOLL_RETURN_IF_ERROR(AwaitDue(socket, stop, &RestCall::IsOver));
  absl::MutexLock lock(&mutex_);
  return *status_;
}

absl::StatusOr<RestCall::News> RestCall::AwaitNews(int socket, const WakeUp& stop) {
  ATOLL_RETURN_IF_ERROR(AwaitDue(socket, stop, &RestCall::HasNews));
  absl::MutexLock lock(&mutex_);
  if (status_ && !status_->ok()) return *status_;
  News news{.images = std::exchange(images_, {}), .over = status_.has_value()};
  for (auto& [index, preview] : previews_) news.previews.push_back(std::move(preview));
  previews_.clear();
  return news;
}

std::vector<SampledImage> RestCall::TakeImages() {
  absl::MutexLock lock(&mutex_);
  return std::move(images_);
}

SampleReport RestCall::report() {
  absl::MutexLock lock(&mutex_);
  return report_;
}

int FindSocket(const std::string& address, int port, int server_port) {
  const std::string port_text = std::to_string(port);
  std::error_code error;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/fd", error)) {
    const std::string name = entry.path().filename().string();
    int descriptor = -1;
    std::from_chars(name.data(), name.data() + name.size(), descriptor);
    if (LocalPort(descriptor) == server_port && IsPeer(descriptor, address, port_text)) return descriptor;
  }
  return -1;
}

void DrainSocket(int socket, absl::Duration time) {
  if (socket < 0 || shutdown(socket, SHUT_WR) != 0) return;
  const absl::Time end = absl::Now() + time;
  pollfd event{.fd = socket, .events = POLLIN, .revents = 0};
  char discarded[4096];
  while (true) {
    const int64_t left = absl::ToInt64Milliseconds(end - absl::Now());
    if (left <= 0 || poll(&event, 1, static_cast<int>(left)) <= 0) return;
    if (recv(socket, discarded, sizeof(discarded), MSG_DONTWAIT) <= 0) return;
  }
}

}  // namespace atl::router
