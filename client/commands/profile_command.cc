#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <memory>

#include "client/cluster/stoppable_children.h"
#include "client/commands/commands.h"
#include "client/dataset_store.h"
#include "client/job_checks.h"
#include "client/spec_file.h"
#include "client/table.h"
#include "common/base/errors.h"
#include "common/base/files.h"
#include "common/base/flag_checks.h"
#include "common/base/status_macros.h"
#include "common/formats/frozen_files.h"
#include "common/formats/profile_file.h"
#include "common/planner/measured_profile.h"
#include "common/spec/spec_io.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace atl::client {
namespace {

struct ProfileFlags {
  SpecFlags spec;
  int ranks = 1;
  int threads = 1;
  int classes = 10;
  std::vector<int> sizes;
  std::string image;
  std::string network = "expert";
  std::string device = "cpu";
  std::string out;
  std::string format = "text";
};

constexpr int64_t kLogTail = 2000;
constexpr int kLargestSize = 1 << 20;

// The folder that the measuring processes meet in, gone with this object.
class Meeting {
 public:
  static absl::StatusOr<std::unique_ptr<Meeting>> Make() {
    std::string folder = (std::filesystem::temp_directory_path() / "atoll-profile-XXXXXX").string();
    if (mkdtemp(folder.data()) == nullptr) {
      return MakeError(absl::StatusCode::kUnknown, "FILE_ERROR", "cannot make a folder like " + folder);
    }
    return std::unique_ptr<Meeting>(new Meeting(folder));
  }
  ~Meeting() {
    std::error_code error;
    std::filesystem::remove_all(folder_, error);
  }
  std::string Path(const std::string& name) const { return folder_ + "/" + name; }
  const std::string& folder() const { return folder_; }

 private:
  explicit Meeting(std::string folder) : folder_(std::move(folder)) {}
  const std::string folder_;
};

absl::StatusOr<std::string> WorkerProgram() {
  std::error_code error;
  const std::filesystem::path self = std::filesystem::read_symlink("/proc/self/exe", error);
  if (!error) return (self.parent_path() / "atoll-worker").string();
  return MakeError(absl::StatusCode::kUnknown, "FILE_ERROR", "cannot read /proc/self/exe: " + error.message());
}

std::vector<std::string> Command(const std::string& program, const ProfileFlags& flags, const spec::SampleShape& shape,
                                 const std::vector<int>& sizes, const std::string& folder, int rank) {
  return {program,
          "--profile",
          folder,
          "--rank",
          std::to_string(rank),
          "--ranks",
          std::to_string(flags.ranks),
          "--leader",
          "127.0.0.1:1",  // unused port: its host says that all ranks are on this machine
          "--island-id",
          "profile",
          "--blob-store",
          "file://" + folder + "/store",  // not opened
          "--threads",
          std::to_string(flags.threads),
          "--device",
          flags.device,
          "--profile-network",
          flags.network,
          "--profile-image",
          fmt::format("{}", fmt::join(shape, "x")),
          "--profile-classes",
          std::to_string(flags.classes),
          "--profile-sizes",
          fmt::format("{}", fmt::join(sizes, ","))};
}

// Waits for all. The first that fails is named, with the end of its log; the others, which wait for it, are ended.
absl::Status AwaitAll(StoppableChildren& children, const Meeting& meeting) {
  absl::Status first;
  while (children.left() > 0) {
    const auto [rank, status] = children.AwaitAny();
    if (status == 0 || !first.ok()) continue;
    children.Kill();
    std::string log = ReadFile(meeting.Path(fmt::format("rank-{}.log", rank))).value_or("");
    if (static_cast<int64_t>(log.size()) > kLogTail) log.erase(0, log.size() - kLogTail);
    first = MakeError(absl::StatusCode::kFailedPrecondition, "PROFILE_FAILED",
                      fmt::format("the process that measures as rank {} {}:\n{}", rank, DescribeExit(status), log));
  }
  ATOLL_RETURN_IF_ERROR(children.Interrupted());
  return first;
}

// The job, and what its frozen components are made of: the blob store's files under their numbers.
absl::Status LeaveInputs(const Session& session, const spec::JobSpec& spec, const Meeting& meeting) {
  ATOLL_RETURN_IF_ERROR(WriteFile(meeting.Path("job.yaml"), spec::ToYaml(spec)));
  const std::vector<std::string> uris = spec::FrozenFiles(spec.frozen);
  if (uris.empty()) return absl::OkStatus();
  ATOLL_ASSIGN_OR_RETURN(const std::unique_ptr<storage::BlobStore> store, OpenBlobStore(session));
  ATOLL_ASSIGN_OR_RETURN(const auto files, storage::ReadFrozenFiles(store.get(), spec::FrozenFileFields(spec.frozen)));
  for (size_t i = 0; i < uris.size(); ++i) {
    ATOLL_RETURN_IF_ERROR(WriteFile(meeting.Path(fmt::format("frozen-{}", i)), files.at(uris[i])));
  }
  return absl::OkStatus();
}

absl::StatusOr<planner::Profile> Measure(const Session& session, const ProfileFlags& flags, const spec::JobSpec& spec,
                                         const spec::SampleShape& shape, const std::vector<int>& sizes) {
  ATOLL_ASSIGN_OR_RETURN(const std::string program, WorkerProgram());
  // First: from here on a signal ends the children, not this process before it has taken the folder away.
  StoppableChildren children;
  ATOLL_ASSIGN_OR_RETURN(const std::unique_ptr<Meeting> meeting, Meeting::Make());
  ATOLL_RETURN_IF_ERROR(LeaveInputs(session, spec, *meeting));
  for (int rank = 0; rank < flags.ranks; ++rank) {
    const absl::Status started =
        children.Start({.command = Command(program, flags, shape, sizes, meeting->folder(), rank),
                        .environment = {"OMP_NUM_THREADS=" + std::to_string(flags.threads)},
                        .log_file = meeting->Path(fmt::format("rank-{}.log", rank))});
    if (started.ok()) continue;
    // The ranks that run would wait for this one until they time out; killing them saves that time.
    children.Kill();
    AwaitAll(children, *meeting).IgnoreError();
    return started;
  }
  ATOLL_RETURN_IF_ERROR(AwaitAll(children, *meeting));
  std::vector<planner::Profile> profiles;
  for (int rank = 0; rank < flags.ranks; ++rank) {
    const std::string name = fmt::format("profile-{}.json", rank);
    ATOLL_ASSIGN_OR_RETURN(const std::string json, ReadFile(meeting->Path(name)));
    ATOLL_ASSIGN_OR_RETURN(profiles.emplace_back(), storage::ParseProfile(json, name));
  }
  return planner::MergeProfiles(profiles);
}

std::string Milliseconds(double seconds) {
  return fmt::format("{:.3f}", 1000 * seconds);
}

std::string LayerName(size_t layer, size_t layers) {
  if (layer == 0) return "embed";
  return layer + 1 == layers ? "head" : fmt::format("block {}", layer - 1);
}

// A row per layer; seconds at each size that some layer was measured with.
std::string FrozenText(const planner::FrozenComponentProfile& component, int width) {
  std::string text =
      fmt::format("Frozen component {}: milliseconds by number of samples, and bytes per sample\n", component.name);
  std::vector<std::string> header{"LAYER"};
  for (const auto& [samples, seconds] : component.layers.front().seconds) header.push_back(std::to_string(samples));
  header.insert(header.end(), {"INPUT", "OUTPUT", "PARAMETERS"});
  Table table(header);
  for (size_t i = 0; i < component.layers.size(); ++i) {
    const planner::FrozenLayerProfile& layer = component.layers[i];
    std::vector<std::string> row{std::to_string(i)};
    for (const auto& [samples, first] : component.layers.front().seconds) {
      row.push_back(Milliseconds(planner::FrozenSeconds(layer, samples)));
    }
    for (const double bytes : {layer.input_bytes, layer.output_bytes, layer.parameter_bytes}) {
      row.push_back(BytesText(static_cast<int64_t>(bytes)));
    }
    table.Add(row);
  }
  return text + table.Text(width) + "\n";
}

std::string AsText(const planner::Profile& profile, int width) {
  std::string text;
  for (const auto& [samples, layers] : profile.layers) {
    text += fmt::format("Micro-batches of {}: milliseconds, and bytes kept\n", samples);
    Table table({"LAYER", "F", "I", "W", "B", "KEPT F-B", "KEPT I-W", "ON TOP", "BOUNDARY", "PARAMETERS"});
    for (size_t i = 0; i < layers.size(); ++i) {
      const planner::LayerProfile& layer = layers[i];
      const auto bytes = [](double value) { return BytesText(static_cast<int64_t>(value)); };
      table.Add({LayerName(i, layers.size()), Milliseconds(layer.forward_seconds),
                 Milliseconds(layer.input_gradient_seconds), Milliseconds(layer.weight_gradient_seconds),
                 Milliseconds(layer.backward_seconds), bytes(layer.kept_bytes), bytes(layer.weight_gradient_bytes),
                 bytes(std::max(layer.forward_transient_bytes, layer.backward_transient_bytes)),
                 bytes(layer.output_bytes), bytes(profile.parameter_bytes[i])});
    }
    text += table.Text(width) + "\n";
  }
  for (const planner::FrozenComponentProfile& component : profile.frozen) text += FrozenText(component, width);
  text += fmt::format("optimizer   {:.3g} ns per byte of parameters\n", 1e9 * profile.optimizer_seconds_per_byte);
  if (profile.rank_slowdown.size() > 1) {
    text += fmt::format("transfers   {:.3g} ms and {:.3g} GB/s\nranks       {:.2f} of the mean\n",
                        1000 * profile.transfer_latency_seconds, 1e-9 * profile.transfer_bytes_per_second,
                        fmt::join(profile.rank_slowdown, ", "));
  }
  return text;
}

absl::Status RunProfile(const Session& session, const ProfileFlags& flags) {
  ATOLL_ASSIGN_OR_RETURN(const spec::JobSpec spec, ReadSpecFile(flags.spec));
  ATOLL_ASSIGN_OR_RETURN(const spec::SampleShape shape, FindImages(session, flags.image, spec, flags.spec.file));
  const spec::TrainingSpec& training = flags.network == "router" ? spec.router_training : spec.training;
  std::vector<int> sizes = flags.sizes;
  std::sort(sizes.begin(), sizes.end());
  sizes.erase(std::unique(sizes.begin(), sizes.end()), sizes.end());
  if (sizes.empty()) {
    sizes = planner::SizesToProfile(training.batch_size, spec.pipeline.micro_batches, flags.ranks);
  }
  ATOLL_ASSIGN_OR_RETURN(const planner::Profile profile, Measure(session, flags, spec, shape, sizes));
  const std::string json = storage::ToJson(profile);
  if (!flags.out.empty()) ATOLL_RETURN_IF_ERROR(WriteFile(flags.out, json));
  const bool as_json = flags.format == "json" || session.format == OutputFormat::kJson;
  *session.out << (as_json ? json : AsText(profile, session.width));
  return absl::OkStatus();
}

}  // namespace

void AddProfileCommand(CLI::App* app, Session* session) {
  auto flags = std::make_shared<ProfileFlags>();
  CLI::App* command = app->add_subcommand("profile", "Measures what the layers of a job's model cost on this machine");
  AddSpecFlags(command, &flags->spec);
  command->add_option("--ranks", flags->ranks, "Processes that measure at the same time")
      ->check(WholeNumber(1, 64))
      ->capture_default_str();
  command->add_option("--threads", flags->threads, "Compute threads of each")
      ->check(WholeNumber(1, 1024))
      ->capture_default_str();
  command
      ->add_option("--micro-batch-sizes", flags->sizes,
                   "Samples per micro-batch; default: all that a plan of the job on these ranks may use")
      ->type_name("SIZE[,SIZE...]")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->check(WholeNumber(1, kLargestSize));
  command->add_option("--image", flags->image, "CHANNELSxHEIGHTxWIDTH; default: as the job's dataset has it");
  command->add_option("--classes", flags->classes, "Classes of the model")
      ->check(WholeNumber(0, 1 << 20))
      ->capture_default_str();
  command->add_option("--network", flags->network, "expert or router")
      ->check(CLI::IsMember({"expert", "router"}))
      ->capture_default_str();
  command->add_option("--device", flags->device, "cpu or cuda")
      ->check(CLI::IsMember({"cpu", "cuda"}))
      ->capture_default_str();
  command->add_option("--out", flags->out,
                      "Also writes the profile as JSON to this file, whose folder is made where it is missing");
  command->add_option("--format", flags->format, "text or json")
      ->check(CLI::IsMember({"text", "json"}))
      ->capture_default_str();
  command->footer(R"(
Starts the processes of an island on this machine, which run every layer of the model forward and backward, all at once,
and the job's frozen components over the batch and parts of it.

Examples:
  atoll profile deploy/jobs/digits.yaml --ranks 2 --image 1x8x8
  atoll profile job.yaml --ranks 2 --image 4x32x32 --micro-batch-sizes 4,8,16 --out profile.json
)");
  command->callback([session, flags] { session->run = [session, flags] { return RunProfile(*session, *flags); }; });
}

}  // namespace atl::client
