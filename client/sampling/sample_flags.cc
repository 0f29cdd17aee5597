#include "client/sampling/sample_flags.h"

#include "CLI/CLI.hpp"
#include "common/base/flag_checks.h"

namespace atl::client {
namespace {

// A flag that is not given stays unset, so that the router's defaults hold.
template <typename T>
CLI::Option* AddOptional(CLI::App* command, const char* name, std::optional<T>* value, const char* help) {
  return command->add_option_function<T>(
      name, [value](const T& given) { *value = given; }, help);
}

void AddExpertFlags(CLI::App* command, SampleFlags* flags) {
  command
      ->add_option("--mode", flags->mode,
                   "Which experts draw: top1, topk, threshold, nucleus, full, oracle; default: the one that --top-k,\n"
                   "--threshold, --nucleus-p or --expert belongs to, else the version's own")
      ->check(CLI::IsMember({"top1", "topk", "threshold", "nucleus", "full", "oracle"}));
  command->add_option("--top-k", flags->top_k, "topk: number of experts")->check(WholeNumber(1));
  command->add_option("--threshold", flags->threshold, "threshold: least probability")->check(PositiveNumber(1));
  command->add_option("--nucleus-p", flags->nucleus_p, "nucleus: the fewest best experts that reach this probability")
      ->check(PositiveNumber(1));
  command->add_option("--temperature", flags->temperature, "Below 1 sharpens the router's choice, above 1 blurs it")
      ->check(PositiveNumber());
  AddOptional(command, "--expert", &flags->expert, "oracle: the expert that draws")->check(WholeNumber(0));
}

void AddSolverFlags(CLI::App* command, SampleFlags* flags) {
  command->add_option("--steps", flags->steps, "Solver steps; default: the version's own, else 30")
      ->check(WholeNumber(1));
  command->add_option("--solver", flags->solver, "euler, heun or multistep; default: the version's own, else euler")
      ->check(CLI::IsMember({"euler", "heun", "multistep"}));
  command->add_option("--times", flags->times, "The solver's own times, falling from at most 1 to 0: 1,0.6,0.3,0")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(Number(0, 1));
  AddOptional(command, "--guidance", &flags->guidance,
              "Classifier-free guidance; 1 is none; default: the version's own, else 2")
      ->check(Number(0));
  command->add_option("--guidance-from", flags->guidance_from, "No guidance at times below this (1 noise, 0 image)")
      ->check(Number(0, 1));
  AddOptional(command, "--guidance-to", &flags->guidance_to, "No guidance at times above this")->check(Number(0, 1));
  command->add_option("--negative-class", flags->negative_class,
                      "Guides away from this class, by name or number, instead of from none");
}

}  // namespace

void AddSamplingFlags(CLI::App* command, SampleFlags* flags) {
  command
      ->add_option("--class", flags->classes, "Classes by number or name: 3, 0-4,7, cat, all, or none for no condition")
      ->capture_default_str();
  AddExpertFlags(command, flags);
  AddSolverFlags(command, flags);
  AddOptional(command, "--strength", &flags->strength,
              "With --init: how far back towards noise drawing starts; default 0.5")
      ->check(PositiveNumber(1));
  command->add_flag("--reproducible", flags->reproducible, "The same bytes whatever else the router does");
  command->add_flag("--allow-expert-loss", flags->allow_expert_loss,
                    "Goes on with the other experts when one is lost, and reports it");
  AddOptional(command, "--priority", &flags->priority, "Higher goes first; default 5")->check(WholeNumber(0, 9));
  command->add_option("--seed", flags->seed, "Seed of the first image; the next ones count up, from 2^64 - 1 on to 0")
      ->check(WholeNumber<uint64_t>(0))
      ->capture_default_str();
  command->add_option("--model", flags->model, "Model; default: the only one that the router serves");
  command->add_option("--model-version", flags->version, "Version; default: the one that is served");
  command->add_option("--wait", flags->wait_seconds, "Seconds to wait for the router to serve the model")
      ->check(Number(0));
}

}  // namespace atl::client
