#include "client/commands/app.h"

#include <algorithm>

#include "CLI/CLI.hpp"
#include "client/commands/commands.h"
#include "client/exit_code.h"
#include "client/table.h"
#include "common/auth/security_flags.h"
#include "common/auth/tls_check.h"
#include "common/base/errors.h"
#include "common/base/flag_checks.h"
#include "common/base/quoted.h"
#include "common/base/utf8.h"
#include "common/base/version.h"
#include "common/spec/nearest_name.h"
#include "common/wire/status.h"
#include "fmt/format.h"

namespace atl::client {
namespace {

constexpr char kDescription[] =
    R"(atoll: trains decentralized diffusion models on scattered machines, and samples from them.

A dataset is split into clusters; one expert is trained per cluster, each on an island of its own; a router blends the
experts when it draws images.)";

constexpr char kFooter[] = R"(
A first session, on this machine:
  atoll up --detach                                     start coordinator, islands and router here
  atoll dataset import digits.parquet --name digits     make a dataset
  atoll submit job.yaml --wait                          train on it
  atoll sample --class all --count 10 --out digits.png  draw from what was trained
  atoll down                                            stop

Addresses come from --coordinator and --router, then --cluster DIR, then the variables ATOLL_COORDINATOR, ATOLL_ROUTER
and ATOLL_BLOB_STORE, then the local cluster of ATOLL_CLUSTER or of the default folder. Beside addresses that are not a
local cluster's, ATOLL_TLS_DIR, ATOLL_CA and ATOLL_TOKEN_FILE stand for the flags of their names.

)";

// "digits" and "digits --wait" know which command they belong to.
const CLI::App* ChosenCommand(const CLI::App* app) {
  const auto chosen = app->get_subcommands();
  return chosen.empty() ? app : ChosenCommand(chosen.front());
}

std::string CommandPath(const CLI::App* command) {
  return command->get_parent() == nullptr ? command->get_name()
                                          : CommandPath(command->get_parent()) + " " + command->get_name();
}

// A flag that was given more often than it may be, or "": CLI11 says that in numbers alone.
std::string RepeatedFlag(const CLI::App* command) {
  for (const CLI::App* owner = command; owner != nullptr; owner = owner->get_parent()) {
    for (const CLI::Option* option : owner->get_options()) {
      if (option->get_items_expected_max() != 1 || option->count() <= 1) continue;
      return fmt::format("{}: expected once, found {} times", option->get_name(), option->count());
    }
  }
  return "";
}

// Describes the mistake in the command line, with the name that was probably meant.
std::string UsageMessage(const CLI::App& app, const CLI::ParseError& error) {
  const CLI::App* command = ChosenCommand(&app);
  // A mistyped command shows as a missing one beside an argument that nothing took.
  const std::vector<std::string> extra = app.remaining(true);
  if (extra.empty()) {
    const std::string repeated = error.get_name() == "ArgumentMismatch" ? RepeatedFlag(command) : "";
    return repeated.empty() ? error.what() : repeated;
  }
  std::vector<std::string> known;
  if (extra.front().rfind("-", 0) == 0) {
    for (const CLI::App* owner = command; owner != nullptr; owner = owner->get_parent()) {
      for (const CLI::Option* option : owner->get_options()) {
        for (const std::string& name : option->get_lnames()) known.push_back("--" + name);
      }
    }
  } else {
    for (const CLI::App* child : command->get_subcommands([](const CLI::App*) { return true; })) {
      known.push_back(child->get_name());
    }
  }
  const std::string nearest = spec::NearestName(extra.front(), known);
  return fmt::format("unexpected argument '{}'{}", extra.front(),
                     nearest.empty() ? "" : fmt::format("; did you mean '{}'?", nearest));
}

void AddGlobalFlags(CLI::App* app, Session* session) {
  app->add_option("--coordinator", session->coordinator_flag,
                  "Coordinator's address, HOST:PORT; of several, HOST:PORT,HOST:PORT");
  app->add_option("--router", session->router_flag, "Router's address, HOST:PORT");
  app->add_option("--blob-store", session->blob_store_flag,
                  "Blob store, e.g. file:///data/atoll or s3://bucket/prefix");
  app->add_option("--cluster", session->cluster_flag, "Folder of a local cluster (atoll up --dir)");
  rpc::AddSecurityFlags(*app, &session->security_flags, rpc::Side::kClient);
  app->add_option("--timeout", session->timeout_seconds, "Seconds that one call may take")
      ->check(Number(0.1, 86'400))
      ->each([session](const std::string&) { session->timeout_given = true; })
      ->capture_default_str();
  app->add_option_function<std::string>(
         "--output",
         [session](const std::string& name) {
           session->format = name == "json" ? OutputFormat::kJson : OutputFormat::kTable;
         },
         "table or json")
      ->check(CLI::IsMember({"table", "json"}));
  app->set_version_flag("--version", fmt::format("atoll {}", kVersion));
}

void AddCommands(CLI::App* app, Session* session) {
  AddUpCommand(app, session);
  AddDownCommand(app, session);
  AddDatasetCommand(app, session);
  AddSubmitCommand(app, session);
  AddJobsCommand(app, session);
  AddIslandsCommand(app, session);
  AddModelsCommand(app, session);
  AddServersCommand(app, session);
  AddSampleCommand(app, session);
  AddPlanCommand(app, session);
  AddProfileCommand(app, session);
  AddReportCommand(app, session);
  AddFsckCommand(app, session);
  AddAuthCommand(app, session);
  AddCompletionCommand(app, session);
}

// If a service is unreachable because of a security setting, returns that reason.
absl::Status Explain(const Session& session, const absl::Status& status) {
  if (!absl::IsUnavailable(status) || ErrorReason(status) != rpc::DefaultReason(status.code())) return status;
  for (const Session::Called& call : *session.called) {
    const absl::Status why = rpc::ExplainConnection(call.security, call.address, absl::Seconds(5));
    if (!why.ok()) return why;
  }
  return status;
}

int ReportError(const Session& session, const absl::Status& status) {
  const std::string reason = ErrorReason(status);
  *session.err << "atoll: error: " << OneLine(std::string(status.message()));
  if (!reason.empty() && reason != "JOB_FAILED" && reason != "INTERRUPTED") {
    *session.err << " [" << OneLine(reason) << "]";
  }
  *session.err << std::endl;
  return ExitCodeOf(status);
}

}  // namespace

int RunAtoll(const std::vector<std::string>& arguments, Session session) {
  CLI::App app(kDescription, "atoll");
  app.footer(std::string(kFooter) + ExitCodeHelp());
  app.require_subcommand(1);
  app.fallthrough();
  app.get_formatter()->column_width(34);
  AddGlobalFlags(&app, &session);
  AddCommands(&app, &session);
  // Messages of the services carry no other bytes.
  const auto other = std::ranges::find_if_not(arguments, IsPlainUtf8);
  if (other != arguments.end()) {
    *session.err << "atoll: error: expected arguments in UTF-8, found " << Quoted(*other) << "\nTry 'atoll --help'."
                 << std::endl;
    return kExitUsage;
  }
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ParseError& error) {
    // --help and --version; but the help of a mistyped command would be another command's.
    if (error.get_exit_code() == 0 && app.remaining(true).empty()) {
      app.exit(error, *session.out, *session.err);
      return kExitOk;
    }
    *session.err << "atoll: error: " << OneLine(UsageMessage(app, error)) << "\nTry '"
                 << CommandPath(ChosenCommand(&app)) << " --help'." << std::endl;
    return kExitUsage;
  }
  absl::Status status = session.run();
  session.out->flush();
  if (status.ok() && !*session.out && !(session.reader_gone != nullptr && session.reader_gone())) {
    status = absl::UnknownError("cannot write the output");
  }
  return status.ok() ? kExitOk : ReportError(session, Explain(session, status));
}

}  // namespace atl::client
