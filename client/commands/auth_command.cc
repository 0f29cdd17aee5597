#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "client/commands/commands.h"
#include "common/auth/principals.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "nlohmann/json.hpp"

namespace atl::client {
namespace {

struct NewTokenFlags {
  std::string subject;
  std::vector<std::string> roles;
  std::vector<std::string> islands;
  std::vector<std::string> models;
};

// A name as YAML reads it back, whatever is in it: JSON is YAML.
std::string Text(const std::string& name) {
  return nlohmann::json(name).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string Texts(const std::vector<std::string>& names) {
  std::vector<std::string> texts;
  for (const std::string& name : names) texts.push_back(Text(name));
  return fmt::format("[{}]", fmt::join(texts, ", "));
}

std::string EntryOf(const NewTokenFlags& flags, const rpc::NewToken& made) {
  std::string entry = fmt::format("- subject: {}\n  roles: {}\n", Text(flags.subject), Texts(flags.roles));
  if (!flags.islands.empty()) entry += fmt::format("  islands: {}\n", Texts(flags.islands));
  if (!flags.models.empty()) entry += fmt::format("  models: {}\n", Texts(flags.models));
  return entry + fmt::format("  token_sha256: {}\n", made.sha256);
}

absl::Status Usage(std::string_view message) {
  return MakeError(absl::StatusCode::kInvalidArgument, "USAGE", message);
}

// Flags that no role makes use of would look as if they limited something.
absl::Status CheckFlags(const NewTokenFlags& flags) {
  const auto has = [&](const std::string& role) { return std::ranges::find(flags.roles, role) != flags.roles.end(); };
  if (has("island") && flags.islands.empty()) {
    return FieldError("--island", "FIELD_REQUIRED",
                      "expected names of islands beside --role island, as eu-*, found none");
  }
  if (!has("island") && !flags.islands.empty()) return Usage("--island: expected --role island beside it, found none");
  if (!has("submitter") && !has("admin") && !flags.models.empty()) {
    return Usage("--model: expected --role submitter or admin beside it, found none");
  }
  return absl::OkStatus();
}

absl::Status PrintNewToken(const Session& session, const NewTokenFlags& flags) {
  ATOLL_RETURN_IF_ERROR(CheckFlags(flags));
  const rpc::NewToken made = rpc::MakeToken();
  const std::string entry = EntryOf(flags, made);
  // As the servers read it.
  const auto parsed = rpc::Principals::Parse("principals:\n" + entry, "the entry", [](const std::string&) {
    return absl::NotFoundError("an entry names no files");
  });
  if (!parsed.ok()) return Usage(fmt::format("servers would refuse it: {}", std::string(parsed.status().message())));
  if (session.format == OutputFormat::kJson) {
    nlohmann::ordered_json json = {
        {"token", made.token}, {"subject", flags.subject}, {"roles", flags.roles}, {"islands", flags.islands}};
    // An entry with an empty list of models has none, one without a list has all.
    if (!flags.models.empty()) json["models"] = flags.models;
    json["token_sha256"] = made.sha256;
    *session.out << json.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) << "\n";
    return absl::OkStatus();
  }
  *session.out << made.token << "\n";
  // Apart, so that `> alice.token` holds the token alone.
  *session.err << "The token is shown once. Under 'principals:' in the servers' file belongs:\n" << entry;
  return absl::OkStatus();
}

}  // namespace

void AddAuthCommand(CLI::App* app, Session* session) {
  auto flags = std::make_shared<NewTokenFlags>();
  CLI::App* auth = app->add_subcommand("auth", "Makes credentials");
  auth->require_subcommand(1);
  CLI::App* token = auth->add_subcommand(
      "new-token",
      "Makes a random token: prints it, and beside it the entry for --principals, which holds its hash alone");
  token->add_option("--subject", flags->subject, "Whose it is, as logs and audit will name it")->required();
  token->add_option("--role", flags->roles, "What its holder may do; may be repeated")
      ->required()
      ->check(CLI::IsMember({"admin", "submitter", "sampler", "island", "expert", "router", "reader"}));
  token->add_option("--island", flags->islands, "With role island: its name, or a pattern as eu-*; may be repeated");
  token->add_option("--model", flags->models,
                    "With role submitter: a model that its jobs may publish, or a pattern as team-*; may be repeated; "
                    "without it all");
  token->callback([=] { session->run = [=] { return PrintNewToken(*session, *flags); }; });
  auth->footer(R"(
Examples:
  atoll auth new-token --subject alice --role submitter --role reader > alice.token
  atoll auth new-token --subject eu --role island --island 'eu-*' > eu.token
)");
}

}  // namespace atl::client
