#include "client/commands/commands.h"
#include "client/dataset_store.h"
#include "client/sampling/quality_report.h"
#include "client/watch_job.h"
#include "common/base/errors.h"
#include "common/base/files.h"
#include "common/base/flag_checks.h"
#include "common/base/status_macros.h"
#include "common/dataset/contact_sheet.h"
#include "common/dataset/image_codec.h"
#include "fmt/format.h"

namespace atl::client {
namespace {

struct ReportFlags {
  std::string job;
  std::vector<std::string> samples;
  std::string out;
  int count = 20;
};

absl::Status Report(const Session& session, const ReportFlags& flags) {
  ATOLL_ASSIGN_OR_RETURN(const atlpb::job::v1::Job job, GetJob(session, flags.job));
  ATOLL_ASSIGN_OR_RETURN(const auto store, OpenExistingBlobStore(session));
  ATOLL_ASSIGN_OR_RETURN(const auto manifest, ReadDataset(store.get(), job.spec().dataset()));
  std::vector<SampleSet> sets;
  for (const std::string& folder : flags.samples) {
    ATOLL_ASSIGN_OR_RETURN(sets.emplace_back(), ReadSampleSet(folder));
  }
  std::vector<dataset::SheetRow> rows;
  ATOLL_ASSIGN_OR_RETURN(const QualityReport report, MakeReport(job, manifest, store.get(), sets, flags.count, &rows));
  ATOLL_ASSIGN_OR_RETURN(
      const dataset::Image sheet,
      dataset::DrawContactSheet(rows, {.title = fmt::format("{}: what each cluster holds", manifest.name)}));
  ATOLL_ASSIGN_OR_RETURN(const std::string png, dataset::EncodePng(sheet));
  ATOLL_RETURN_IF_ERROR(WriteFile(flags.out + "/clusters.png", png));
  ATOLL_RETURN_IF_ERROR(WriteFile(flags.out + "/report.md", ToMarkdown(report)));
  const std::string json = ToJson(report);
  ATOLL_RETURN_IF_ERROR(WriteFile(flags.out + "/report.json", json));
  if (session.format == OutputFormat::kJson) {
    *session.out << json;
    return absl::OkStatus();
  }
  *session.out << fmt::format("wrote {0}/clusters.png, {0}/report.md and {0}/report.json\n", flags.out);
  for (const ScoredSamples& scored : report.scored) {
    *session.out << fmt::format("{} samples ({}): 5-NN class accuracy {:.3f}, MMD {:.4f}\n", scored.quality.images,
                                ModeText(scored.samples.mode), scored.quality.nearest_neighbour_accuracy,
                                scored.quality.mmd);
  }
  return absl::OkStatus();
}

}  // namespace

void AddReportCommand(CLI::App* app, Session* session) {
  auto flags = std::make_shared<ReportFlags>();
  CLI::App* command = app->add_subcommand("report", "Writes what a job made: clusters, losses, routing, quality");
  command->add_option("--job", flags->job, "Job id")->required();
  command->add_option("--samples", flags->samples, "Folder of samples (atoll sample --out FOLDER) to score; repeatable")
      ->allow_extra_args(false);
  command->add_option("--out", flags->out, "Folder for clusters.png, report.md and report.json")->required();
  command->add_option("--count", flags->count, "Images per cluster in clusters.png")
      ->check(WholeNumber(1, 200))
      ->capture_default_str();
  command->footer(R"(
Example:
  atoll sample --class all --count 20 --out samples/ && atoll report --job ID --samples samples/ --out report/
)");
  command->callback([session, flags] { session->run = [session, flags] { return Report(*session, *flags); }; });
}

}  // namespace atl::client
