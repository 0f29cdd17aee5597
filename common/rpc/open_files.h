// The limit on open files and connections of this process. With gRPC before 1.53.2 this overrides the C library's
// accept4 for the whole process, because that gRPC's listener stops for good after an accept that found no free
// descriptor (CVE-2023-4785). The override closes such a connection at once, and no caller of accept4 sees EMFILE or
// ENFILE.
#pragma once

#include <cstdint>

namespace atl::rpc {

// The least that suffices for a coordinator of 2,000 islands.
inline constexpr int64_t kWantedOpenFiles = 8192;

// Raises this process's limit to the most that needs no privilege (RLIMIT_NOFILE's hard limit), and returns it. A limit
// below kWantedOpenFiles is logged, once per process: connections beyond it wait, or are refused. Thread-safe.
int64_t RaiseOpenFiles();

}  // namespace atl::rpc
