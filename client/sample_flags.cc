#include "client/sample_flags.h"

#include "CLI/CLI.hpp"
#include "client/commands.h"
#include "client/flag_checks.h"

namespace atl::client {
namespace {

CLI::Option* AddNumber(CLI::App* command, const char* name, double* value, const char* help, double least,
                       double most) {
  return command->add_option(name, *value, help)->check(NotNan())->check(CLI::Range(least, most));
}

void AddOptionalNumber(CLI::App* command, const char* name, std::optional<double>* value, const char* help) {
  command
      ->add_option_function<double>(
          name, [value](double number) { *value = number; }, help)
      ->check(NotNan())
      ->check(CLI::Range(0.0, 1.0));
}

void AddExpertFlags(CLI::App* command, SampleFlags* flags) {
  command
      ->add_option("--mode", flags->mode,
                   "Which experts draw: top1, topk, threshold, nucleus, full, oracle; default: the version's own")
      ->check(CLI::IsMember({"top1", "topk", "threshold", "nucleus", "full", "oracle"}));
  command->add_option("--top-k", flags->top_k, "topk: number of experts")->check(CLI::PositiveNumber);
  AddNumber(command, "--threshold", &flags->threshold, "threshold: least probability", 0, 1);
  AddNumber(command, "--nucleus-p", &flags->nucleus_p, "nucleus: the fewest best experts that reach this probability",
            0, 1);
  command->add_option("--temperature", flags->temperature, "Below 1 sharpens the router's choice, above 1 blurs it")
      ->check(NotNan())
      ->check(CLI::PositiveNumber);
  command->add_option("--expert", flags->expert, "oracle: the expert that draws")->check(CLI::NonNegativeNumber);
}

void AddSolverFlags(CLI::App* command, SampleFlags* flags) {
  command->add_option("--steps", flags->steps, "Solver steps; default: the version's own, else 30")
      ->check(CLI::PositiveNumber);
  command->add_option("--solver", flags->solver, "euler, heun or multistep; default: the version's own, else euler")
      ->check(CLI::IsMember({"euler", "heun", "multistep"}));
  command->add_option("--times", flags->times, "The solver's own times, falling from at most 1 to 0: 1,0.6,0.3,0")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(NotNan());
  command
      ->add_option("--guidance", flags->guidance,
                   "Classifier-free guidance; 1 is none; default: the version's own, else 2")
      ->check(NotNan())
      ->check(CLI::NonNegativeNumber);
  AddNumber(command, "--guidance-from", &flags->guidance_from, "No guidance at times below this (1 noise, 0 image)", 0,
            1);
  AddOptionalNumber(command, "--guidance-to", &flags->guidance_to, "No guidance at times above this");
  command->add_option("--negative-class", flags->negative_class, "Guides away from this class instead of from none")
      ->check(CLI::NonNegativeNumber);
}

}  // namespace

void AddSamplingFlags(CLI::App* command, SampleFlags* flags) {
  command->add_option("--class", flags->classes, "Classes: 3, 0-4,7, all, or none for no condition")
      ->capture_default_str();
  AddExpertFlags(command, flags);
  AddSolverFlags(command, flags);
  AddOptionalNumber(command, "--strength", &flags->strength,
                    "With --init: how far back towards noise drawing starts, above 0 to 1; default 0.5");
  command->add_flag("--reproducible", flags->reproducible, "The same bytes whatever else the router does");
  command->add_flag("--allow-expert-loss", flags->allow_expert_loss,
                    "Goes on with the other experts when one is lost, and reports it");
  command
      ->add_option_function<int>(
          "--priority", [flags](int priority) { flags->priority = priority; }, "0 to 9, higher goes first; default 5")
      ->check(CLI::Range(0, 9));
  command->add_option("--seed", flags->seed, "Seed of the first image; the next ones count up")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--model", flags->model, "Model; default: the only one that the router serves");
  command->add_option("--model-version", flags->version, "Version; default: the one that is served");
  command->add_option("--wait", flags->wait_seconds, "Seconds to wait for the router to serve the model")
      ->check(NotNan())
      ->check(CLI::NonNegativeNumber);
}

}  // namespace atl::client
