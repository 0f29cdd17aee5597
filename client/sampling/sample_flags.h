// Flags that choose the images, the experts and the solver; `tests/bench/sample_bench` has them too.
#pragma once

#include "CLI/App.hpp"
#include "client/sampling/sample_request.h"

namespace atl::client {

void AddSamplingFlags(CLI::App* command, SampleFlags* flags);

}  // namespace atl::client
