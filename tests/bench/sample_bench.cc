#include "tests/bench/sample_bench.h"

#include <utility>

#include "CLI/CLI.hpp"
#include "client/exit_code.h"
#include "client/sampling/sample_flags.h"
#include "client/sampling/sampler.h"
#include "common/auth/security_flags.h"
#include "common/base/explain.h"
#include "common/base/flag_checks.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"
#include "tests/bench/arrivals.h"
#include "tests/bench/open_loop.h"

namespace atl::bench {
namespace {

using namespace atlpb::sample::v1;  // NOLINT(google-build-using-namespace): every name below is a message of it

struct BenchFlags {
  client::SampleFlags sample;
  double rate = 1;
  double duration_seconds = 10;
  int images = 1;
};

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
absl::StatusOr<SampleRequest> RequestAt(const BenchFlags& flags, const client::Labels& labels, size_t index) {
  const std::vector<int32_t>& classes = labels.images;
  client::Labels own{.images = std::vector<int32_t>(static_cast<size_t>(flags.images)), .negative = labels.negative};
  const size_t first = index * own.images.size();
  for (size_t i = 0; i < own.images.size(); ++i) own.images[i] = classes[(first + i) % classes.size()];
  client::SampleFlags sample = flags.sample;
  sample.seed += first;
  ATOLL_ASSIGN_OR_RETURN(auto requests, client::MakeRequests(sample, own, flags.images));
  return std::move(requests.front());
}

absl::Status BenchSample(const client::Session& session, const BenchFlags& flags) {
  ATOLL_ASSIGN_OR_RETURN(const std::vector<absl::Duration> arrivals,
                         PoissonArrivals(flags.rate, absl::Seconds(flags.duration_seconds), flags.sample.seed));
  ATOLL_ASSIGN_OR_RETURN(const auto peer, client::ConnectRouter<SampleService>(session));
  ATOLL_ASSIGN_OR_RETURN(const GetSamplerInfoResponse info, client::GetSamplerInfo(session, peer, flags.sample));
  ATOLL_ASSIGN_OR_RETURN(const client::Labels labels, client::FindLabels(flags.sample, 1, info));
  ATOLL_RETURN_IF_ERROR(RequestAt(flags, labels, 0).status());
  const std::vector<RequestOutcome> outcomes = DriveOpenLoop(
      peer.stub.get(), arrivals, [&](size_t index) { return *RequestAt(flags, labels, index); }, session.timeout(),
      [&](int64_t sent, int64_t ended) {
        if (!session.terminal) return;
        *session.err << fmt::format("\r\x1b[K{} of {} requests sent, {} ended", sent, arrivals.size(), ended)
                     << std::flush;
      });
  if (session.terminal) *session.err << "\r\x1b[K" << std::flush;
  const LoadFigures figures = Summarise(outcomes);
  *session.out << AsJson(flags, info, figures).dump(2) << "\n";
  // Without any image nothing was measured, and the first error explains why.
  if (figures.done > 0 || outcomes.empty()) return absl::OkStatus();
  return client::InFlags(client::ExplainCall(outcomes.front().status, peer.what, session.timeout()));
}

void AddFlags(CLI::App* app, BenchFlags* flags, client::Session* session) {
  app->add_option("--router", session->router_flag, "Router's address, HOST:PORT; default: as `atoll` finds it");
  app->add_option("--cluster", session->cluster_flag, "Folder of a local cluster (atoll up --dir)");
  rpc::AddSecurityFlags(*app, &session->security_flags, rpc::Side::kClient);
  app->add_option("--timeout", session->timeout_seconds, "Seconds that one request may take")
      ->check(Number(0.1, 86'400))
      ->capture_default_str();
  client::AddSamplingFlags(app, &flags->sample);
  app->add_option("--rate", flags->rate, "Requests per second, on average")->check(Number(0))->capture_default_str();
  app->add_option("--duration", flags->duration_seconds, "Seconds in which requests arrive")
      ->check(Number(0))
      ->capture_default_str();
  app->add_option("--images", flags->images, "Images per request")
      ->check(WholeNumber(1, 100'000))
      ->capture_default_str();
  app->footer(R"(
Requests arrive as users do (a Poisson process), whether or not earlier ones are done, and every latency counts from the
time at which its request was due.

Examples:
  sample_bench --rate 2 --duration 30 --class all --steps 20
  sample_bench --router router:7001 --rate 50 --images 4
)");
}

}  // namespace

int RunSampleBench(const std::vector<std::string>& arguments, client::Session session) {
  session.timeout_seconds = 60;
  BenchFlags flags;
  CLI::App app("Sends a router requests at random times, prints latencies as JSON", "sample_bench");
  AddFlags(&app, &flags, &session);
  try {
    app.parse(std::vector<std::string>(arguments.rbegin(), arguments.rend()));
  } catch (const CLI::ParseError& error) {
    return app.exit(error, *session.out, *session.err) == 0 ? client::kExitOk : client::kExitUsage;
  }
  const absl::Status status = BenchSample(session, flags);
  if (!status.ok()) *session.err << "sample_bench: error: " << Explain(status) << std::endl;
  return client::ExitCodeOf(status);
}

}  // namespace atl::bench
