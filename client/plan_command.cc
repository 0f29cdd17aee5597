#include <algorithm>
#include <array>
#include <charconv>
#include <utility>

#include "client/commands.h"
#include "client/dataset_store.h"
#include "client/spec_file.h"
#include "client/table.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/planner/plan.h"
#include "common/schedule/drawing.h"
#include "common/schedule/generators.h"
#include "common/schedule/simulator.h"
#include "common/spec/spec_io.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "nlohmann/json.hpp"

namespace atl::client {
namespace {

struct PlanFlags {
  std::string file;
  std::vector<std::string> set;
  int ranks = 1;
  std::string image;
  std::string network = "expert";
  std::string format = "text";
  double transfer_seconds = 0;
};

struct ImageShape {
  int32_t channels = 0;
  int32_t height = 0;
  int32_t width = 0;
};

// A plan and what the simulator says of it.
struct Outlook {
  planner::Plan plan;
  schedule::Simulation simulation;
  double one_rank_seconds = 0;
  bool chosen = false;

  double peak_bytes() const {
    return *std::max_element(simulation.peak_activation_bytes.begin(), simulation.peak_activation_bytes.end());
  }
  double speedup() const { return one_rank_seconds / simulation.makespan_seconds; }
};

absl::StatusOr<ImageShape> ParseShape(const std::string& text) {
  std::array<int32_t, 3> numbers{};
  const char* at = text.data();
  const char* const end = at + text.size();
  for (size_t i = 0; i < numbers.size(); ++i) {
    const auto [stop, error] = std::from_chars(at, end, numbers[i]);
    const bool last = i + 1 == numbers.size();
    if (error != std::errc() || numbers[i] < 1 || (last ? stop != end : stop == end || *stop != 'x')) {
      return MakeError(absl::StatusCode::kInvalidArgument, "USAGE",
                       fmt::format("--image: expected CHANNELSxHEIGHTxWIDTH such as 1x8x8, found '{}'", text));
    }
    at = stop + 1;
  }
  return ImageShape{numbers[0], numbers[1], numbers[2]};
}

// As given, or as the job's dataset has it.
absl::StatusOr<ImageShape> FindShape(const Session& session, const PlanFlags& flags, const std::string& dataset_name) {
  if (!flags.image.empty()) return ParseShape(flags.image);
  const auto store = OpenBlobStore(session);
  if (!store.ok()) return WithContext(store.status(), "without --image CxHxW the dataset must tell the size of images");
  ATOLL_ASSIGN_OR_RETURN(const auto manifest, ReadDataset(store->get(), dataset_name));
  return ImageShape{manifest.channels, manifest.height, manifest.width};
}

absl::StatusOr<Outlook> LookAt(const planner::PlanRequest& request, planner::Plan plan) {
  Outlook outlook{.plan = std::move(plan)};
  ATOLL_ASSIGN_OR_RETURN(outlook.simulation,
                         schedule::Simulate(outlook.plan.schedule, planner::CostsOf(outlook.plan, request.profile)));
  for (const planner::LayerProfile& layer : planner::LayersAt(request.profile, request.batch_size)) {
    outlook.one_rank_seconds += layer.forward_seconds + layer.backward_seconds;
  }
  return outlook;
}

// The job's schedule, or another one on as many ranks: a rank of one schedule may hold more stages than of the other.
absl::StatusOr<Outlook> Predict(planner::PlanRequest request, const schedule::GeneratorInfo& generator) {
  const bool chosen = generator.name == request.pipeline.schedule;
  ATOLL_ASSIGN_OR_RETURN(const schedule::GeneratorInfo of_job, schedule::FindGenerator(request.pipeline.schedule));
  if (!chosen && request.pipeline.stages > 0) {
    const int32_t ranks = std::min(request.pipeline.stages / of_job.stages_per_rank,
                                   request.profile.layer_count() / generator.stages_per_rank);
    request.pipeline.stages = std::max(ranks, 1) * generator.stages_per_rank;
  }
  request.pipeline.schedule = generator.name;
  ATOLL_ASSIGN_OR_RETURN(planner::Plan plan, planner::MakePlan(request));
  ATOLL_ASSIGN_OR_RETURN(Outlook outlook, LookAt(request, std::move(plan)));
  outlook.chosen = chosen;
  return outlook;
}

std::string AsCsv(const std::vector<Outlook>& outlooks) {
  std::string text = "schedule,chosen,stages,micro_batches,iteration_seconds,speedup,bubble,peak_activation_bytes\n";
  for (const Outlook& outlook : outlooks) {
    text += fmt::format("{},{},{},{},{:.6g},{:.4f},{:.4f},{:.0f}\n", outlook.plan.generator, outlook.chosen,
                        outlook.plan.schedule.stages, outlook.plan.micro_batches, outlook.simulation.makespan_seconds,
                        outlook.speedup(), outlook.simulation.bubble, outlook.peak_bytes());
  }
  return text;
}

std::string AsJson(const std::vector<Outlook>& outlooks) {
  nlohmann::ordered_json json;
  for (const Outlook& outlook : outlooks) {
    nlohmann::ordered_json stages;
    for (const planner::StagePlacement& stage : outlook.plan.stages) {
      stages.push_back({{"rank", stage.rank}, {"first_layer", stage.first_layer}, {"end_layer", stage.end_layer}});
    }
    json["schedules"].push_back({{"schedule", outlook.plan.generator},
                                 {"chosen", outlook.chosen},
                                 {"iteration_seconds", outlook.simulation.makespan_seconds},
                                 {"speedup", outlook.speedup()},
                                 {"bubble", outlook.simulation.bubble},
                                 {"peak_activation_bytes", outlook.simulation.peak_activation_bytes},
                                 {"exposed_transfer_seconds", outlook.simulation.exposed_transfer_seconds},
                                 {"stages", stages},
                                 {"actions", schedule::ToText(outlook.plan.schedule)}});
  }
  return json.dump(2) + "\n";
}

std::string AsText(const std::vector<Outlook>& outlooks, int width) {
  std::string text;
  for (const Outlook& outlook : outlooks) {
    if (outlook.chosen) text += outlook.plan.reason + "\n\n";
  }
  Table table({"SCHEDULE", "ITERATION", "SPEED-UP", "BUBBLE", "PEAK ACTIVATIONS PER RANK"});
  for (const Outlook& outlook : outlooks) {
    std::vector<std::string> peaks;
    for (const double bytes : outlook.simulation.peak_activation_bytes) {
      peaks.push_back(BytesText(static_cast<int64_t>(bytes)));
    }
    table.Add({outlook.plan.generator + (outlook.chosen ? " *" : ""),
               fmt::format("{:.3g} ms", 1000 * outlook.simulation.makespan_seconds),
               fmt::format("{:.2f}x", outlook.speedup()), fmt::format("{:.1f} %", 100 * outlook.simulation.bubble),
               fmt::format("{}", fmt::join(peaks, ", "))});
  }
  text += table.Text(width);
  for (const Outlook& outlook : outlooks) {
    if (!outlook.chosen) continue;
    text += "\nWhat each rank does (stage, action, micro-batch):\n";
    const std::string actions = schedule::ToText(outlook.plan.schedule);
    for (size_t at = 0, rank = 0; at < actions.size(); ++rank) {
      const size_t end = actions.find('\n', at);
      const std::string line = fmt::format("  rank {}: {}", rank, actions.substr(at, end - at));
      text += (width > 0 ? Shorten(line, width) : line) + "\n";
      at = end + 1;
    }
  }
  return text + "\n* the job's schedule. Times are counted for one core at 84 GFLOP/s: compare them with each other.\n";
}

// Of the job's schedule; the others are in the table.
std::string AsSvg(const std::vector<Outlook>& outlooks, const planner::Profile& profile,
                  const std::string& model_name) {
  for (const Outlook& outlook : outlooks) {
    if (!outlook.chosen) continue;
    schedule::Drawing drawing =
        schedule::DrawSimulation(outlook.plan.schedule, planner::CostsOf(outlook.plan, profile), outlook.simulation);
    drawing.title = fmt::format("{}: {} over {} ranks, {} micro-batches of {}", model_name, outlook.plan.generator,
                                outlook.plan.rank_count(), outlook.plan.micro_batches, outlook.plan.micro_batch_size);
    drawing.subtitle =
        fmt::format("Predicted: {:.4g} ms, bubble {:.1f} %, {:.2f} times one rank",
                    1000 * outlook.simulation.makespan_seconds, 100 * outlook.simulation.bubble, outlook.speedup());
    return schedule::ToSvg(drawing);
  }
  return "";
}

absl::Status Plan(const Session& session, const PlanFlags& flags) {
  ATOLL_ASSIGN_OR_RETURN(const spec::JobSpec spec, ReadSpecFile(flags.file, flags.set));
  ATOLL_RETURN_IF_ERROR(WithContext(spec::Validate(spec, nullptr), flags.file));
  ATOLL_ASSIGN_OR_RETURN(const ImageShape shape, FindShape(session, flags, spec.dataset));
  const bool router = flags.network == "router";
  const spec::ModelSpec& model = router ? spec.router_model : spec.model;
  if (shape.height % model.patch != 0 || shape.width % model.patch != 0) {
    return FieldError(router ? "router_model.patch" : "model.patch", "NOT_DIVISIBLE",
                      fmt::format("expected a patch that divides the images ({} x {}), found {}", shape.height,
                                  shape.width, model.patch));
  }
  const spec::TrainingSpec& training = router ? spec.router_training : spec.training;
  const int32_t tokens = (shape.height / model.patch) * (shape.width / model.patch);
  planner::PlanRequest request{.pipeline = spec.pipeline,
                               .precision = training.precision,
                               .batch_size = training.batch_size,
                               .ranks = flags.ranks,
                               .profile = planner::CountedProfile(model, tokens, shape.channels)};
  request.profile.transfer_latency_seconds = flags.transfer_seconds;
  std::vector<Outlook> outlooks;
  std::string planned;
  if (request.pipeline.schedule == "auto") {
    // The planner's choice, beside every other schedule on as many ranks, replicas and micro-batches.
    ATOLL_ASSIGN_OR_RETURN(planner::Plan choice, planner::MakePlan(request));
    planned = choice.generator;
    request.pipeline.schedule = "1f1b";
    request.pipeline.stages = choice.schedule.rank_count();
    request.pipeline.replicas = choice.replicas;
    request.pipeline.micro_batches = choice.micro_batches;
    ATOLL_ASSIGN_OR_RETURN(outlooks.emplace_back(), LookAt(request, std::move(choice)));
    outlooks.back().chosen = true;
  }
  for (const schedule::GeneratorInfo& generator : schedule::Generators()) {
    if (generator.name == planned) continue;
    ATOLL_ASSIGN_OR_RETURN(outlooks.emplace_back(), Predict(request, generator));
    if (!planned.empty()) outlooks.back().chosen = false;
  }
  const bool json = flags.format == "json" || session.format == OutputFormat::kJson;
  *session.out << (json                    ? AsJson(outlooks)
                   : flags.format == "csv" ? AsCsv(outlooks)
                   : flags.format == "svg" ? AsSvg(outlooks, request.profile, spec.model_name)
                                           : AsText(outlooks, session.width));
  return absl::OkStatus();
}

}  // namespace

void AddPlanCommand(CLI::App* app, Session* session) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* command = app->add_subcommand("plan", "Predicts how an island would run a job, without running it");
  command->add_option("FILE", flags->file, "Job spec in YAML; - for standard input")->required();
  command->add_option("--ranks", flags->ranks, "Ranks of the island")->required()->check(CLI::Range(1, 4096));
  command->add_option("--set", flags->set, "Replaces one field; repeatable")
      ->type_name("FIELD=VALUE")
      ->allow_extra_args(false);
  command->add_option("--image", flags->image, "CHANNELSxHEIGHTxWIDTH; default: as the job's dataset has it");
  command->add_option("--network", flags->network, "expert or router")->check(CLI::IsMember({"expert", "router"}));
  command->add_option("--transfer", flags->transfer_seconds, "Seconds of one hop between two ranks")
      ->check(CLI::NonNegativeNumber);
  command->add_option("--format", flags->format, "text, csv, json or svg: a picture of the job's schedule")
      ->check(CLI::IsMember({"text", "csv", "json", "svg"}));
  command->footer(R"(
Shows the job's schedule beside every other: time of one iteration, gain over one rank, share of idle time, and memory.

Examples:
  atoll plan deploy/jobs/digits.yaml --ranks 2
  atoll plan job.yaml --ranks 8 --image 4x32x32 --set pipeline.micro_batches=32 --format csv
  atoll plan job.yaml --ranks 4 --image 3x32x32 --format svg > plan.svg
)");
  command->callback([session, flags] { session->run = [session, flags] { return Plan(*session, *flags); }; });
}

}  // namespace atl::client
