// Serving: step-level batches against their rivals, fairness, company, cancelling, overload, expert servers. Rivals
// take turns. One JSON object per line on standard output.
#include <signal.h>

#include <cstdio>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <CLI/CLI.hpp>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "tests/bench/figures.h"
#include "tests/bench/serving_cases.h"

namespace atl::bench {
namespace {

const std::map<std::string, absl::Status (*)(const Settings&, Published*)>& Cases() {
  static const auto* const cases = new std::map<std::string, absl::Status (*)(const Settings&, Published*)>{
      {"throughput", &RunThroughput}, {"fairness", &RunFairness}, {"numbers", &RunNumbers},
      {"company", &RunCompany},       {"cancel", &RunCancel},     {"grpc", &RunGrpc},
      {"overload", &RunOverload},     {"remote", &RunRemote},     {"devices", &RunDevices}};
  return *cases;
}

absl::Status Run(const Settings& settings) {
  ATOLL_ASSIGN_OR_RETURN(const std::unique_ptr<Published> published, PublishModel(ServingModel{}));
  for (const std::string& name : settings.cases) {
    ATOLL_RETURN_IF_ERROR(Cases().at(name)(settings, published.get()));
  }
  return absl::OkStatus();
}

}  // namespace
}  // namespace atl::bench

// Exit code of a case whose device is not there.
constexpr int kNoDevice = 77;

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);
  const std::vector<std::string> cases = {"throughput", "fairness", "numbers", "company", "cancel",
                                          "overload",   "grpc",     "remote",  "devices"};
  atl::bench::Settings settings;
  settings.cases = cases;
  settings.worker = std::filesystem::read_symlink("/proc/self/exe").replace_filename("atoll-worker");
  settings.router = std::filesystem::path(settings.worker).replace_filename("atoll-router");
  CLI::App app{"Serving: step-level batches against their rivals, fairness, cancelling, overload, expert servers"};
  app.add_option(
         "--case", settings.cases,
         "throughput (batched-vs-loop, vs-offline, batched-vs-python), fairness (fair-one-by-one, fair-at-once), "
         "numbers (same-numbers), company, cancel, overload, grpc (cancel-grpc, overload-grpc), remote "
         "(remote-vs-local) or devices (hot-expert); repeatable")
      ->allow_extra_args(false)
      ->check(CLI::IsMember(cases));
  app.add_option("--rounds", settings.rounds,
                 "in which rivals take turns; half as many of fairness; overload and company are one run")
      ->check(CLI::Range(1, 1000))
      ->capture_default_str();
  app.add_option("--steps", settings.steps, "solver steps of an image")
      ->check(CLI::Range(1, 250))
      ->capture_default_str();
  app.add_option("--overload-seconds", settings.overload_seconds, "of ten times the sustainable rate")
      ->check(CLI::Range(1.0, 3600.0))
      ->capture_default_str();
  app.add_option("--company-images", settings.company_images, "of the case company, in each kind of company")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  app.add_option("--model-dir", settings.model_dir,
                 "a published version for the case company, in place of random weights");
  app.add_option("--device", settings.device, "of the case throughput: cpu, or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  app.add_option("--peer-python", settings.peer_python, "python of tests/peers/setup.sh");
  app.add_option("--peer-script", settings.peer_script, "tests/peers/torch_serving.py");
  app.add_option("--router", settings.router, "atoll-router, for the case grpc")->capture_default_str();
  app.add_option("--worker", settings.worker, "atoll-worker, for expert servers")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  atl::bench::KeepStandardOutputForFigures();
  const absl::Status status = atl::bench::Run(settings);
  const int code = atl::bench::EndBench("serving_bench", status);
  return atl::ErrorReason(status) == "DEVICE_UNAVAILABLE" ? kNoDevice : code;
}
