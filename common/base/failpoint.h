// Named places in durable work at which a process can be told to die, to fail or to wait: how tests show that nothing
// acknowledged is lost wherever a process stops.
#pragma once

#include <string_view>

#include "absl/status/status.h"

namespace atl {

// Marks the place `name` ("manifest.after_write": what, before or after, which step). OK, unless ATOLL_FAILPOINTS names
// it: then the process kills itself with SIGKILL, or this waits, or returns the error that is asked for (reason
// FAILPOINT). Costs one relaxed load where nothing is named. Thread-safe.
//
//   ATOLL_FAILPOINTS="name=action[@n[+]];…"   action: kill | error[:CODE] | delay:DURATION
//
// CODE is a canonical code by name (UNAVAILABLE when not given); a `*` at the end of a name stands for every name that
// starts so; `@n` the n-th time that the place is reached (every time when not given), `@n+` from the n-th on.
// ATOLL_FAILPOINT_LIST=FILE appends every name that is reached, once per process, and "name=action" each time that one
// strikes. A text that cannot be read ends the process: a test must not believe in a fault that never comes.
absl::Status Failpoint(std::string_view name);

// Takes the place of the environment's text, counting from zero again; "" sets none. INVALID_ARGUMENT, reason
// INVALID_FAILPOINT, when it cannot be read; then nothing changes. For tests.
absl::Status SetFailpoints(std::string_view text);

}  // namespace atl
