// check_invariants STORE BLOBS [--reference MANIFEST]... [--leader-log FILE]...
//
// Prints every violated invariant (invariants.h), one a line; exits with 1 when there is any. The coordinator may run.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "CLI/CLI.hpp"
#include "tests/invariants/invariants.h"

int main(int argc, char** argv) {
  using namespace atl::testing_invariants;
  Checked checked;
  std::vector<std::string> logs;
  CLI::App app("Checks what must hold of a coordinator's store and its blob store, from their files alone.");
  app.add_option("STORE", checked.store, "The coordinator's SQLite file.")->required()->check(CLI::ExistingFile);
  app.add_option("BLOBS", checked.blobs, "The blob store's folder or URI.")->required();
  app.add_option("--reference", checked.references,
                 "A final manifest of a run without faults: tasks of its kind and index must have the same weights.")
      ->check(CLI::ExistingFile);
  app.add_option("--leader-log", logs, "A leader's log: what it was told must be in the store.")
      ->check(CLI::ExistingFile);
  CLI11_PARSE(app, argc, argv);
  if (checked.blobs.find("://") == std::string::npos) {
    checked.blobs = "file://" + std::filesystem::absolute(checked.blobs).string();
  }
  for (std::string& reference : checked.references) reference = std::filesystem::absolute(reference).string();
  Acknowledged acknowledged;
  for (const std::string& path : logs) {
    std::ifstream file(path);
    AddFromLog(std::string(std::istreambuf_iterator<char>(file), {}), &acknowledged);
  }
  if (!logs.empty()) checked.acknowledged = &acknowledged;
  const std::vector<Violation> violations = CheckInvariants(checked);
  std::printf("%s%zu invariants violated\n", ToString(violations).c_str(), violations.size());
  return violations.empty() ? 0 : 1;
}
