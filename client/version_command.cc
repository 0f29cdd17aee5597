#include "client/commands.h"
#include "common/base/version.h"
#include "fmt/format.h"

namespace atl::client {

void AddVersionCommand(CLI::App* app, Session* session) {
  app->add_subcommand("version", "Prints the version")->callback([session] {
    session->run = [session] {
      *session->out << (session->format == OutputFormat::kJson ? fmt::format("{{\"version\": \"{}\"}}\n", kVersion)
                                                               : fmt::format("atoll {}\n", kVersion));
      return absl::OkStatus();
    };
  });
}

}  // namespace atl::client
