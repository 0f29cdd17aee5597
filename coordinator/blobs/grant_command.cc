#include "coordinator/blobs/grant_command.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "common/base/clock.h"
#include "common/base/errors.h"
#include "common/base/handles.h"
#include "common/base/status_macros.h"
#include "common/base/subprocess.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace atl::coordinator {
namespace {

using nlohmann::json;

constexpr size_t kMaxOutput = size_t{64} << 10;
constexpr size_t kMaxKey = 8192;

absl::Status Failed(std::string_view what) {
  return MakeError(absl::StatusCode::kUnavailable, "STORAGE_GRANT_FAILED",
                   fmt::format("the storage grant command {}", what));
}

absl::Status FailedByErrno(std::string_view what) {
  return Failed(fmt::format("cannot be run: {}: {}", what, std::strerror(errno)));
}

// A field that is text without spaces or control characters: it becomes part of a header. Absent: "".
absl::StatusOr<std::string> KeyField(const json& object, const char* name) {
  const auto it = object.find(name);
  if (it == object.end()) return "";
  const auto visible = [](unsigned char c) { return c > 0x20 && c < 0x7f; };
  if (it->is_string()) {
    const auto& text = it->get_ref<const std::string&>();
    if (!text.empty() && text.size() <= kMaxKey && std::all_of(text.begin(), text.end(), visible)) return text;
  }
  return Failed(fmt::format("printed a {} that is no text of 1 to {} visible characters", name, kMaxKey));
}

// A file in memory that is read from its start: a pipe would have to be written beside reading the answer.
absl::StatusOr<Descriptor> InputOf(std::string_view text) {
  Descriptor file(memfd_create("storage-grant-request", MFD_CLOEXEC));
  if (file.get() < 0) return FailedByErrno("no memory for its input");
  if (write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()) ||
      lseek(file.get(), 0, SEEK_SET) != 0) {
    return FailedByErrno("no memory for its input");
  }
  return file;
}

// Reads what the program prints until it has ended; OK then, whatever its exit code.
absl::Status AwaitEnd(const CommandOptions& options, int process, Descriptor output, std::string* text) {
  // Not by wall time: a clock that is set back would keep a program that hangs.
  const absl::Duration deadline = Clock::Real()->Monotonic() + options.limit;
  bool ended = false;
  while (true) {
    std::array<char, 4096> buffer;
    const ssize_t got = output.get() < 0 ? -1 : read(output.get(), buffer.data(), buffer.size());
    if (got == 0) output.Close();
    if (got > 0) {
      text->append(buffer.data(), static_cast<size_t>(got));
      if (text->size() > kMaxOutput) return Failed(fmt::format("printed more than {} bytes", kMaxOutput));
      continue;
    }
    // The program wrote its last output to the pipe before it ended, so the output is complete.
    if (ended) return absl::OkStatus();
    const absl::Duration left = deadline - Clock::Real()->Monotonic();
    if (left <= absl::ZeroDuration()) {
      return Failed(fmt::format("has not ended after {}", absl::FormatDuration(options.limit)));
    }
    // A negative descriptor is left out.
    std::array<pollfd, 3> polled = {{{process, POLLIN, 0}, {output.get(), POLLIN, 0}, {options.cancel_fd, POLLIN, 0}}};
    // Rounded up, so that the last turn does not come too early again and again.
    if (poll(polled.data(), polled.size(), static_cast<int>(absl::ToInt64Milliseconds(left)) + 1) < 0) continue;
    if (polled[2].revents != 0) return Failed("was stopped: the coordinator ends");
    ended = polled[0].revents != 0;
  }
}

}  // namespace

std::string GrantRequestJson(const spec::TaskGrant& grant, std::string_view blob_root, absl::Duration lifetime) {
  return json({{"task_id", grant.token.task_id},
               {"job", grant.job_id},
               {"kind", spec::ToString(grant.kind)},
               {"attempt", grant.token.attempt},
               {"blob_store", blob_root},
               {"read_prefixes", grant.storage.reads},
               {"write_prefixes", grant.storage.writes},
               {"lifetime_seconds", absl::ToInt64Seconds(lifetime)}})
      .dump(-1, ' ', false, json::error_handler_t::replace);
}

absl::StatusOr<spec::StorageGrant> ParseGrantedKeys(std::string_view output, absl::Time now) {
  // Without exceptions, whose texts quote what they read.
  const json object = json::parse(output, nullptr, /*allow_exceptions=*/false);
  if (!object.is_object()) return Failed(fmt::format("printed {} bytes that are no JSON object", output.size()));
  const auto version = object.find("Version");
  if (version == object.end() || *version != 1) return Failed("printed no \"Version\": 1");
  spec::StorageGrant keys;
  ATOLL_ASSIGN_OR_RETURN(keys.access_key, KeyField(object, "AccessKeyId"));
  ATOLL_ASSIGN_OR_RETURN(keys.secret_key, KeyField(object, "SecretAccessKey"));
  ATOLL_ASSIGN_OR_RETURN(keys.session_token, KeyField(object, "SessionToken"));
  if (keys.access_key.empty()) return Failed("printed no AccessKeyId");
  if (keys.secret_key.empty()) return Failed("printed no SecretAccessKey");
  const auto expiration = object.find("Expiration");
  std::string ignored;
  if (expiration == object.end() || !expiration->is_string() ||
      !absl::ParseTime(absl::RFC3339_full, expiration->get_ref<const std::string&>(), &keys.expires, &ignored)) {
    return Failed("printed no Expiration, expected a time such as 2030-01-31T12:00:00Z");
  }
  if (keys.expires <= now) {
    return Failed(fmt::format("printed keys that expired at {}, expected later than now, {}",
                              absl::FormatTime(absl::RFC3339_sec, keys.expires, absl::UTCTimeZone()),
                              absl::FormatTime(absl::RFC3339_sec, now, absl::UTCTimeZone())));
  }
  return keys;
}

absl::StatusOr<std::string> RunCommand(const CommandOptions& options) {
  ATOLL_ASSIGN_OR_RETURN(const Descriptor input, InputOf(options.input));
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) return FailedByErrno("no pipe");
  Descriptor output(ends[0]);
  Descriptor printed(ends[1]);
  fcntl(output.get(), F_SETFL, O_NONBLOCK);
  const absl::StatusOr<pid_t> started = StartSubprocess({.command = {"/bin/sh", "-c", options.command},
                                                         .input = input.get(),
                                                         .output = printed.get(),
                                                         .dies_with_thread = false});
  if (!started.ok()) return Failed(fmt::format("cannot be run: {}", std::string(started.status().message())));
  const pid_t pid = *started;
  printed.Close();
  // Not pidfd_open: some versions of its header cannot be used from C++.
  const Descriptor process(static_cast<int>(syscall(SYS_pidfd_open, pid, 0)));
  std::string text;
  absl::Status status =
      process.get() < 0 ? FailedByErrno("pidfd_open") : AwaitEnd(options, process.get(), std::move(output), &text);
  // It is not reaped yet, so that the group is still its own; what it left behind ends too.
  kill(-pid, SIGKILL);
  int end = 0;
  while (waitpid(pid, &end, 0) < 0 && errno == EINTR) {
  }
  if (status.ok() && end != 0) status = Failed(DescribeExit(end));
  if (!status.ok()) return status;
  return text;
}

}  // namespace atl::coordinator
