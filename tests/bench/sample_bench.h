// `sample_bench`: sends requests to a router at random times, independent of earlier answers, and prints latencies.
#pragma once

#include <string>
#include <vector>

#include "client/session.h"

namespace atl::bench {

// `arguments` exclude the program's name. Prints one JSON object to session.out and returns the same exit codes as
// `atoll`. Never throws.
int RunSampleBench(const std::vector<std::string>& arguments, client::Session session);

}  // namespace atl::bench
