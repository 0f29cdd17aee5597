// Completion scripts, made from the app itself, so that they know every command and flag there is.
#include <algorithm>
#include <map>
#include <vector>

#include "client/commands.h"
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
  for (const auto& [path, list] : words)
    cases += fmt::format("    \"{}\") words=\"{}\" ;;\n", path, fmt::join(list, " "));
  return R"(# bash completion of atoll: source <(atoll completion bash)
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
         [&words] {
           std::string paths;
           for (const auto& [path, list] : words) paths += path + "|";
           return paths;
         }() +
         R"("
complete -o filenames -F _atoll atoll
)";
}

std::string Zsh(const Words& words) {
  return "#compdef atoll\n# zsh completion of atoll: source <(atoll completion zsh)\nautoload -U +X bashcompinit && "
         "bashcompinit\n" +
         Bash(words);
}

std::string Fish(const Words& words) {
  std::string script = "# fish completion of atoll: atoll completion fish | source\n";
  for (const auto& [path, list] : words) {
    // Every word of the path must be there; a longer path's words are offered as well, which does no harm.
    std::string condition = "__fish_use_subcommand";
    if (path.find(' ') != std::string::npos) {
      condition = "";
      size_t start = path.find(' ') + 1;
      while (start != std::string::npos && start < path.size()) {
        const size_t end = path.find(' ', start);
        condition += fmt::format("{}__fish_seen_subcommand_from {}", condition.empty() ? "" : "; and ",
                                 path.substr(start, end - start));
        start = end == std::string::npos ? end : end + 1;
      }
    }
    for (const std::string& word : list) {
      script += word.rfind("--", 0) == 0 ? fmt::format("complete -c atoll -n '{}' -l {}\n", condition, word.substr(2))
                                         : fmt::format("complete -c atoll -n '{}' -a {}\n", condition, word);
    }
  }
  return script;
}

}  // namespace

void AddCompletionCommand(CLI::App* app, Session* session) {
  auto shell = std::make_shared<std::string>();
  CLI::App* command = app->add_subcommand("completion", "Prints a completion script for a shell");
  command->add_option("SHELL", *shell, "bash, zsh or fish")->required()->check(CLI::IsMember({"bash", "zsh", "fish"}));
  command->footer("\nExample:\n  source <(atoll completion bash)\n");
  command->callback([app, session, shell] {
    session->run = [app, session, shell] {
      Words words;
      Collect(app, "atoll", {}, &words);
      *session->out << (*shell == "bash" ? Bash(words) : *shell == "zsh" ? Zsh(words) : Fish(words));
      return absl::OkStatus();
    };
  });
}

}  // namespace atl::client
