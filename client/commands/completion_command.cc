// Completion scripts, made from the app itself, so that they know every command and flag there is.
#include <algorithm>
#include <map>
#include <vector>

#include "client/commands/commands.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace atl::client {
namespace {

// Words that may follow each command path ("atoll jobs": list get …, --output …).
using Words = std::map<std::string, std::vector<std::string>>;

void Collect(const CLI::App* app, const std::string& path, std::vector<std::string> inherited, Words* words) {
  for (const CLI::Option* option : app->get_options()) {
    for (const std::string& name : option->get_lnames()) inherited.push_back("--" + name);
  }
  std::vector<std::string>& here = (*words)[path];
  for (const CLI::App* child : app->get_subcommands([](const CLI::App*) { return true; })) {
    here.push_back(child->get_name());
    Collect(child, path + " " + child->get_name(), inherited, words);
  }
  here.insert(here.end(), inherited.begin(), inherited.end());
  std::sort(here.begin(), here.end());
  here.erase(std::unique(here.begin(), here.end()), here.end());
}

std::string Bash(const Words& words) {
  std::string cases;
  std::string paths;
  for (const auto& [path, list] : words) {
    cases += fmt::format("    \"{}\") words=\"{}\" ;;\n", path, fmt::join(list, " "));
    paths += path + "|";
  }
  return R"(# completion of atoll: source <(atoll completion bash)
_atoll() {
  local path=atoll words= word try
  for word in "${COMP_WORDS[@]:1:COMP_CWORD-1}"; do
    try="$path $word"
    case "$_atoll_paths" in *"|$try|"*) path=$try ;; esac
  done
  case "$path" in
)" + cases +
         R"(  esac
  COMPREPLY=($(compgen -W "$words" -- "${COMP_WORDS[COMP_CWORD]}"))
  [ ${#COMPREPLY[@]} -gt 0 ] || COMPREPLY=($(compgen -f -- "${COMP_WORDS[COMP_CWORD]}"))
}
_atoll_paths="|)" +
         paths + R"("
complete -o filenames -F _atoll atoll
)";
}

}  // namespace

void AddCompletionCommand(CLI::App* app, Session* session) {
  auto shell = std::make_shared<std::string>();
  CLI::App* command = app->add_subcommand("completion", "Prints a completion script for a shell");
  command->add_option("SHELL", *shell, "bash or zsh")->required()->check(CLI::IsMember({"bash", "zsh"}));
  command->footer("\nExample:\n  source <(atoll completion bash)\n");
  command->callback([app, session, shell] {
    session->run = [app, session, shell] {
      Words words;
      Collect(app, "atoll", {}, &words);
      // zsh takes bash's functions once bashcompinit is loaded.
      if (*shell == "zsh") *session->out << "#compdef atoll\nautoload -U +X bashcompinit && bashcompinit\n";
      *session->out << Bash(words);
      return absl::OkStatus();
    };
  });
}

}  // namespace atl::client
