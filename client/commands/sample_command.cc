#include <algorithm>
#include <map>
#include <utility>

#include "absl/time/clock.h"
#include "atoll/sample/v1/sample_service.grpc.pb.h"
#include "client/calls.h"
#include "client/commands/commands.h"
#include "client/sampling/draw_progress.h"
#include "client/sampling/init_images.h"
#include "client/sampling/sample_flags.h"
#include "client/sampling/sample_request.h"
#include "client/sampling/sample_set.h"
#include "client/sampling/sampler.h"
#include "client/table.h"
#include "common/base/clock.h"
#include "common/base/errors.h"
#include "common/base/files.h"
#include "common/base/flag_checks.h"
#include "common/base/status_macros.h"
#include "common/dataset/contact_sheet.h"
#include "common/dataset/image_codec.h"
#include "common/wire/time_wire.h"
#include "fmt/format.h"
#include "fmt/ranges.h"

namespace atl::client {
namespace {

using namespace atlpb::sample::v1;  // NOLINT(google-build-using-namespace): every name below is a message of it

// One stream may take this long, unless --timeout says otherwise; the images of a large request come in the order they
// are done.
constexpr absl::Duration kStreamTimeout = absl::Hours(1);
// How long sampling that has begun is retried while the router is unreachable or full, because the finished images took
// their time.
constexpr absl::Duration kPatience = absl::Minutes(5);
constexpr absl::Duration kFirstPause = absl::Milliseconds(200);
constexpr absl::Duration kLongestPause = absl::Seconds(10);
// How often a long draw says how far it is where no terminal shows it all the time.
constexpr absl::Duration kNoteInterval = absl::Seconds(10);

void Take(const Done& done, SampleSet* set) {
  const RoutingReport& routing = done.routing();
  Merge({.chosen = {routing.chosen().begin(), routing.chosen().end()},
         .weight = {routing.weight().begin(), routing.weight().end()},
         .image_steps = routing.image_steps(),
         .mean_entropy = routing.mean_entropy(),
         .switches = routing.switches(),
         .close_calls = routing.close_calls(),
         .renormalised_image_steps = routing.renormalised_image_steps(),
         .lost_experts = {routing.lost_experts().begin(), routing.lost_experts().end()},
         .failovers = routing.failovers()},
        &set->routing);
  set->sample_seconds += absl::ToDoubleSeconds(wire::FromProto(done.sample_time()));
  set->queue_seconds += absl::ToDoubleSeconds(wire::FromProto(done.queue_time()));
  if (set->first_image_seconds == 0) {
    set->first_image_seconds = absl::ToDoubleSeconds(wire::FromProto(done.first_image_time()));
  }
  set->version = done.version();
  set->fingerprint = done.fingerprint();
}

DrawnImage Taken(Image* image) {
  return {.label = image->class_label(),
          .seed = image->seed(),
          .channels = image->channels(),
          .height = image->height(),
          .width = image->width(),
          .bytes = std::move(*image->mutable_data())};
}

// Writes one row per class, of the images that are there, labelled with the class's name where the model has names.
absl::Status WriteGrid(const std::string& path, const std::vector<DrawnImage>& images,
                       const GetSamplerInfoResponse& info) {
  std::map<int32_t, dataset::SheetRow> rows;
  for (const DrawnImage& image : images) {
    if (image.bytes.empty()) continue;
    ATOLL_ASSIGN_OR_RETURN(dataset::Image decoded, dataset::DecodeImage(image.bytes, "an image of the router"));
    dataset::SheetRow& row = rows[image.label];
    if (image.label >= 0) {
      row.label =
          image.label < info.class_names_size() ? info.class_names(image.label) : fmt::format("{}", image.label);
    }
    row.images.push_back(std::move(decoded));
  }
  if (rows.empty()) return absl::OkStatus();
  std::vector<dataset::SheetRow> list;
  for (auto& [label, row] : rows) list.push_back(std::move(row));
  ATOLL_ASSIGN_OR_RETURN(const dataset::Image sheet, dataset::DrawContactSheet(list, {.columns = 20}));
  ATOLL_ASSIGN_OR_RETURN(const std::string png, dataset::EncodePng(sheet));
  return WriteFile(path, png);
}

// Draws the images of one command, request by request. Not thread-safe.
class Drawing {
 public:
  Drawing(const Session& session, const SampleFlags& flags, const GetSamplerInfoResponse& info, SampleSet* set)
      : session_(session), flags_(flags), info_(info), set_(set), progress_(static_cast<int64_t>(set->images.size())) {
    if (!flags.preview.empty()) previews_ = set->images;
  }

  // Fills set->images[first ...].
  absl::Status Draw(const Peer<SampleService>& peer, const SampleRequest& request, size_t first) {
    const absl::Duration give_up = Clock::Real()->Monotonic() + kPatience;
    absl::Duration pause = kFirstPause;
    while (true) {
      const absl::Status status = DrawOne(peer, request, first);
      const bool may_pass = absl::IsUnavailable(status) || absl::IsResourceExhausted(status);
      if (!heard_ || !may_pass || Clock::Real()->Monotonic() + pause > give_up) return status;
      progress_.OnRequestLost();
      *session_.err << fmt::format("{} [{}]; asking again\n", OneLine(std::string(status.message())),
                                   ErrorReason(status));
      absl::SleepFor(pause);
      pause = std::min(2 * pause, kLongestPause);
    }
  }

 private:
  absl::Status DrawOne(const Peer<SampleService>& peer, const SampleRequest& request, size_t first) {
    grpc::ClientContext context;
    const absl::Duration timeout = session_.timeout_given ? session_.timeout() : kStreamTimeout;
    rpc::SetTimeout(&context, timeout);
    first_ = first;
    images_ = 0;
    done_ = false;
    progress_.OnRequest(request.classes_size());
    const auto stream = peer.stub->Sample(&context, request);
    SampleResponse response;
    absl::Status shown;
    while (shown.ok() && stream->Read(&response)) shown = Hear(request, &response);
    if (!shown.ok()) context.TryCancel();
    if (session_.terminal) *session_.err << "\r\x1b[K" << std::flush;
    const grpc::Status finished = stream->Finish();
    ATOLL_RETURN_IF_ERROR(shown);
    ATOLL_RETURN_IF_ERROR(InFlags(ExplainCall(rpc::FromGrpc(finished), peer.what, timeout)));
    if (done_ && images_ == request.classes_size()) return absl::OkStatus();
    return MakeError(absl::StatusCode::kDataLoss, "STREAM_INCOMPLETE",
                     fmt::format("expected {} images and their report, found {}", request.classes_size(), images_));
  }

  absl::Status Hear(const SampleRequest& request, SampleResponse* response) {
    heard_ = true;
    const absl::Duration now = Clock::Real()->Monotonic();
    const auto fits = [&](const Image& image) { return image.index() >= 0 && image.index() < request.classes_size(); };
    bool previewed = false;
    if (response->has_queued()) {
      progress_.OnQueued(response->queued().position());
    } else if (response->has_progress()) {
      progress_.OnStep(now, response->progress().step(), response->progress().total_steps());
      for (Image& image : *response->mutable_progress()->mutable_previews()) {
        if (previews_.empty() || !fits(image)) continue;
        previews_[first_ + static_cast<size_t>(image.index())] = Taken(&image);
        previewed = true;
      }
    } else if (response->has_image() && fits(response->image())) {
      const size_t at = first_ + static_cast<size_t>(response->image().index());
      ++images_;
      progress_.OnImage(now);
      set_->images[at] = Taken(response->mutable_image());
      if (!previews_.empty()) previews_[at] = set_->images[at];
    } else if (response->has_done()) {
      done_ = true;
      Take(response->done(), set_);
    }
    if (session_.terminal) {
      *session_.err << "\r\x1b[K" << progress_.Line(now, session_.width - 1, session_.colour) << std::flush;
    } else if (now >= next_note_) {
      *session_.err << progress_.Figures(now) << "\n" << std::flush;
      next_note_ = now + kNoteInterval;
    }
    return previewed ? WriteGrid(flags_.preview, previews_, info_) : absl::OkStatus();
  }

  const Session& session_;
  const SampleFlags& flags_;
  const GetSamplerInfoResponse& info_;
  SampleSet* const set_;
  DrawProgress progress_;
  absl::Duration next_note_ = Clock::Real()->Monotonic() + kNoteInterval;
  std::vector<DrawnImage> previews_;  // as many as images; empty: not asked for
  size_t first_ = 0;
  int images_ = 0;
  bool done_ = false;
  bool heard_ = false;  // of any request
};

absl::Status WriteAll(const Session& session, const SampleFlags& flags, const GetSamplerInfoResponse& info,
                      const SampleSet& set) {
  for (const std::string& out : flags.out) {
    ATOLL_RETURN_IF_ERROR(out.ends_with(".png") ? WriteGrid(out, set.images, info) : WriteSampleSet(out, set));
    *session.err << "wrote " << out << "\n";
  }
  return absl::OkStatus();
}

nlohmann::ordered_json AsJson(const SampleSet& set) {
  nlohmann::ordered_json json = SummaryJson(set);
  json["images"] = set.images.size();
  json.update(RoutingJson(set.routing));
  return json;
}

// Describes how the samples were made, as far as a user would want to know it.
std::string Notes(const Routing& routing) {
  std::string text;
  if (routing.switches > 0)
    text += fmt::format("{} image-steps had other experts than the step before\n", routing.switches);
  if (routing.close_calls > 0) {
    text += fmt::format("{} image-steps in which rounding might have chosen other experts\n", routing.close_calls);
  }
  if (routing.failovers > 0)
    text += fmt::format("{} evaluations were taken over by another replica\n", routing.failovers);
  if (routing.renormalised_image_steps > 0) {
    text += fmt::format("{} image-steps went on without lost experts: {}\n", routing.renormalised_image_steps,
                        fmt::join(routing.lost_experts, ", "));
  }
  return text;
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
                     routing.mean_entropy, routing.image_steps) +
         Notes(routing);
}

absl::Status Sample(const Session& session, const SampleFlags& flags) {
  ATOLL_RETURN_IF_ERROR(CheckOut(flags));
  // Before hours of drawing, not after them.
  for (const std::string& out : flags.out) {
    if (!out.ends_with(".png")) ATOLL_RETURN_IF_ERROR(CheckSampleFolder(out));
  }
  ATOLL_ASSIGN_OR_RETURN(const Peer<SampleService> peer, ConnectRouter<SampleService>(session));
  ATOLL_ASSIGN_OR_RETURN(const GetSamplerInfoResponse info, GetSamplerInfo(session, peer, flags));
  ATOLL_ASSIGN_OR_RETURN(const Labels labels, FindLabels(flags, flags.count, info));
  ATOLL_ASSIGN_OR_RETURN(const std::vector<std::string> init_images,
                         ReadInitImages(flags.init, {info.channels(), info.height(), info.width()}, flags.raw));
  ATOLL_ASSIGN_OR_RETURN(const auto requests, MakeRequests(flags, labels, info.max_images_per_request(), init_images));
  SampleSet set{.model = info.model(), .version = info.version(), .raw = flags.raw, .init = flags.init};
  set.settings = SettingsOf(requests.front(), info);
  set.mode = SampleRequest::Mode_Name(set.settings.mode());
  set.images.resize(labels.images.size());
  Drawing drawing(session, flags, info, &set);
  size_t first = 0;
  for (const SampleRequest& request : requests) {
    ATOLL_RETURN_IF_ERROR(drawing.Draw(peer, request, first));
    first += static_cast<size_t>(request.classes_size());
  }
  ATOLL_RETURN_IF_ERROR(WriteAll(session, flags, info, set));
  if (session.format == OutputFormat::kJson) {
    *session.out << AsJson(set).dump(2) << "\n";
    return absl::OkStatus();
  }
  *session.out << fmt::format("{} images of {} version {} in {:.2f} s (queued {:.2f} s)\n", set.images.size(),
                              OneLine(set.model), OneLine(set.version), set.sample_seconds, set.queue_seconds);
  if (flags.report) *session.out << RoutingTable(set.routing, session.width);
  return absl::OkStatus();
}

void AddFlags(CLI::App* command, SampleFlags* flags) {
  AddSamplingFlags(command, flags);
  command->add_option("--count", flags->count, "Images per class")
      ->check(WholeNumber(1, 100'000))
      ->capture_default_str();
  command->add_option("--out", flags->out, "FILE.png for one picture, or a folder for single images; repeatable")
      ->required()
      ->allow_extra_args(false);
  command
      ->add_option("--init", flags->init,
                   "Image to start from, or a folder of samples; repeatable: one for all, or one per image")
      ->allow_extra_args(false);
  command->add_option("--preview", flags->preview, "FILE.png, rewritten with what images look like so far");
  command->add_option("--preview-every", flags->preview_every, "Steps between previews")
      ->check(WholeNumber(1))
      ->capture_default_str();
  command->add_flag("--raw", flags->raw, "float32 tensors (samples.safetensors) instead of PNG");
  command->add_flag("--report", flags->report, "Prints which experts drew");
}

}  // namespace

void AddSampleCommand(CLI::App* app, Session* session) {
  auto flags = std::make_shared<SampleFlags>();
  CLI::App* command = app->add_subcommand("sample", "Draws images with a published model");
  AddFlags(command, flags.get());
  command->footer(R"(
The same seed, class and settings give the same image to rounding, whatever else the router does meanwhile, and with
--reproducible the same bytes. A folder's samples.json says all that was set, by flags or by default. --timeout bounds one
request to the router, of at most as many images as it takes at once (default 1 h). A draw that has begun waits up to
5 min for a router that is away or has no room.

Examples:
  atoll sample --class all --count 10 --out digits.png
  atoll sample --class 3 --top-k 2 --steps 50 --solver heun --out three/ --report
  atoll sample --class 3 --count 20 --preview now.png --out threes.png
  atoll sample --class 3 --negative-class 8 --guidance-from 0.2 --init sketch.png --strength 0.6 --out three.png
)");
  command->callback([session, flags] { session->run = [session, flags] { return Sample(*session, *flags); }; });
}

}  // namespace atl::client
