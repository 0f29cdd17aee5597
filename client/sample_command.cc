#include <algorithm>
#include <map>

#include "absl/time/clock.h"
#include "atoll/sample/v1/sample_service.grpc.pb.h"
#include "client/calls.h"
#include "client/commands.h"
#include "client/files.h"
#include "client/sample_request.h"
#include "client/sample_set.h"
#include "client/table.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/dataset/contact_sheet.h"
#include "common/dataset/image_codec.h"
#include "common/wire/time_wire.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace atl::client {
namespace {

using namespace atlpb::sample::v1;  // NOLINT(google-build-using-namespace): every name below is a message of it

// One stream may take this long, unless --timeout says otherwise; the images of a large request come in the order they
// are done.
constexpr absl::Duration kStreamTimeout = absl::Hours(1);
// How often a long draw says how many of its images are there; a terminal shows only the steps of those in the making.
constexpr absl::Duration kNoteInterval = absl::Seconds(10);

// What the router serves; within --wait seconds, tries again while it serves nothing (yet).
absl::StatusOr<GetSamplerInfoResponse> GetInfo(const Session& session, const Peer<SampleService>& peer,
                                               const SampleFlags& flags) {
  GetSamplerInfoRequest request;
  request.set_model(flags.model);
  GetSamplerInfoResponse response;
  const absl::Time deadline = absl::Now() + absl::Seconds(flags.wait_seconds);
  absl::Duration pause = absl::Milliseconds(100);
  while (true) {
    absl::Status status = Call(session, peer, &SampleService::Stub::GetSamplerInfo, request, &response);
    const bool other_version = status.ok() && !flags.version.empty() && response.version() != flags.version;
    if (status.ok() && (!other_version || absl::Now() >= deadline)) return response;
    const bool later =
        other_version || absl::IsUnavailable(status) || absl::IsNotFound(status) || absl::IsFailedPrecondition(status);
    if (!later || absl::Now() >= deadline) return status;
    absl::SleepFor(pause);
    pause = std::min(pause * 2, absl::Seconds(1));
  }
}

void Take(Done done, SampleSet* set) {
  const RoutingReport& routing = done.routing();
  Merge({.chosen = {routing.chosen().begin(), routing.chosen().end()},
         .weight = {routing.weight().begin(), routing.weight().end()},
         .image_steps = routing.image_steps(),
         .mean_entropy = routing.mean_entropy()},
        &set->routing);
  set->sample_seconds += absl::ToDoubleSeconds(wire::FromProto(done.sample_time()));
  set->queue_seconds += absl::ToDoubleSeconds(wire::FromProto(done.queue_time()));
  set->version = done.version();
}

// Draws the images of one request into set->images[first ...].
absl::Status DrawOne(const Session& session, const Peer<SampleService>& peer, const SampleRequest& request,
                     size_t first, SampleSet* set) {
  grpc::ClientContext context;
  rpc::SetTimeout(&context, session.timeout_given ? session.timeout() : kStreamTimeout);
  const auto stream = peer.stub->Sample(&context, request);
  SampleResponse response;
  bool done = false;
  int images = 0;
  while (stream->Read(&response)) {
    if (response.has_progress() && session.terminal) {
      *session.err << fmt::format("\rstep {}/{} ", response.progress().step(), response.progress().total_steps())
                   << std::flush;
    } else if (response.has_image()) {
      Image* image = response.mutable_image();
      if (image->index() < 0 || image->index() >= request.classes_size()) continue;
      ++images;
      set->images[first + static_cast<size_t>(image->index())] = {.label = image->class_label(),
                                                                  .seed = image->seed(),
                                                                  .channels = image->channels(),
                                                                  .height = image->height(),
                                                                  .width = image->width(),
                                                                  .bytes = std::move(*image->mutable_data())};
    } else if (response.has_done()) {
      done = true;
      Take(response.done(), set);
    }
  }
  if (session.terminal) *session.err << "\r\x1b[K" << std::flush;
  ATOLL_RETURN_IF_ERROR(ExplainCall(rpc::FromGrpc(stream->Finish()), peer.what));
  if (done && images == request.classes_size()) return absl::OkStatus();
  return MakeError(absl::StatusCode::kDataLoss, "STREAM_INCOMPLETE",
                   fmt::format("expected {} images and their report, found {}", request.classes_size(), images));
}

// One row per class.
absl::Status WriteGrid(const std::string& path, const SampleSet& set) {
  std::map<int32_t, dataset::SheetRow> rows;
  for (const DrawnImage& image : set.images) {
    ATOLL_ASSIGN_OR_RETURN(dataset::Image decoded, dataset::DecodeImage(image.bytes, "an image of the router"));
    dataset::SheetRow& row = rows[image.label];
    row.label = image.label < 0 ? "" : fmt::format("{}", image.label);
    row.images.push_back(std::move(decoded));
  }
  std::vector<dataset::SheetRow> list;
  for (auto& [label, row] : rows) list.push_back(std::move(row));
  ATOLL_ASSIGN_OR_RETURN(const dataset::Image sheet, dataset::DrawContactSheet(list, {.columns = 20}));
  ATOLL_ASSIGN_OR_RETURN(const std::string png, dataset::EncodePng(sheet));
  return WriteFile(path, png);
}

absl::Status WriteAll(const Session& session, const SampleFlags& flags, const SampleSet& set) {
  for (const std::string& out : flags.out) {
    ATOLL_RETURN_IF_ERROR(out.ends_with(".png") ? WriteGrid(out, set) : WriteSampleSet(out, set));
    *session.err << "wrote " << out << "\n";
  }
  return absl::OkStatus();
}

nlohmann::ordered_json AsJson(const SampleSet& set) {
  return {{"model", set.model},
          {"version", set.version},
          {"mode", set.mode},
          {"images", set.images.size()},
          {"sample_seconds", set.sample_seconds},
          {"queue_seconds", set.queue_seconds},
          {"chosen", set.routing.chosen},
          {"weight", set.routing.weight},
          {"image_steps", set.routing.image_steps},
          {"mean_entropy", set.routing.mean_entropy}};
}

std::string RoutingTable(const Routing& routing, int width) {
  Table table({"EXPERT", "CHOSEN", "SHARE", "WEIGHT"});
  int64_t all = 0;
  for (const int64_t chosen : routing.chosen) all += chosen;
  for (size_t k = 0; k < routing.chosen.size(); ++k) {
    const double share = all > 0 ? static_cast<double>(routing.chosen[k]) / static_cast<double>(all) : 0;
    const double weight = k < routing.weight.size() ? routing.weight[k] : 0;
    table.Add({fmt::format("{}", k), fmt::format("{}", routing.chosen[k]), fmt::format("{:.1f} %", 100 * share),
               fmt::format("{:.1f}", weight)});
  }
  return fmt::format("\n{}\nmean entropy of the router's choice {:.3f} nats over {} image-steps\n", table.Text(width),
                     routing.mean_entropy, routing.image_steps);
}

absl::Status Sample(const Session& session, const SampleFlags& flags) {
  ATOLL_RETURN_IF_ERROR(CheckOut(flags));
  ATOLL_ASSIGN_OR_RETURN(const Peer<SampleService> peer, ConnectRouter<SampleService>(session));
  ATOLL_ASSIGN_OR_RETURN(const GetSamplerInfoResponse info, GetInfo(session, peer, flags));
  ATOLL_ASSIGN_OR_RETURN(const std::vector<int32_t> classes, ExpandClasses(flags.classes, flags.count, info.classes()));
  ATOLL_ASSIGN_OR_RETURN(const auto requests, MakeRequests(flags, classes, info.max_images_per_request()));
  SampleSet set{.model = info.model(), .version = info.version(), .raw = flags.raw};
  set.mode = SampleRequest::Mode_Name(requests.front().mode());
  set.images.resize(classes.size());
  size_t first = 0;
  absl::Time next_note = absl::Now() + kNoteInterval;
  for (const SampleRequest& request : requests) {
    ATOLL_RETURN_IF_ERROR(DrawOne(session, peer, request, first, &set));
    first += static_cast<size_t>(request.classes_size());
    if (absl::Now() < next_note || first == classes.size()) continue;
    *session.err << fmt::format("drew {} of {} images\n", first, classes.size()) << std::flush;
    next_note = absl::Now() + kNoteInterval;
  }
  ATOLL_RETURN_IF_ERROR(WriteAll(session, flags, set));
  if (session.format == OutputFormat::kJson) {
    *session.out << AsJson(set).dump(2) << "\n";
    return absl::OkStatus();
  }
  *session.out << fmt::format("{} images of {} version {} in {:.2f} s (queued {:.2f} s)\n", set.images.size(),
                              set.model, set.version, set.sample_seconds, set.queue_seconds);
  if (flags.report) *session.out << RoutingTable(set.routing, session.width);
  return absl::OkStatus();
}

void AddFlags(CLI::App* command, SampleFlags* flags) {
  command->add_option("--class", flags->classes, "Classes: 3, 0-4,7, all, or none for no condition")
      ->capture_default_str();
  command->add_option("--count", flags->count, "Images per class")
      ->check(CLI::Range(1, 100'000))
      ->capture_default_str();
  command->add_option("--out", flags->out, "FILE.png for one picture, or a folder for single images; repeatable")
      ->required()
      ->allow_extra_args(false);
  command->add_option("--mode", flags->mode, "Which experts draw: top1 (default), topk, threshold, full, oracle")
      ->check(CLI::IsMember({"top1", "topk", "threshold", "full", "oracle"}));
  command->add_option("--top-k", flags->top_k, "topk: number of experts")->check(CLI::PositiveNumber);
  command->add_option("--threshold", flags->threshold, "threshold: least probability")
      ->check(NotNan())
      ->check(CLI::Range(0.0, 1.0));
  command->add_option("--expert", flags->expert, "oracle: the expert that draws")->check(CLI::NonNegativeNumber);
  command->add_option("--steps", flags->steps, "Solver steps; default 30")->check(CLI::PositiveNumber);
  command->add_option("--guidance", flags->guidance, "Classifier-free guidance; 1 is none, default 2")
      ->check(NotNan())
      ->check(CLI::NonNegativeNumber);
  command->add_option("--solver", flags->solver, "euler or heun")->check(CLI::IsMember({"euler", "heun"}));
  command->add_option("--seed", flags->seed, "Seed of the first image; the next ones count up")
      ->check(CLI::NonNegativeNumber)
      ->capture_default_str();
  command->add_option("--model", flags->model, "Model; default: the only one that the router serves");
  command->add_option("--model-version", flags->version, "Version; default: the one that is served");
  command->add_option("--wait", flags->wait_seconds, "Seconds to wait for the router to serve the model")
      ->check(NotNan())
      ->check(CLI::NonNegativeNumber);
  command->add_flag("--raw", flags->raw, "float32 tensors (samples.safetensors) instead of PNG");
  command->add_flag("--report", flags->report, "Prints which experts drew");
}

}  // namespace

void AddSampleCommand(CLI::App* app, Session* session) {
  auto flags = std::make_shared<SampleFlags>();
  CLI::App* command = app->add_subcommand("sample", "Draws images with a published model");
  AddFlags(command, flags.get());
  command->footer(R"(
The same seed, class and settings give the same image, whatever else the router does meanwhile.

Examples:
  atoll sample --class all --count 10 --out digits.png
  atoll sample --class 3 --top-k 2 --steps 50 --solver heun --out three/ --report
)");
  command->callback([session, flags] { session->run = [session, flags] { return Sample(*session, *flags); }; });
}

}  // namespace atl::client
