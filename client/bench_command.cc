#include <algorithm>

#include "CLI/CLI.hpp"
#include "client/arrivals.h"
#include "client/commands.h"
#include "client/load_figures.h"
#include "client/open_loop.h"
#include "client/sample_flags.h"
#include "client/sampler.h"
#include "client/table.h"
#include "common/base/flag_checks.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"
#include "fmt/ranges.h"
#include "nlohmann/json.hpp"

namespace atl::client {
namespace {

using namespace atlpb::sample::v1;  // NOLINT(google-build-using-namespace): every name below is a message of it

struct BenchFlags {
  SampleFlags sample;
  double rate = 1;
  double duration_seconds = 10;
  int images = 1;
};

std::string SecondsText(absl::Duration duration) {
  return fmt::format("{:.3f}", absl::ToDoubleSeconds(duration));
}

// "v1", or "v1 (12), v2 (3)" where another one took over meanwhile.
std::string VersionsText(const std::map<std::string, int64_t>& versions) {
  if (versions.size() == 1) return OneLine(versions.begin()->first);
  std::vector<std::string> texts;
  for (const auto& [version, requests] : versions) texts.push_back(fmt::format("{} ({})", OneLine(version), requests));
  return fmt::format("{}", fmt::join(texts, ", "));
}

std::string AsText(const BenchFlags& flags, const GetSamplerInfoResponse& info, const LoadFigures& figures, int width) {
  std::string text =
      fmt::format("{} requests of {} images at {:g} per second for {:g} s (Poisson, seed {}) to {} version {}\n",
                  figures.requests, flags.images, flags.rate, flags.duration_seconds, flags.sample.seed,
                  OneLine(info.model()), figures.done == 0 ? OneLine(info.version()) : VersionsText(figures.versions));
  text += fmt::format("done {}, refused {}, failed {}; {:.2f} images per second\n", figures.done, figures.refused,
                      figures.failed, figures.images_per_second);
  if (figures.refused > 0) {
    text += fmt::format("of the refusals {} carry a delay, {} to {} s\n", figures.refused_with_delay,
                        SecondsText(figures.least_retry_delay), SecondsText(figures.most_retry_delay));
  }
  for (const auto& [reason, count] : figures.failures) {
    text += fmt::format("failed {} times: {}\n", count, OneLine(reason));
  }
  if (figures.latest_sent > absl::Milliseconds(100)) {
    text += fmt::format("this client sent requests up to {} s late; latencies count from when they were due\n",
                        SecondsText(figures.latest_sent));
  }
  if (figures.done == 0) return text;
  Table table({"SECONDS", "P50", "P90", "P99", "MOST"});
  const auto add = [&](const char* name, const Latency& latency) {
    table.Add({name, SecondsText(latency.p50), SecondsText(latency.p90), SecondsText(latency.p99),
               SecondsText(latency.most)});
  };
  add("first image", figures.first_image);
  add("last image", figures.latency);
  return text + "\n" + table.Text(width);
}

nlohmann::ordered_json JsonOf(const Latency& latency) {
  return {{"p50", absl::ToDoubleSeconds(latency.p50)},
          {"p90", absl::ToDoubleSeconds(latency.p90)},
          {"p99", absl::ToDoubleSeconds(latency.p99)},
          {"most", absl::ToDoubleSeconds(latency.most)}};
}

nlohmann::ordered_json AsJson(const BenchFlags& flags, const GetSamplerInfoResponse& info, const LoadFigures& figures) {
  return {{"model", info.model()},
          {"versions", figures.versions},
          {"rate", flags.rate},
          {"duration_seconds", flags.duration_seconds},
          {"seed", flags.sample.seed},
          {"images_per_request", flags.images},
          {"requests", figures.requests},
          {"done", figures.done},
          {"refused", figures.refused},
          {"refused_with_delay", figures.refused_with_delay},
          {"least_retry_seconds", absl::ToDoubleSeconds(figures.least_retry_delay)},
          {"most_retry_seconds", absl::ToDoubleSeconds(figures.most_retry_delay)},
          {"failed", figures.failed},
          {"failures", figures.failures},
          {"images", figures.images},
          {"images_per_second", figures.images_per_second},
          {"latency_seconds", JsonOf(figures.latency)},
          {"first_image_seconds", JsonOf(figures.first_image)},
          {"latest_sent_seconds", absl::ToDoubleSeconds(figures.latest_sent)}};
}

// Classes take turns over all images of all requests; every image has a seed of its own.
absl::StatusOr<SampleRequest> RequestAt(const BenchFlags& flags, const Labels& labels, size_t index) {
  const std::vector<int32_t>& classes = labels.images;
  Labels own{.images = std::vector<int32_t>(static_cast<size_t>(flags.images)), .negative = labels.negative};
  const size_t first = index * own.images.size();
  for (size_t i = 0; i < own.images.size(); ++i) own.images[i] = classes[(first + i) % classes.size()];
  SampleFlags sample = flags.sample;
  sample.seed += first;
  ATOLL_ASSIGN_OR_RETURN(auto requests, MakeRequests(sample, own, flags.images));
  return std::move(requests.front());
}

absl::Status BenchSample(const Session& session, const BenchFlags& flags) {
  ATOLL_ASSIGN_OR_RETURN(const std::vector<absl::Duration> arrivals,
                         PoissonArrivals(flags.rate, absl::Seconds(flags.duration_seconds), flags.sample.seed));
  ATOLL_ASSIGN_OR_RETURN(const Peer<SampleService> peer, ConnectRouter<SampleService>(session));
  ATOLL_ASSIGN_OR_RETURN(const GetSamplerInfoResponse info, GetSamplerInfo(session, peer, flags.sample));
  ATOLL_ASSIGN_OR_RETURN(const Labels labels, FindLabels(flags.sample, 1, info));
  ATOLL_RETURN_IF_ERROR(RequestAt(flags, labels, 0).status());
  const absl::Duration request_timeout = session.timeout_given ? session.timeout() : absl::Seconds(60);
  const std::vector<RequestOutcome> outcomes = DriveOpenLoop(
      peer.stub.get(), arrivals, [&](size_t index) { return *RequestAt(flags, labels, index); }, request_timeout,
      [&](int64_t sent, int64_t ended) {
        if (!session.terminal) return;
        *session.err << fmt::format("\r\x1b[K{} of {} requests sent, {} ended", sent, arrivals.size(), ended)
                     << std::flush;
      });
  if (session.terminal) *session.err << "\r\x1b[K" << std::flush;
  const LoadFigures figures = Summarise(outcomes);
  if (session.format == OutputFormat::kJson) {
    *session.out << AsJson(flags, info, figures).dump(2) << "\n";
  } else {
    *session.out << AsText(flags, info, figures, session.width);
  }
  // Where nothing came back there is nothing measured: the first error says why.
  if (figures.done > 0 || outcomes.empty()) return absl::OkStatus();
  return InFlags(ExplainCall(outcomes.front().status, peer.what, request_timeout));
}

}  // namespace

void AddBenchCommand(CLI::App* app, Session* session) {
  CLI::App* bench = app->add_subcommand("bench", "Measures a cluster under load");
  bench->require_subcommand(1);
  auto flags = std::make_shared<BenchFlags>();
  CLI::App* command = bench->add_subcommand("sample", "Sends a router requests at random times, prints latencies");
  AddSamplingFlags(command, &flags->sample);
  command->add_option("--rate", flags->rate, "Requests per second, on average")
      ->check(Number(0))
      ->capture_default_str();
  command->add_option("--duration", flags->duration_seconds, "Seconds in which requests arrive")
      ->check(Number(0))
      ->capture_default_str();
  command->add_option("--images", flags->images, "Images per request")
      ->check(WholeNumber(1, 100'000))
      ->capture_default_str();
  command->footer(R"(
Requests arrive as users do (a Poisson process), whether or not earlier ones are done, and every latency counts from the
time at which its request was due. --timeout bounds one request (default 60 s).

Examples:
  atoll bench sample --rate 2 --duration 30 --class all --steps 20
  atoll bench sample --rate 50 --duration 10 --images 4 --output json
)");
  command->callback([session, flags] { session->run = [session, flags] { return BenchSample(*session, *flags); }; });
}

}  // namespace atl::client
