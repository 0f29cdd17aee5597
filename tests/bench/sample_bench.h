// `sample_bench`: sends a router requests at random times, whatever their answers take, and prints latencies.
#pragma once

#include <string>
#include <vector>

#include "client/session.h"

namespace atl::bench {

// `arguments` without the program's name. Prints one JSON object to session.out and returns the exit code, as `atoll`
// has them. Never throws.
int RunSampleBench(const std::vector<std::string>& arguments, client::Session session);

}  // namespace atl::bench
