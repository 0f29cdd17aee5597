// Flags that `atoll sample` shares with `tests/bench/sample_bench`.
#pragma once

#include "CLI/App.hpp"
#include "client/sampling/sample_request.h"

namespace atl::client {

// Adds the flags that choose images, experts and solver, model and version, seed, priority, and the wait for the
// router. Does not add --count, --out, --init, --preview, --preview-every, --raw and --report: only `atoll sample` has
// them.
void AddSamplingFlags(CLI::App* command, SampleFlags* flags);

}  // namespace atl::client
