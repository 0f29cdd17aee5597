// How many files and connections this process may have open. With gRPC before 1.53.2 this overrides the C library's
// accept4 for the whole process: that gRPC's listener stops for good after an accept that found no descriptor free
// (CVE-2023-4785). The override closes such a connection at once, and no caller of accept4 sees EMFILE or ENFILE.
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
