// Flags of `sample` that `bench sample` has too: what is drawn, by which experts, and how.
#pragma once

#include "CLI/App.hpp"
#include "client/sample_request.h"

namespace atl::client {

void AddSamplingFlags(CLI::App* command, SampleFlags* flags);

}  // namespace atl::client
