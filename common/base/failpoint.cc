#include "common/base/failpoint.h"

#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include <unistd.h>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"

namespace atl {
namespace {

enum class Action { kKill, kError, kDelay };

const char* NameOf(Action action) {
  switch (action) {
    case Action::kKill:
      return "kill";
    case Action::kError:
      return "error";
    case Action::kDelay:
      return "delay";
  }
  return "";
}

struct Fault {
  std::string name;  // with a * at its end: every name that starts so
  Action action = Action::kKill;
  absl::StatusCode code = absl::StatusCode::kUnavailable;
  absl::Duration delay;
  int64_t first = 1;
  bool on = true;  // also after `first`
  int64_t reached = 0;
};

bool Fits(std::string_view pattern, std::string_view name) {
  if (!pattern.ends_with('*')) return pattern == name;
  pattern.remove_suffix(1);
  return name.starts_with(pattern);
}

absl::Status Unreadable(absl::string_view text, absl::string_view why) {
  return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_FAILPOINT",
                   fmt::format("expected name=kill|error[:CODE]|delay:DURATION[@n[+]], found '{}': {}",
                               std::string(text), std::string(why)));
}

absl::StatusOr<absl::StatusCode> CodeByName(absl::string_view name) {
  for (int code = 1; code <= 16; ++code) {
    if (absl::StatusCodeToString(static_cast<absl::StatusCode>(code)) == name)
      return static_cast<absl::StatusCode>(code);
  }
  return absl::InvalidArgumentError(fmt::format("no canonical code is named '{}'", std::string(name)));
}

absl::StatusOr<Fault> ParseFault(absl::string_view text) {
  Fault fault;
  const size_t equals = text.find('=');
  if (equals == absl::string_view::npos || equals == 0) return Unreadable(text, "it names no place");
  fault.name = std::string(text.substr(0, equals));
  absl::string_view action = text.substr(equals + 1);
  if (const size_t at = action.rfind('@'); at != absl::string_view::npos) {
    absl::string_view count = action.substr(at + 1);
    action = action.substr(0, at);
    fault.on = absl::ConsumeSuffix(&count, "+");
    if (!absl::SimpleAtoi(count, &fault.first) || fault.first < 1) return Unreadable(text, "n is a number from 1");
  }
  if (action == "kill") {
    fault.action = Action::kKill;
  } else if (action == "error") {
    fault.action = Action::kError;
  } else if (absl::ConsumePrefix(&action, "error:")) {
    fault.action = Action::kError;
    const absl::StatusOr<absl::StatusCode> code = CodeByName(action);
    if (!code.ok()) return Unreadable(text, code.status().message());
    fault.code = *code;
  } else if (absl::ConsumePrefix(&action, "delay:")) {
    fault.action = Action::kDelay;
    if (!absl::ParseDuration(action, &fault.delay) || fault.delay < absl::ZeroDuration() ||
        fault.delay == absl::InfiniteDuration()) {
      return Unreadable(text, "the delay is a duration, such as 200ms");
    }
  } else {
    return Unreadable(text, fmt::format("no action is named '{}'", std::string(action)));
  }
  return fault;
}

class Faults {
 public:
  absl::Status Set(std::string_view text) {
    std::vector<Fault> faults;
    for (const absl::string_view part :
         absl::StrSplit(absl::string_view(text.data(), text.size()), ';', absl::SkipWhitespace())) {
      ATOLL_ASSIGN_OR_RETURN(Fault fault, ParseFault(absl::StripAsciiWhitespace(part)));
      faults.push_back(std::move(fault));
    }
    absl::MutexLock lock(&mutex_);
    faults_ = std::move(faults);
    return absl::OkStatus();
  }

  void ListTo(const std::string& path) {
    absl::MutexLock lock(&mutex_);
    list_ = path;
  }

  bool Any() {
    absl::MutexLock lock(&mutex_);
    return !faults_.empty() || !list_.empty();
  }

  absl::Status Reach(std::string_view name) {
    absl::Duration delay;
    absl::Status error;
    {
      absl::MutexLock lock(&mutex_);
      List(name);
      for (Fault& fault : faults_) {
        if (!Fits(fault.name, name)) continue;
        ++fault.reached;
        if (fault.reached < fault.first || (fault.reached > fault.first && !fault.on)) continue;
        WriteLine(fmt::format("{}={}", name, NameOf(fault.action)));
        if (fault.action == Action::kKill) kill(getpid(), SIGKILL);
        if (fault.action == Action::kDelay) delay += fault.delay;
        if (fault.action == Action::kError && error.ok()) {
          error = MakeError(fault.code, "FAILPOINT", fmt::format("failpoint {}", name));
        }
      }
    }
    absl::SleepFor(delay);
    return error;
  }

 private:
  void List(std::string_view name) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (list_.empty() || !listed_.insert(std::string(name)).second) return;
    WriteLine(name);
  }

  void WriteLine(std::string_view line) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (!list_.empty()) std::ofstream(list_, std::ios::app) << fmt::format("{}\n", line) << std::flush;
  }

  absl::Mutex mutex_;
  std::vector<Fault> faults_ ABSL_GUARDED_BY(mutex_);
  std::string list_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<std::string> listed_ ABSL_GUARDED_BY(mutex_);
};

std::string Environment(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? "" : value;
}

Faults& TheFaults() {
  static Faults* const faults = [] {
    auto* made = new Faults;
    made->ListTo(Environment("ATOLL_FAILPOINT_LIST"));
    if (const absl::Status status = made->Set(Environment("ATOLL_FAILPOINTS")); !status.ok()) {
      std::fprintf(stderr, "ATOLL_FAILPOINTS: %s\n", std::string(status.message()).c_str());
      std::_Exit(2);
    }
    return made;
  }();
  return *faults;
}

// Relaxed: a place that is reached while SetFailpoints runs may belong to either side.
std::atomic<bool>& Armed() {
  static std::atomic<bool> armed = TheFaults().Any();
  return armed;
}

}  // namespace

absl::Status Failpoint(std::string_view name) {
  if (!Armed().load(std::memory_order_relaxed)) return absl::OkStatus();
  return TheFaults().Reach(name);
}

absl::Status SetFailpoints(std::string_view text) {
  ATOLL_RETURN_IF_ERROR(TheFaults().Set(text));
  Armed().store(TheFaults().Any(), std::memory_order_relaxed);
  return absl::OkStatus();
}

}  // namespace atl
