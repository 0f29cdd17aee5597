#include "client/spec_file.h"

#include "CLI/CLI.hpp"
#include "common/base/errors.h"
#include "common/base/files.h"
#include "common/base/status_macros.h"
#include "common/spec/spec_io.h"
#include "fmt/format.h"

namespace atl::client {

void AddSpecFlags(CLI::App* command, SpecFlags* flags) {
  command->add_option("FILE", flags->file, "Job spec in YAML; - for standard input")->required();
  command->add_option("--set", flags->set, "Replaces one field, e.g. --set training.steps=1000; repeatable")
      ->type_name("FIELD=VALUE")
      ->allow_extra_args(false);
}

absl::StatusOr<spec::JobSpec> ReadSpecFile(const SpecFlags& flags) {
  std::vector<spec::Override> overrides;
  for (const std::string& text : flags.set) {
    const size_t equals = text.find('=');
    if (equals == std::string::npos || equals == 0) {
      return MakeError(absl::StatusCode::kInvalidArgument, "USAGE",
                       fmt::format("--set: expected FIELD=VALUE, found '{}'", text));
    }
    overrides.push_back({.path = text.substr(0, equals), .value = text.substr(equals + 1)});
  }
  constexpr int64_t kLargest = 2 << 20;
  ATOLL_ASSIGN_OR_RETURN(const std::string yaml, ReadFile(flags.file, kLargest));
  ATOLL_ASSIGN_OR_RETURN(const spec::JobSpec spec,
                         spec::ParseJobSpec(yaml, flags.file == "-" ? "standard input" : flags.file, overrides));
  ATOLL_RETURN_IF_ERROR(WithContext(spec::Validate(spec, nullptr), flags.file));
  return spec;
}

}  // namespace atl::client
