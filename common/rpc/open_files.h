// How many files and connections this process may have open.
#pragma once

#include <cstdint>

namespace atl::rpc {

// Fewer do not suffice for a coordinator of 2,000 islands.
inline constexpr int64_t kWantedOpenFiles = 8192;

// Raises this process's limit to what the system lets it have without rights (RLIMIT_NOFILE's hard limit), and returns
// it. A limit below kWantedOpenFiles is logged, once per process: connections beyond it wait, or are refused.
// Thread-safe.
int64_t RaiseOpenFiles();

}  // namespace atl::rpc
