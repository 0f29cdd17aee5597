#include <algorithm>
#include <optional>

#include "client/commands/commands.h"
#include "client/job_checks.h"
#include "client/spec_file.h"
#include "client/table.h"
#include "common/base/errors.h"
#include "common/base/files.h"
#include "common/base/flag_checks.h"
#include "common/base/status_macros.h"
#include "common/formats/profile_file.h"
#include "common/planner/fit_stages.h"
#include "common/planner/frozen_flow.h"
#include "common/planner/plan.h"
#include "common/schedule/drawing.h"
#include "common/schedule/simulator.h"
#include "common/spec/spec_io.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "nlohmann/json.hpp"

namespace atl::client {
namespace {

struct PlanFlags {
  SpecFlags spec;
  int ranks = 1;
  std::string image;
  std::string network = "expert";
  std::string format = "text";
  std::string profile;
  int64_t samples = 0;
  double device_memory_gib = 0;
  std::optional<double> transfer_seconds;
  bool self_conditioned = false;
};

// The plan that a request gets, and what it is judged by.
struct Outlook {
  planner::PlanRequest request;
  bool counted = false;          // costs, instead of measured
  bool frozen_left_out = false;  // the job has frozen components, and nothing says what they cost
  planner::PlanChoice choice;
  schedule::SimulationCosts costs;
  schedule::Simulation simulation;
  schedule::Simulation self_conditioned;  // without ranks where the model is not

  bool is_self_conditioned() const { return choice.plan.is_self_conditioned(); }
};

double PeakBytes(const planner::Candidate& candidate) {
  const std::vector<double>& peaks = candidate.predicted.peak_bytes;
  return peaks.empty() ? 0 : *std::max_element(peaks.begin(), peaks.end());
}

// Refused candidates have no prediction.
bool HasPrediction(const planner::Candidate& candidate) {
  return candidate.predicted.iteration_seconds > 0;
}

std::string AsJson(const Outlook& outlook) {
  const planner::Plan& plan = outlook.choice.plan;
  nlohmann::ordered_json stages;
  for (const planner::StagePlacement& stage : plan.stages) {
    stages.push_back({{"rank", stage.rank}, {"first_layer", stage.first_layer}, {"end_layer", stage.end_layer}});
  }
  nlohmann::ordered_json json;
  json["plan"] = {{"schedule", plan.generator},
                  {"reason", plan.reason},
                  {"replicas", plan.replicas},
                  {"micro_batches", plan.micro_batches},
                  {"micro_batch_size", plan.micro_batch_size},
                  {"iteration_seconds", plan.predicted.iteration_seconds},
                  {"bubble", plan.predicted.bubble},
                  {"peak_bytes", plan.predicted.peak_bytes},
                  {"exposed_transfer_seconds", outlook.simulation.exposed_transfer_seconds},
                  {"recomputed_layers", plan.recomputed_layers},
                  {"stages", stages},
                  {"actions", schedule::ToText(plan.schedule)}};
  if (outlook.is_self_conditioned()) {
    const double rate = outlook.request.self_conditioning_rate;
    json["plan"]["self_conditioning_rate"] = rate;
    json["plan"]["self_conditioned_seconds"] = plan.predicted.self_conditioned_seconds;
    json["plan"]["expected_seconds"] = planner::ExpectedSeconds(plan.predicted, rate);
    json["plan"]["self_conditioned_actions"] = schedule::ToText(plan.self_conditioned);
  }
  for (const planner::Candidate& c : outlook.choice.candidates) {
    json["schedules"].push_back({{"schedule", c.schedule},
                                 {"chosen", c.chosen},
                                 {"ranks", c.ranks},
                                 {"stages", c.stages},
                                 {"replicas", c.replicas},
                                 {"micro_batches", c.micro_batches},
                                 {"micro_batch_size", c.micro_batch_size},
                                 {"recomputed_layers", c.recomputed_layers},
                                 {"frozen_pieces", c.frozen_pieces},
                                 {"iteration_seconds", c.predicted.iteration_seconds},
                                 {"self_conditioned_seconds", c.predicted.self_conditioned_seconds},
                                 {"expected_seconds", c.expected_seconds},
                                 {"bound_seconds", c.bound_seconds},
                                 {"bubble", c.predicted.bubble},
                                 {"peak_bytes", c.predicted.peak_bytes},
                                 {"why_not", c.why_not}});
  }
  return json.dump(2) + "\n";
}

std::string Milliseconds(double seconds) {
  return fmt::format("{:.4g} ms", 1000 * seconds);
}

// Self-conditioned models have two columns more.
void AddRow(const planner::Candidate& c, bool self_conditioned, Table* table) {
  std::vector<std::string> cells = {c.schedule + (c.chosen ? " *" : "")};
  if (HasPrediction(c)) {
    cells.push_back(Milliseconds(c.predicted.iteration_seconds));
    if (self_conditioned) {
      cells.push_back(Milliseconds(c.predicted.self_conditioned_seconds));
      cells.push_back(Milliseconds(c.expected_seconds));
    }
    cells.push_back(Milliseconds(c.bound_seconds));
    cells.push_back(fmt::format("{:.1f} %", 100 * c.predicted.bubble));
    cells.push_back(BytesText(static_cast<int64_t>(PeakBytes(c))));
    cells.push_back(fmt::format("{} x {}, {} of {}", c.stages, c.replicas, c.micro_batches, c.micro_batch_size));
  } else {
    cells.resize(self_conditioned ? 8 : 6, "-");
  }
  cells.push_back(c.chosen ? "chosen" : OneLine(c.why_not));
  table->Add(std::move(cells));
}

Table Schedules(const Outlook& outlook) {
  std::vector<std::string> heads = {"SCHEDULE", "ITERATION"};
  if (outlook.is_self_conditioned()) heads.insert(heads.end(), {"SELF-CONDITIONED", "EXPECTED"});
  heads.insert(heads.end(), {"BOUND", "BUBBLE", "PEAK MEMORY", "STAGES x REPLICAS, MICRO-BATCHES", "WHY NOT"});
  Table table(std::move(heads));
  for (const planner::Candidate& candidate : outlook.choice.candidates) {
    AddRow(candidate, outlook.is_self_conditioned(), &table);
  }
  return table;
}

std::string Lines(const schedule::Schedule& schedule, int width) {
  std::string text;
  const std::string actions = schedule::ToText(schedule);
  for (size_t at = 0, rank = 0; at < actions.size(); ++rank) {
    const size_t end = actions.find('\n', at);
    const std::string line = fmt::format("  rank {}: {}", rank, actions.substr(at, end - at));
    text += (width > 0 ? Shorten(line, width) : line) + "\n";
    at = end + 1;
  }
  return text;
}

std::string AsText(const Outlook& outlook, int width) {
  const planner::Plan& plan = outlook.choice.plan;
  std::string text = plan.reason + "\n\n" + Schedules(outlook).Text(width) + "\nPeak memory of each rank:";
  for (const double bytes : plan.predicted.peak_bytes) text += " " + BytesText(static_cast<int64_t>(bytes));
  text += "\nWhat each rank does (stage, action, micro-batch):\n" + Lines(plan.schedule, width);
  if (outlook.is_self_conditioned()) {
    text += fmt::format("In {:.4g} % of steps, those whose model sees its own estimate:\n{}",
                        100 * outlook.request.self_conditioning_rate, Lines(plan.self_conditioned, width));
  }
  if (outlook.frozen_left_out) {
    text +=
        "\nFrozen work is left out, for its costs are not known (atoll profile measures them): an island does it "
        "after\n"
        "the rest of the iteration.\n";
  }
  return text + "\n* chosen. Bound: no schedule of this split and these micro-batches is shorter" +
         (outlook.is_self_conditioned() ? ", on average." : ".") +
         (outlook.counted ? " Times are counted for one core at 84 GFLOP/s:\ncompare them with each other, or give a "
                            "measured --profile.\n"
                          : "\n");
}

std::string AsSvg(const Outlook& outlook, const std::string& title, bool self_conditioned) {
  const planner::Plan& plan = outlook.choice.plan;
  const schedule::Simulation& simulation = self_conditioned ? outlook.self_conditioned : outlook.simulation;
  schedule::Drawing drawing =
      schedule::DrawSimulation(self_conditioned ? plan.self_conditioned : plan.schedule, outlook.costs, simulation);
  drawing.title = fmt::format("{}: {} over {} {}{}, {} {} of {}", title, plan.generator, plan.schedule.rank_count(),
                              plan.schedule.rank_count() == 1 ? "rank" : "ranks",
                              plan.replicas > 1 ? fmt::format(" x {} replicas", plan.replicas) : "", plan.micro_batches,
                              plan.micro_batches == 1 ? "micro-batch" : "micro-batches", plan.micro_batch_size);
  drawing.subtitle = fmt::format(
      "Predicted{}: {}, bubble {:.1f} %", self_conditioned ? " where the model sees its own estimate" : "",
      Milliseconds(self_conditioned ? plan.predicted.self_conditioned_seconds : plan.predicted.iteration_seconds),
      100 * simulation.bubble);
  for (const planner::Candidate& candidate : outlook.choice.candidates) {
    if (candidate.chosen && !outlook.is_self_conditioned())
      drawing.subtitle += fmt::format(", bound {}", Milliseconds(candidate.bound_seconds));
  }
  return schedule::ToSvg(drawing);
}

const spec::TrainingSpec& TrainingOf(const PlanFlags& flags, const spec::JobSpec& spec) {
  return flags.network == "router" ? spec.router_training : spec.training;
}

std::vector<spec::FrozenSpec> FrozenOf(const PlanFlags& flags, const spec::JobSpec& spec) {
  return flags.network == "router" ? spec::LatentChain(spec.frozen) : spec.frozen;
}

// Measured, where a file is given; else counted.
absl::StatusOr<planner::Profile> FindProfile(const Session& session, const PlanFlags& flags,
                                             const spec::JobSpec& spec) {
  const bool router = flags.network == "router";
  const spec::ModelSpec& model = router ? spec.router_model : spec.model;
  spec::SampleShape image;
  if (flags.profile.empty() || !flags.image.empty()) {
    ATOLL_ASSIGN_OR_RETURN(image, FindImages(session, flags.image, spec, flags.spec.file));
  }
  if (!flags.profile.empty()) {
    ATOLL_ASSIGN_OR_RETURN(const std::string text, ReadFile(flags.profile));
    ATOLL_ASSIGN_OR_RETURN(planner::Profile profile, storage::ParseProfile(text, flags.profile));
    const size_t frozen = FrozenOf(flags, spec).size();
    if (!profile.frozen.empty() && profile.frozen.size() != frozen) {
      return MakeError(absl::StatusCode::kInvalidArgument, "PROFILE_MISMATCH",
                       fmt::format("{}: expected a profile of {} frozen components, as the job's {} has, found {}",
                                   flags.profile, frozen, flags.network, profile.frozen.size()));
    }
    ATOLL_RETURN_IF_ERROR(CheckProfileIsOf(profile, model, flags.network, flags.profile));
    if (const size_t ranks = profile.rank_slowdown.size(); ranks > 1 && ranks != static_cast<size_t>(flags.ranks)) {
      *session.err << fmt::format("{}: measured by {} ranks at once, planned for {}\n", flags.profile, ranks,
                                  flags.ranks);
    }
    return profile;
  }
  ATOLL_ASSIGN_OR_RETURN(const spec::SampleShape shape, spec::LearntShape(spec.frozen, image));
  const int32_t tokens = (shape[1] / model.patch) * (shape[2] / model.patch);
  planner::Profile profile = planner::CountedProfile(model, tokens, shape[0]);
  // How many classes an embedding holds changes its memory alone, and that is little.
  profile.frozen =
      planner::CountedFrozen(FrozenOf(flags, spec), image, /*classes=*/0, TrainingOf(flags, spec).batch_size);
  return profile;
}

absl::Status Plan(const Session& session, const PlanFlags& flags) {
  ATOLL_ASSIGN_OR_RETURN(const spec::JobSpec spec, ReadSpecFile(flags.spec));
  if (session.format == OutputFormat::kJson && flags.format != "text" && flags.format != "json") {
    return MakeError(absl::StatusCode::kInvalidArgument, "USAGE",
                     fmt::format("--format: expected json or none beside --output json, found '{}'", flags.format));
  }
  const spec::TrainingSpec& training = TrainingOf(flags, spec);
  Outlook outlook{.counted = flags.profile.empty()};
  outlook.request = {.pipeline = spec.pipeline,
                     .precision = training.precision,
                     .batch_size = training.batch_size,
                     .ranks = flags.ranks};
  if (flags.network == "expert" && spec.model.self_conditioning) {
    outlook.request.self_conditioning_rate = training.self_conditioning_rate;
  } else if (flags.self_conditioned) {
    return MakeError(absl::StatusCode::kInvalidArgument, "NOT_SELF_CONDITIONED",
                     "--self-conditioned: expected an expert's network with model.self_conditioning, found another");
  }
  outlook.request.device_memory_bytes = flags.device_memory_gib * (1 << 30);
  ATOLL_ASSIGN_OR_RETURN(outlook.request.profile, FindProfile(session, flags, spec));
  int32_t& stages = outlook.request.pipeline.stages;
  stages = planner::FitStages(spec.pipeline, flags.ranks, outlook.request.profile.layer_count());
  if (stages != spec.pipeline.stages) {
    *session.err << fmt::format("pipeline.stages: {} are too many for {} ranks; planned with {}, as a job would be\n",
                                spec.pipeline.stages, flags.ranks, stages);
  }
  const std::vector<spec::FrozenSpec> frozen = FrozenOf(flags, spec);
  outlook.frozen_left_out = outlook.request.profile.frozen.empty() && !frozen.empty();
  if (!outlook.frozen_left_out) outlook.request.components = planner::ComponentsOf(frozen);
  if (flags.samples > 0) {
    // How many classes there are hardly matters beside the images.
    outlook.request.frozen_inputs = planner::FrozenInputsOf(frozen, training, flags.samples, /*classes=*/0);
  }
  if (flags.transfer_seconds.has_value()) outlook.request.profile.transfer_latency_seconds = *flags.transfer_seconds;
  ATOLL_ASSIGN_OR_RETURN(outlook.choice, planner::ComparePlans(outlook.request));
  outlook.costs = planner::CostsOf(outlook.choice.plan, outlook.request.profile);
  ATOLL_ASSIGN_OR_RETURN(outlook.simulation, schedule::Simulate(outlook.choice.plan.schedule, outlook.costs));
  if (outlook.is_self_conditioned()) {
    ATOLL_ASSIGN_OR_RETURN(outlook.self_conditioned,
                           schedule::Simulate(outlook.choice.plan.self_conditioned, outlook.costs));
  }
  const bool json = flags.format == "json" || session.format == OutputFormat::kJson;
  *session.out << (json ? AsJson(outlook)
                   : flags.format == "svg"
                       ? AsSvg(outlook, fmt::format("{}, {}", spec.model_name, flags.network), flags.self_conditioned)
                       : AsText(outlook, session.width));
  return absl::OkStatus();
}

}  // namespace

void AddPlanCommand(CLI::App* app, Session* session) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* command = app->add_subcommand("plan", "Predicts how an island would run a job, without running it");
  AddSpecFlags(command, &flags->spec);
  command->add_option("--ranks", flags->ranks, "Ranks of the island")->required()->check(WholeNumber(1, 4096));
  command->add_option("--image", flags->image, "CHANNELSxHEIGHTxWIDTH; default: as the job's dataset has it");
  command->add_option("--network", flags->network, "expert or router")->check(CLI::IsMember({"expert", "router"}));
  command
      ->add_option("--samples", flags->samples,
                   "Images that the network trains on; weighs whether frozen outputs are kept")
      ->check(WholeNumber(int64_t{1}, int64_t{1} << 40));
  command->add_option("--profile", flags->profile, "Measured costs, as atoll profile writes them; default: counted");
  command->add_option("--device-memory", flags->device_memory_gib, "GiB of each rank that pipeline.memory: auto means")
      ->check(Number(0));
  command->add_option("--transfer", flags->transfer_seconds, "Seconds of one hop between two ranks")->check(Number(0));
  command->add_option("--format", flags->format, "text, json or svg: a picture of the job's schedule")
      ->check(CLI::IsMember({"text", "json", "svg"}));
  command->add_flag("--self-conditioned", flags->self_conditioned,
                    "With svg: draws a step whose model sees its own estimate");
  command->footer(R"(
Shows the plan that the job would get, why, and every other schedule beside it: time of one iteration, the bound below
which no schedule of that split comes, share of idle time, and memory.

Examples:
  atoll plan deploy/jobs/digits.yaml --ranks 2
  atoll plan job.yaml --ranks 8 --image 4x32x32 --set pipeline.micro_batches=32 --format json
  atoll plan job.yaml --ranks 4 --image 3x32x32 --format svg > plan.svg
)");
  command->callback([session, flags] { session->run = [session, flags] { return Plan(*session, *flags); }; });
}

}  // namespace atl::client
