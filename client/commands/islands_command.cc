#include "atoll/admin/v1/admin_service.grpc.pb.h"
#include "client/calls.h"
#include "client/commands/commands.h"
#include "client/table.h"
#include "common/base/status_macros.h"
#include "common/wire/time_wire.h"
#include "fmt/format.h"

namespace atl::client {
namespace {

using namespace atlpb::admin::v1;  // NOLINT(google-build-using-namespace): every name below is a message of it

struct IslandsFlags {
  std::string island_id;
  std::string reason = "drained by hand";
};

std::string OrDash(bool known, const std::string& text) {
  return known ? text : "-";
}

// "3.1x SLOW": against the median of the others at the same work.
std::string SlowdownText(const Island& island) {
  if (island.slowdown() <= 0) return "-";
  return fmt::format("{:.1f}x{}", island.slowdown(), island.slow() ? " SLOW" : "");
}

std::string DescribeIslands(const ListIslandsResponse& response, int width) {
  Table table({"ISLAND", "STATE", "RANKS", "DEVICE", "TASK", "ATTEMPT", "STEP", "STEP TIME", "OTHERS", "HEARD", "WHY"});
  for (const Island& island : response.islands()) {
    const bool holds = !island.task_id().empty();
    table.Add({island.island_id(), EnumText(Island::State_Name(island.state())), fmt::format("{}", island.ranks()),
               island.device_kind(), OrDash(holds, island.task_id()),
               OrDash(holds, fmt::format("{}", island.attempt())), OrDash(holds, fmt::format("{}", island.step())),
               OrDash(island.step_seconds() > 0, fmt::format("{:.3g} s", island.step_seconds())), SlowdownText(island),
               TimeText(wire::FromProto(island.last_heard_time())), OneLine(island.drain_reason())});
  }
  return table.Text(width);
}

absl::Status List(const Session& session, const IslandsFlags&) {
  ATOLL_ASSIGN_OR_RETURN(
      const ListIslandsResponse response,
      CallCoordinator<AdminService>(session, &AdminService::Stub::ListIslands, ListIslandsRequest()));
  *session.out << (session.format == OutputFormat::kJson ? ToJson(response) : DescribeIslands(response, session.width));
  return absl::OkStatus();
}

void Print(const Session& session, const Island& island, const std::string& said) {
  if (session.format == OutputFormat::kJson) {
    *session.out << ToJson(island);
  } else {
    *session.out << said;
  }
}

absl::Status Drain(const Session& session, const IslandsFlags& flags) {
  DrainIslandRequest request;
  request.set_island_id(flags.island_id);
  request.set_reason(flags.reason);
  request.set_request_id(NewRequestId());
  ATOLL_ASSIGN_OR_RETURN(const DrainIslandResponse response,
                         CallCoordinator<AdminService>(session, &AdminService::Stub::DrainIsland, request));
  const Island& island = response.island();
  Print(session, island,
        fmt::format(
            "island {} is granted nothing any more{}\n", flags.island_id,
            island.task_id().empty() ? "" : "; it gives back " + OneLine(island.task_id()) + " with a checkpoint"));
  return absl::OkStatus();
}

absl::Status Undrain(const Session& session, const IslandsFlags& flags) {
  UndrainIslandRequest request;
  request.set_island_id(flags.island_id);
  request.set_request_id(NewRequestId());
  ATOLL_ASSIGN_OR_RETURN(const UndrainIslandResponse response,
                         CallCoordinator<AdminService>(session, &AdminService::Stub::UndrainIsland, request));
  Print(session, response.island(), fmt::format("island {} is granted tasks again\n", flags.island_id));
  return absl::OkStatus();
}

using Action = absl::Status (*)(const Session&, const IslandsFlags&);

CLI::App* AddAction(CLI::App* parent, Session* session, const std::shared_ptr<IslandsFlags>& flags, const char* name,
                    const char* description, Action action, bool takes_island) {
  CLI::App* command = parent->add_subcommand(name, description);
  if (takes_island) {
    command->add_option("ISLAND", flags->island_id, "Its --island-id, as listed by islands list")->required();
  }
  command->callback([=] { session->run = [=] { return action(*session, *flags); }; });
  return command;
}

}  // namespace

void AddIslandsCommand(CLI::App* app, Session* session) {
  auto flags = std::make_shared<IslandsFlags>();
  CLI::App* islands = app->add_subcommand("islands", "Lists islands, drains them and undrains them");
  islands->require_subcommand(1);
  AddAction(islands, session, flags, "list",
            "Every island, what it is at and how fast, against others at the same work", List, false);
  AddAction(islands, session, flags, "drain", "It gives its task back with a checkpoint and is granted no other", Drain,
            true)
      ->add_option("--reason", flags->reason, "Kept with the island, for people")
      ->capture_default_str();
  AddAction(islands, session, flags, "undrain", "It is granted tasks again", Undrain, true);
  islands->footer(R"(
A drained island stays drained when it or the coordinator starts again. One task is moved by `atoll jobs move`.

Examples:
  atoll islands list
  atoll islands drain eu-3 --reason "new disk"
  atoll islands undrain eu-3
)");
}

}  // namespace atl::client
