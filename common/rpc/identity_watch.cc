#include "common/rpc/identity_watch.h"

#include <sys/stat.h>

#include <utility>

#include "absl/time/clock.h"
#include "common/base/errors.h"
#include "common/rpc/authenticator.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "spdlog/spdlog.h"

namespace atl::rpc {

IdentityWatch::IdentityWatch(std::vector<std::string> files, Check check, absl::Time end)
    : files_(std::move(files)), check_(std::move(check)), end_(end), thread_([this] { Run(); }) {}

IdentityWatch::~IdentityWatch() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  thread_.join();
}

absl::Time IdentityWatch::end() const {
  absl::MutexLock lock(&mutex_);
  return end_;
}

void IdentityWatch::Run() {
  // Checked once more: they may have changed since the process read them.
  std::string looked;
  bool good = true;
  absl::Time ends = this->end();
  while (true) {
    const std::string stamp = Stamp();
    absl::Time read = ends;
    const absl::Status status = stamp == looked ? absl::OkStatus() : check_(&read);
    // Files that were swapped meanwhile are looked at again: half of each pair may have been read.
    if (stamp != looked && stamp == Stamp()) {
      looked = stamp;
      ends = read;
      // What was good and is good needs no word.
      if (!status.ok() || !good) Tell(status);
      good = status.ok();
    }
    if (good && ends <= absl::Now()) {
      spdlog::warn("{}: the certificate expired at {}: others refuse connections with it until it is replaced",
                   files_.front(), absl::FormatTime(ends, absl::UTCTimeZone()));
      good = false;
    }
    absl::MutexLock lock(&mutex_);
    end_ = ends;
    if (mutex_.AwaitWithTimeout(absl::Condition(&stopping_), kReloadInterval)) return;
  }
}

std::string IdentityWatch::Stamp() const {
  std::string stamp;
  for (const std::string& file : files_) {
    struct stat info {};
    if (stat(file.c_str(), &info) != 0) info = {};
    stamp += fmt::format("{}:{}:{}.{} ", info.st_ino, info.st_size, info.st_mtim.tv_sec, info.st_mtim.tv_nsec);
  }
  return stamp;
}

void IdentityWatch::Tell(const absl::Status& status) const {
  if (status.ok()) {
    spdlog::info("{} are good again: new connections use them", fmt::join(files_, ", "));
  } else if (ErrorReason(status).starts_with("FILE_")) {
    // gRPC goes on with what it read before.
    spdlog::error("what was read before of {} goes on: {}", fmt::join(files_, ", "), std::string(status.message()));
  } else if (ErrorReason(status) == "CERTIFICATES_CUT") {
    spdlog::error("gRPC ports know only what stands before the break, until {} are good again: {}",
                  fmt::join(files_, ", "), std::string(status.message()));
  } else {
    spdlog::error("gRPC ports take no new connections, and none may be made to others, until {} are good again: {}",
                  fmt::join(files_, ", "), std::string(status.message()));
  }
}

}  // namespace atl::rpc
