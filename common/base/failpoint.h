// Named places in durable work at which tests make a process die, fail or wait. They show that acknowledged work
// survives a crash at any place.
#pragma once

#include <string_view>

#include "absl/status/status.h"

namespace atl {

// Marks the place `name` ("manifest.after_write": the object, before or after, the step). OK unless ATOLL_FAILPOINTS
// names it. Otherwise kills the process with SIGKILL, waits, or returns the configured error (reason FAILPOINT). Costs
// one relaxed load if no failpoint is set. Thread-safe.
//
//   ATOLL_FAILPOINTS="name=action[@n[+]];…"   action: kill | error[:CODE] | delay:DURATION
//
// CODE is a canonical code by name (UNAVAILABLE by default). A `*` at the end of a name matches every name that starts
// so. `@n` is the n-th time that the place is reached (every time by default), `@n+` from the n-th on.
// ATOLL_FAILPOINT_LIST=FILE appends every name that is reached, once per process, and "name=action" each time that one
// acts. An invalid text ends the process, so that no test relies on a fault that never happens.
absl::Status Failpoint(std::string_view name);

// Replaces the environment's text and counts from zero again; "" sets none. INVALID_ARGUMENT, reason INVALID_FAILPOINT,
// if the text is invalid; then nothing changes. For tests.
absl::Status SetFailpoints(std::string_view text);

}  // namespace atl
