#include <algorithm>

#include "client/commands/commands.h"
#include "client/dataset_store.h"
#include "client/table.h"
#include "common/base/errors.h"
#include "common/base/files.h"
#include "common/base/flag_checks.h"
#include "common/base/status_macros.h"
#include "common/dataset/contact_sheet.h"
#include "common/dataset/image_codec.h"
#include "common/dataset/import/import.h"
#include "common/spec/spec_io.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace atl::client {
namespace {

struct ImportFlags {
  dataset::ImportOptions options;
  std::string format;
  std::string channels = "auto";
};

struct InspectFlags {
  std::string name;
  std::string sheet;
  int count = 10;
};

void Print(const Session& session, const dataset::DatasetManifest& manifest) {
  if (session.format == OutputFormat::kJson) {
    *session.out << dataset::ToJson(manifest) << "\n";
    return;
  }
  int64_t bytes = 0;
  for (const dataset::Shard& shard : manifest.shards) bytes += shard.bytes;
  *session.out << fmt::format(
      "dataset   {}\nimages    {} x {} x {} (channels x height x width)\nclasses   {}: {}\ntrain     {} samples\nheld "
      "out  "
      "{} samples, never trained on\nshards    {}, {}\ncolumns   {}\nskipped   {}\nsource    {}\n",
      manifest.name, manifest.channels, manifest.height, manifest.width, manifest.classes.size(),
      Shorten(OneLine(fmt::format("{}", fmt::join(manifest.classes, ", "))), 60), manifest.rows("train"),
      manifest.rows("held_out"), manifest.shards.size(), BytesText(bytes),
      manifest.columns.empty() ? "none" : OneLine(fmt::format("{}", fmt::join(manifest.columns, ", "))),
      manifest.skipped_count, OneLine(manifest.source));
  for (const dataset::Skipped& skipped : manifest.skipped) {
    *session.out << fmt::format("  {}: {}\n", OneLine(skipped.where), OneLine(skipped.reason));
  }
}

absl::Status Import(const Session& session, ImportFlags flags) {
  ATOLL_RETURN_IF_ERROR(spec::ValidateName("dataset", flags.options.name));
  if (flags.format.empty()) {
    ATOLL_ASSIGN_OR_RETURN(flags.options.format, dataset::DetectSourceFormat(flags.options.paths.front()));
  } else {
    ATOLL_ASSIGN_OR_RETURN(flags.options.format, dataset::ParseSourceFormat(flags.format));
  }
  flags.options.channels = flags.channels == "grey"     ? dataset::ChannelChoice::kGrey
                           : flags.channels == "colour" ? dataset::ChannelChoice::kColour
                                                        : dataset::ChannelChoice::kAuto;
  if (session.terminal) {
    flags.options.progress = [&session](int64_t rows, int64_t skipped) {
      *session.err << fmt::format("\r{} rows, {} skipped", rows, skipped) << std::flush;
    };
  }
  ATOLL_ASSIGN_OR_RETURN(const auto store, OpenBlobStore(session));
  const auto manifest = dataset::ImportDataset(store.get(), flags.options);
  if (session.terminal) *session.err << "\r\x1b[K" << std::flush;
  ATOLL_RETURN_IF_ERROR(manifest.status());
  Print(session, *manifest);
  return absl::OkStatus();
}

// Rows by class, each with its first `count` training images.
absl::StatusOr<std::vector<dataset::SheetRow>> SheetRows(storage::BlobStore* store,
                                                         const dataset::DatasetManifest& manifest, int count) {
  ATOLL_ASSIGN_OR_RETURN(const auto reader, dataset::SampleReader::Open(store, dataset::ShardsOf(manifest, "train")));
  constexpr size_t kMostRows = 40;
  std::vector<dataset::SheetRow> rows(std::min(std::max<size_t>(manifest.classes.size(), 1), kMostRows));
  for (size_t label = 0; label < rows.size() && label < manifest.classes.size(); ++label) {
    rows[label].label = manifest.classes[label];
  }
  size_t full = 0;
  constexpr int64_t kMostRead = 100'000;
  const int64_t read = std::min(reader->size(), kMostRead);
  for (int64_t i = 0; i < read && full < rows.size(); ++i) {
    ATOLL_ASSIGN_OR_RETURN(dataset::Sample sample, reader->Read(i));
    const size_t label = sample.label < 0 ? 0 : static_cast<size_t>(sample.label);
    if (label >= rows.size() || rows[label].images.size() >= static_cast<size_t>(count)) continue;
    rows[label].images.push_back(std::move(sample.image));
    full += rows[label].images.size() == static_cast<size_t>(count) ? 1 : 0;
  }
  std::erase_if(rows, [](const dataset::SheetRow& row) { return row.images.empty(); });
  return rows;
}

absl::Status Inspect(const Session& session, const InspectFlags& flags) {
  ATOLL_ASSIGN_OR_RETURN(const auto store, OpenExistingBlobStore(session));
  ATOLL_ASSIGN_OR_RETURN(const auto manifest, ReadDataset(store.get(), flags.name));
  Print(session, manifest);
  if (flags.sheet.empty()) return absl::OkStatus();
  ATOLL_ASSIGN_OR_RETURN(const auto rows, SheetRows(store.get(), manifest, flags.count));
  ATOLL_ASSIGN_OR_RETURN(const dataset::Image sheet,
                         dataset::DrawContactSheet(rows, {.title = fmt::format("{}: {} training samples", manifest.name,
                                                                               manifest.rows("train"))}));
  ATOLL_ASSIGN_OR_RETURN(const std::string png, dataset::EncodePng(sheet));
  ATOLL_RETURN_IF_ERROR(WriteFile(flags.sheet, png));
  *session.err << "wrote " << flags.sheet << "\n";
  return absl::OkStatus();
}

absl::Status List(const Session& session) {
  ATOLL_ASSIGN_OR_RETURN(const auto store, OpenExistingBlobStore(session));
  ATOLL_ASSIGN_OR_RETURN(const auto manifests, ListDatasets(store.get()));
  if (session.format == OutputFormat::kJson) {
    *session.out << "[";
    for (size_t i = 0; i < manifests.size(); ++i)
      *session.out << (i == 0 ? "\n" : ",\n") << dataset::ToJson(manifests[i]);
    *session.out << "\n]\n";
    return absl::OkStatus();
  }
  Table table({"DATASET", "TRAIN", "HELD OUT", "IMAGES", "CLASSES", "SOURCE"});
  for (const auto& manifest : manifests) {
    table.Add({manifest.name, fmt::format("{}", manifest.rows("train")), fmt::format("{}", manifest.rows("held_out")),
               fmt::format("{}x{}x{}", manifest.channels, manifest.height, manifest.width),
               fmt::format("{}", manifest.classes.size()), OneLine(manifest.source)});
  }
  *session.out << table.Text(session.width);
  return absl::OkStatus();
}

void AddImport(CLI::App* parent, Session* session) {
  auto flags = std::make_shared<ImportFlags>();
  dataset::ImportOptions& options = flags->options;
  CLI::App* command = parent->add_subcommand("import", "Makes a dataset from files");
  command->add_option("PATH", options.paths, "Files or folders")->required();
  command->add_option("--name", options.name, "Name of the dataset: a-z, 0-9, '-'")->required();
  command->add_option("--format", flags->format, "What the files are; found out when left out")
      ->check(CLI::IsMember({"idx", "imagefolder", "webdataset", "parquet"}));
  command->add_option("--labels", options.labels_path, "idx: the labels file, when its name does not tell");
  command->add_option("--image-column", options.image_column, "parquet: column of images");
  command->add_option("--label-column", options.label_column, "parquet: column of labels");
  command->add_option("--columns", options.columns, "parquet: numeric columns to keep, e.g. an embedding")
      ->delimiter(',');
  command
      ->add_option("--size", options.size, "Crop to the centred square and scale to this many pixels; 0: as they are")
      ->check(WholeNumber(0, 8192));
  command->add_option("--channels", flags->channels, "auto (as the first image), grey or colour")
      ->check(CLI::IsMember({"auto", "grey", "colour"}));
  command->add_option("--held-out", options.held_out_fraction, "Share of samples that no training sees")
      ->check(Number(0, 0.9))
      ->capture_default_str();
  command->add_option("--shard-rows", options.shard_rows, "Samples per shard")
      ->check(WholeNumber(1, 10'000'000))
      ->capture_default_str();
  command
      ->add_option("--limit-bad", options.bad_row_limit,
                   "Broken images or rows that are skipped before the import fails; default: 10 or 0.1 %")
      ->check(WholeNumber<int64_t>(0));
  command->footer(R"(
Every skipped row is counted and named. The dataset exists once all of it is written, and never changes.

Examples:
  atoll dataset import digits.parquet --name digits
  atoll dataset import train-images-idx3-ubyte.gz --name mnist
  atoll dataset import photos/ --name photos --format imagefolder --size 64
)");
  command->callback([session, flags] { session->run = [session, flags] { return Import(*session, *flags); }; });
}

}  // namespace

void AddDatasetCommand(CLI::App* app, Session* session) {
  CLI::App* command = app->add_subcommand("dataset", "Imports, shows and lists datasets");
  command->require_subcommand(1);
  AddImport(command, session);
  auto flags = std::make_shared<InspectFlags>();
  CLI::App* inspect = command->add_subcommand("inspect", "One dataset: counts, classes, what was skipped");
  inspect->add_option("NAME", flags->name, "Dataset name")->required();
  inspect->add_option("--sheet", flags->sheet, "Writes a contact sheet (PNG) with a row per class");
  inspect->add_option("--count", flags->count, "Images per class on the sheet")
      ->check(WholeNumber(1, 100))
      ->capture_default_str();
  inspect->callback([session, flags] { session->run = [session, flags] { return Inspect(*session, *flags); }; });
  command->add_subcommand("list", "Every dataset of the blob store")->callback([session] {
    session->run = [session] { return List(*session); };
  });
}

}  // namespace atl::client
