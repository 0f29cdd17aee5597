#include <unistd.h>

#include <cstdlib>
#include <iostream>

#include "tests/bench/sample_bench.h"

int main(int argc, char** argv) {
  setenv("GRPC_VERBOSITY", "NONE", 0);  // errors are reported once, as ours
  atl::client::Session session;
  session.out = &std::cout;
  session.err = &std::cerr;
  session.terminal = isatty(STDERR_FILENO) == 1;
  session.env = [](const std::string& name) {
    const char* value = std::getenv(name.c_str());
    return std::string(value == nullptr ? "" : value);
  };
  return atl::bench::RunSampleBench({argv + 1, argv + argc}, std::move(session));
}
