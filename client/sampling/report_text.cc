// A report as Markdown and as JSON.
#include <numeric>

#include "client/sampling/quality_report.h"
#include "client/table.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "nlohmann/json.hpp"

namespace atl::client {
namespace {

double Share(int64_t part, int64_t all) {
  return all > 0 ? static_cast<double>(part) / static_cast<double>(all) : 0;
}

std::string Optional(const std::optional<double>& value, int digits) {
  return value ? fmt::format("{:.{}f}", *value, digits) : "–";
}

nlohmann::ordered_json JsonOf(const std::optional<double>& value) {
  return value ? nlohmann::ordered_json(*value) : nlohmann::ordered_json(nullptr);
}

std::optional<double> RatioOf(const std::optional<dataset::Memorisation>& memorisation,
                              double dataset::Memorisation::*ratio) {
  return memorisation ? std::optional<double>((*memorisation).*ratio) : std::nullopt;
}

nlohmann::ordered_json JsonOf(const std::optional<dataset::Diversity>& diversity) {
  if (!diversity) return nullptr;
  return {{"density", diversity->density}, {"coverage", diversity->coverage}, {"recall", diversity->recall}};
}

std::string Classes(const ClusterSummary& cluster) {
  std::vector<std::string> parts;
  for (const auto& [label, count] : cluster.classes) parts.push_back(fmt::format("{}: {}", label, count));
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string ClusterSection(const QualityReport& report) {
  std::string text =
      "## Clusters\n\n![clusters](clusters.png)\n\n| cluster | samples | share | samples by class "
      "|\n|---|---|---|---|\n";
  int64_t all = 0;
  for (const ClusterSummary& cluster : report.clusters) all += cluster.samples;
  for (const ClusterSummary& cluster : report.clusters) {
    text += fmt::format("| {} | {} | {:.1f} % | {} |\n", cluster.cluster, cluster.samples,
                        100 * Share(cluster.samples, all), Classes(cluster));
  }
  return text + "\n";
}

std::string TrainingSection(const QualityReport& report) {
  std::string text = "## Training\n\n| network | steps | last loss | accuracy | attempts |\n|---|---|---|---|---|\n";
  for (const NetworkSummary& network : report.networks) {
    text += fmt::format("| {} | {} | {} | {} | {} |\n", network.name, network.steps, Optional(network.loss, 4),
                        Optional(network.accuracy, 3), network.attempts);
  }
  return text + "\n";
}

std::string RoutingSection(const SampleSet& samples) {
  const Routing& routing = samples.routing;
  const double all = std::accumulate(routing.weight.begin(), routing.weight.end(), 0.0);
  std::string text = fmt::format(
      "## Routing, {}\n\nHow often each expert drew, over images and steps, and its share of the weight.\n\n"
      "| expert | chosen | share | |\n|---|---|---|---|\n",
      ModeText(samples.mode));
  for (size_t k = 0; k < routing.chosen.size(); ++k) {
    const double share = k < routing.weight.size() && all > 0 ? routing.weight[k] / all : 0;
    text += fmt::format("| {} | {} | {:.1f} % | {} |\n", k, routing.chosen[k], 100 * share, Bar(share, 30));
  }
  return text + fmt::format("\nMean entropy of the router network's choice: {:.3f} nats.\n\n", routing.mean_entropy);
}

std::string QualityRow(const std::string& name, int64_t images, const std::optional<double>& accuracy,
                       const std::optional<double>& mmd, const std::optional<dataset::Diversity>& diversity,
                       const std::optional<double>& memorisation) {
  const auto of = [&](double dataset::Diversity::*figure) {
    return diversity ? std::optional<double>((*diversity).*figure) : std::nullopt;
  };
  return fmt::format("| {} | {} | {} | {} | {} | {} | {} | {} |\n", name, images, Optional(accuracy, 3),
                     Optional(mmd, 4), Optional(of(&dataset::Diversity::density), 2),
                     Optional(of(&dataset::Diversity::coverage), 2), Optional(of(&dataset::Diversity::recall), 2),
                     Optional(memorisation, 3));
}

std::string QualitySection(const QualityReport& report) {
  std::string text = "## Quality\n\n![samples](samples.png)\n\n";
  text += fmt::format(
      "Against the {} real images (class accuracy of the five nearest) and the {} held-out ones (all others).\n\n"
      "| experts | samples | 5-NN class accuracy | MMD² | density | coverage | recall | memorisation |\n"
      "|---|---|---|---|---|---|---|---|\n",
      report.training_samples + report.held_out_samples, report.held_out_samples);
  for (const ScoredSamples& scored : report.scored) {
    const QualitySummary& quality = scored.quality;
    text += QualityRow(ModeText(scored.samples.mode), quality.images, quality.nearest_neighbour_accuracy, quality.mmd,
                       quality.diversity, RatioOf(quality.memorisation, &dataset::Memorisation::median_ratio));
  }
  const QualitySummary& any = report.scored.front().quality;
  text += QualityRow("real images", report.training_samples, std::nullopt, any.mmd_of_training,
                     any.diversity_of_training, RatioOf(any.memorisation, &dataset::Memorisation::baseline_ratio));
  return text +
         "\n- MMD²: unbiased, kernel (x·y/d + 1)³; around 0 for equal distributions.\n"
         "- Density and coverage: samples in the balls of held-out images that reach their fifth neighbour. A density "
         "far above that of real images: samples are blurred; far below: noisy.\n"
         "- Recall: held-out images in such balls of samples; far below that of as many real images, samples lack "
         "diversity.\n"
         "- Memorisation: median distance to the nearest training image over that to the nearest held-out one; far "
         "below that of real images, samples repeat training images.\n\n";
}

std::string TimeSection(const QualityReport& report) {
  std::string text = "## Times\n\n| what | time |\n|---|---|\n";
  text += fmt::format("| job, from submit to published | {:.1f} s |\n", report.job_seconds);
  for (const ScoredSamples& scored : report.scored) {
    text += fmt::format("| sampling {} images, {} | {:.2f} s |\n", scored.quality.images, ModeText(scored.samples.mode),
                        scored.samples.sample_seconds);
  }
  return text;
}

nlohmann::ordered_json JsonOf(const ScoredSamples& scored) {
  const Routing& routing = scored.samples.routing;
  const QualitySummary& quality = scored.quality;
  return {{"mode", ModeText(scored.samples.mode)},
          {"images", quality.images},
          {"nearest_neighbour_accuracy", quality.nearest_neighbour_accuracy},
          {"mmd", quality.mmd},
          {"mmd_of_training", JsonOf(quality.mmd_of_training)},
          {"diversity", JsonOf(quality.diversity)},
          {"diversity_of_training", JsonOf(quality.diversity_of_training)},
          {"memorisation_ratio", JsonOf(RatioOf(quality.memorisation, &dataset::Memorisation::median_ratio))},
          {"memorisation_baseline", JsonOf(RatioOf(quality.memorisation, &dataset::Memorisation::baseline_ratio))},
          {"sample_seconds", scored.samples.sample_seconds},
          {"routing",
           {{"chosen", routing.chosen},
            {"weight", routing.weight},
            {"image_steps", routing.image_steps},
            {"mean_entropy", routing.mean_entropy}}}};
}

}  // namespace

std::string ModeText(const std::string& mode) {
  return mode == "MODE_UNSPECIFIED" ? "top 1" : EnumText(mode);
}

std::string ToMarkdown(const QualityReport& report) {
  std::string text = fmt::format(
      "# Model {}, version {}\n\nJob {} trained {} experts on dataset {}: {} training samples, "
      "{} held out.\n\n",
      report.model, report.version.empty() ? "(not published)" : report.version, report.job_id, report.clusters.size(),
      report.dataset, report.training_samples, report.held_out_samples);
  text += ClusterSection(report) + TrainingSection(report);
  if (!report.scored.empty()) text += QualitySection(report);
  for (const ScoredSamples& scored : report.scored) text += RoutingSection(scored.samples);
  return text + TimeSection(report);
}

std::string ToJson(const QualityReport& report) {
  nlohmann::ordered_json json = {{"format", 1},
                                 {"job", report.job_id},
                                 {"model", report.model},
                                 {"version", report.version},
                                 {"dataset",
                                  {{"name", report.dataset},
                                   {"training_samples", report.training_samples},
                                   {"held_out_samples", report.held_out_samples}}}};
  for (const ClusterSummary& cluster : report.clusters) {
    nlohmann::ordered_json classes = nlohmann::ordered_json::object();
    for (const auto& [label, count] : cluster.classes) classes[fmt::format("{}", label)] = count;
    json["clusters"].push_back({{"cluster", cluster.cluster}, {"samples", cluster.samples}, {"classes", classes}});
  }
  for (const NetworkSummary& network : report.networks) {
    json["networks"].push_back({{"name", network.name},
                                {"steps", network.steps},
                                {"attempts", network.attempts},
                                {"loss", JsonOf(network.loss)},
                                {"accuracy", JsonOf(network.accuracy)}});
  }
  json["samples"] = nlohmann::ordered_json::array();
  for (const ScoredSamples& scored : report.scored) json["samples"].push_back(JsonOf(scored));
  json["job_seconds"] = report.job_seconds;
  return json.dump(2) + "\n";
}

}  // namespace atl::client
