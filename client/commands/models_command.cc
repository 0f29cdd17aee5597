#include "atoll/model/v1/model_service.grpc.pb.h"
#include "client/calls.h"
#include "client/commands/commands.h"
#include "client/table.h"
#include "common/base/status_macros.h"
#include "common/wire/time_wire.h"
#include "fmt/format.h"

namespace atl::client {
namespace {

using namespace atlpb::model::v1;  // NOLINT(google-build-using-namespace): every name below is a message of it

struct ModelsFlags {
  std::string name;
  std::string version;
};

void Print(const Session& session, const Model& model) {
  if (session.format == OutputFormat::kJson) {
    *session.out << ToJson(model);
    return;
  }
  *session.out << fmt::format("model    {}\nserving  {} (generation {})\n\n", OneLine(model.name()),
                              model.serving_version().empty() ? "none" : OneLine(model.serving_version()),
                              model.serving_generation());
  Table table({"VERSION", "EXPERTS", "PUBLISHED", "URI"});
  for (const ModelVersion& version : model.versions()) {
    table.Add({version.version() + (version.version() == model.serving_version() ? " *" : ""),
               fmt::format("{}", version.experts()), TimeText(wire::FromProto(version.publish_time())), version.uri()});
  }
  *session.out << table.Text(session.width);
}

absl::Status List(const Session& session, const ModelsFlags&) {
  ATOLL_ASSIGN_OR_RETURN(const Peer<ModelService> peer, ConnectCoordinator<ModelService>(session));
  ListModelsResponse all;
  std::string token;
  do {
    ListModelsRequest request;
    request.set_page_token(token);
    ListModelsResponse page;
    ATOLL_RETURN_IF_ERROR(Call(session, peer, &ModelService::Stub::ListModels, request, &page));
    for (Model& model : *page.mutable_models()) *all.add_models() = std::move(model);
    token = page.next_page_token();
  } while (!token.empty());
  if (session.format == OutputFormat::kJson) {
    *session.out << ToJson(all);
    return absl::OkStatus();
  }
  Table table({"MODEL", "VERSIONS", "GENERATION", "SERVING"});
  for (const Model& model : all.models()) {
    table.Add({model.name(), fmt::format("{}", model.versions_size()), fmt::format("{}", model.serving_generation()),
               model.serving_version()});
  }
  *session.out << table.Text(session.width);
  return absl::OkStatus();
}

absl::StatusOr<Model> GetModel(const Session& session, const std::string& name) {
  GetModelRequest request;
  request.set_name(name);
  ATOLL_ASSIGN_OR_RETURN(const GetModelResponse response,
                         CallCoordinator<ModelService>(session, &ModelService::Stub::GetModel, request));
  return response.model();
}

absl::Status Get(const Session& session, const ModelsFlags& flags) {
  ATOLL_ASSIGN_OR_RETURN(const Model model, GetModel(session, flags.name));
  Print(session, model);
  return absl::OkStatus();
}

absl::Status Serve(const Session& session, const ModelsFlags& flags) {
  // The coordinator refuses where another version has been chosen since.
  ATOLL_ASSIGN_OR_RETURN(const Model model, GetModel(session, flags.name));
  SetServingVersionRequest request;
  request.set_name(flags.name);
  request.set_version(flags.version);
  request.set_expected_generation(model.serving_generation());
  request.set_request_id(NewRequestId());
  ATOLL_ASSIGN_OR_RETURN(const SetServingVersionResponse response,
                         CallCoordinator<ModelService>(session, &ModelService::Stub::SetServingVersion, request));
  Print(session, response.model());
  return absl::OkStatus();
}

}  // namespace

void AddModelsCommand(CLI::App* app, Session* session) {
  auto flags = std::make_shared<ModelsFlags>();
  CLI::App* models = app->add_subcommand("models", "Lists published models and chooses which version is served");
  models->require_subcommand(1);
  models->add_subcommand("list", "Every model")->callback([=] {
    session->run = [=] { return List(*session, *flags); };
  });
  CLI::App* get = models->add_subcommand("get", "One model with its versions; * marks the one that is served");
  get->add_option("MODEL", flags->name, "Model name")->required();
  get->callback([=] { session->run = [=] { return Get(*session, *flags); }; });
  CLI::App* serve = models->add_subcommand("serve", "Makes a version the one that routers serve, e.g. to roll back");
  serve->add_option("MODEL", flags->name, "Model name")->required();
  serve->add_option("VERSION", flags->version, "Version, as listed by models get")->required();
  serve->callback([=] { session->run = [=] { return Serve(*session, *flags); }; });
  models->footer(R"(
Examples:
  atoll models list
  atoll models get digits
  atoll models serve digits VERSION
)");
}

}  // namespace atl::client
