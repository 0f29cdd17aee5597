// Experts on servers over loopback against the same layout in process.
#include <algorithm>
#include <cstdio>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "common/base/clock.h"
#include "common/base/status_macros.h"
#include "inference/version_files.h"
#include "router/engine/sampler_info.h"
#include "router/remote/expert_client.h"
#include "tests/bench/bench_process.h"
#include "tests/bench/serving_cases.h"
#include "tests/bench/serving_engine.h"

namespace atl::bench {
namespace {

const std::vector<std::vector<int32_t>>& Layout() {
  static const auto* const layout = new std::vector<std::vector<int32_t>>{{0, 1}, {2, 3}};
  return *layout;
}

struct ExpertServer {
  std::unique_ptr<Child> process;
  std::string address;
};

absl::StatusOr<ExpertServer> StartServer(const Settings& settings, const std::string& folder,
                                         const std::string& port_file, const std::vector<int32_t>& experts) {
  ExpertServer server;
  ATOLL_ASSIGN_OR_RETURN(server.process, Child::Start({settings.worker, "--serve", "--model-dir", folder, "--experts",
                                                       fmt::format("{},{},router", experts[0], experts[1]), "--threads",
                                                       "1", "--listen", "127.0.0.1:0", "--port-file", port_file}));
  const absl::Duration give_up = Clock::Real()->Monotonic() + absl::Seconds(60);
  while (server.address.empty()) {
    if (Clock::Real()->Monotonic() > give_up) return absl::DeadlineExceededError("an expert server did not start");
    WaitUntil(Clock::Real()->Monotonic() + absl::Milliseconds(10));
    std::ifstream(port_file) >> server.address;
  }
  return server;
}

}  // namespace

absl::Status RunRemote(const Settings& settings, Published*) {
  constexpr int kRequests = 16;
  constexpr int kImagesPerRequest = 4;
  ATOLL_ASSIGN_OR_RETURN(const std::unique_ptr<Published> published,
                         PublishModel({.name = "four", .experts = static_cast<int>(2 * Layout().size())}));
  const std::string folder = published->uri.substr(std::string("file://").size());
  std::vector<ExpertServer> servers;
  std::vector<std::shared_ptr<router::ExpertLane>> lanes;
  for (size_t i = 0; i < Layout().size(); ++i) {
    ATOLL_ASSIGN_OR_RETURN(ExpertServer server,
                           StartServer(settings, folder, fmt::format("{}.port{}", folder, i), Layout()[i]));
    lanes.push_back(
        std::make_shared<router::RemoteLane>(router::RemoteLaneOptions{.address = server.address}, Clock::Real()));
    servers.push_back(std::move(server));
  }
  const absl::Duration give_up = Clock::Real()->Monotonic() + absl::Seconds(60);
  for (const auto& lane : lanes) {
    while (lane->hosted()->size() < Layout()[0].size() + 1) {
      if (Clock::Real()->Monotonic() > give_up) return absl::DeadlineExceededError("an expert server hosts too little");
      WaitUntil(Clock::Real()->Monotonic() + absl::Milliseconds(10));
    }
  }
  ATOLL_ASSIGN_OR_RETURN(const auto files,
                         router::OpenVersion(published->store.get(), published->uri, published->digest));
  ATOLL_ASSIGN_OR_RETURN(const std::unique_ptr<Serving> remote, Serving::StartOn(router::ServedOf(files), lanes));
  ATOLL_ASSIGN_OR_RETURN(const std::unique_ptr<Serving> local,
                         Serving::StartApart(published->store.get(), published->uri, published->digest, Layout()));
  Requests requests(published->model.classes, settings.steps, /*seed=*/7);
  for (Serving* serving : {local.get(), remote.get()}) {  // warms up
    ATOLL_RETURN_IF_ERROR(Makespan(Play(serving->engine(), std::vector{requests.Make(kImagesPerRequest)})).status());
  }
  Figures figures;
  for (int i = 0; i < settings.rounds; ++i) {
    const std::vector<TimedRequest> load = requests.MakeSome(kRequests, kImagesPerRequest);
    ATOLL_ASSIGN_OR_RETURN(const double in_process, Makespan(Play(local->engine(), load)));
    ATOLL_ASSIGN_OR_RETURN(const double over_loopback, Makespan(Play(remote->engine(), load)));
    fmt::print(stderr, "round {}: in process {:.2f} s, over loopback {:.2f}\n", i, in_process, over_loopback);
    figures[{"remote-vs-local", "fraction"}].push_back(in_process / over_loopback);
  }
  PrintMedians(figures, "ratio", {{{"remote-vs-local", "fraction"}, AtLeast(0.85)}});
  return absl::OkStatus();
}

}  // namespace atl::bench
