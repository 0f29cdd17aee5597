// atoll-router: samples from published models.
#include <csignal>
#include <cstdio>
#include <map>
#include <string>
#include <system_error>
#include <thread>

#include "CLI/CLI.hpp"
#include "common/auth/security.h"
#include "common/auth/security_flags.h"
#include "common/base/byte_size.h"
#include "common/base/explain.h"
#include "common/base/files.h"
#include "common/base/flag_checks.h"
#include "common/base/log.h"
#include "common/base/version.h"
#include "common/rpc/server.h"
#include "router/server/router_server.h"
#include "spdlog/spdlog.h"

namespace {

// Exit codes: 2 for wrong flags, 1 for anything else that keeps the router from serving.
constexpr int kFailed = 1;
constexpr int kUsage = 2;

}  // namespace

int main(int argc, char** argv) {
  atl::log::EscapeTexts();
  atl::router::RouterOptions options;
  options.threads = static_cast<int>(std::max(1u, std::thread::hardware_concurrency()));
  std::string port_file;
  std::string log_level = "info";
  double drain_seconds = 30;

  CLI::App app(
      "atoll-router samples images from published models: it follows a coordinator's serving versions, or\n"
      "serves one model folder.");
  app.set_version_flag("--version", std::string(atl::kVersion));
  app.add_option("--coordinator", options.coordinator,
                 "Coordinator to follow, HOST:PORT; several, of which one serves: HOST:PORT,HOST:PORT")
      ->envname("ATOLL_COORDINATOR");
  app.add_option("--blob-store", options.blob_store, "URI of the coordinator's blob store")
      ->envname("ATOLL_BLOB_STORE");
  app.add_option("--model-dir", options.model_dir,
                 "Folder of one published model (model_index.json), to serve without a coordinator");
  app.add_option("--model", options.models, "Serve this model only; may be repeated (default: every model)");
  std::vector<std::string> pinned;
  app.add_option("--pin", pinned,
                 "MODEL@VERSION to keep loaded beside the serving version, for requests that name it; may be repeated")
      ->check([](const std::string& text) {
        const size_t at = text.find('@');
        return at == 0 || at == std::string::npos || at + 1 == text.size() ? "expected MODEL@VERSION, found " + text
                                                                           : "";
      });
  app.add_option("--listen", options.listen, "HOST:PORT to serve at; port 0 takes a free one")->capture_default_str();
  atl::rpc::SecurityOptions security_flags;
  atl::rpc::AddSecurityFlags(app, &security_flags, atl::rpc::Side::kBoth);
  app.add_option("--port-file", port_file, "Write the bound HOST:PORT to this file once it serves");
  app.add_option("--metrics-listen", options.metrics_listen, "HOST:PORT of /metrics and /healthz (default: none)");
  app.add_flag("--metrics-open", options.metrics_open,
               "Serve metrics in the clear and to everybody, wherever it listens");
  app.add_option("--rest-listen", options.rest.listen,
                 "HOST:PORT of the REST API in the shape of OpenAI's images endpoint (default: none); without a host,\n"
                 "this machine's loopback")
      ->transform([](const std::string& text) {
        return text.find(':') == std::string::npos || text[0] == ':' ? "127.0.0.1:" + text.substr(text[0] == ':')
                                                                     : text;
      });
  app.add_option(
      "--expert-server", options.expert_servers,
      "HOST:PORT of an `atoll-worker --serve` that evaluates experts, beside those that the coordinator lists;\n"
      "may be repeated");
  const std::map<std::string, atl::router::OwnNetworks> own_networks = {{"auto", atl::router::OwnNetworks::kAuto},
                                                                        {"all", atl::router::OwnNetworks::kAll},
                                                                        {"router", atl::router::OwnNetworks::kRouter},
                                                                        {"none", atl::router::OwnNetworks::kNone}};
  app.add_option_function<std::string>(
         "--own-networks", [&](const std::string& name) { options.own_networks = own_networks.at(name); },
         "What of a version this router evaluates itself: all, router, none, or auto: the router network where there\n"
         "are expert servers when the version is loaded, else all")
      ->check(CLI::IsMember({"auto", "all", "router", "none"}))
      ->default_str("auto");
  app.add_option("--threads", options.threads, "Threads that evaluate networks on the processor")
      ->check(atl::WholeNumber(1, 1024))
      ->capture_default_str();
  app.add_option("--device", options.device,
                 "Where networks are evaluated: cpu, cuda (all devices that there are), or a list as cuda:0,cuda:1;\n"
                 "cpu:0,cpu:1 are parts of the processor, which share --threads. Each network lies on one device,\n"
                 "those that are used most on more")
      ->capture_default_str();
  app.add_option(
         "--memory-budget", options.memory_budget_bytes,
         "Most memory for weights on each device, as 800MB or 20GiB; experts that are over it are read again when\n"
         "they are asked for, in place of those that were not used for longest (default: no limit)")
      ->transform(atl::ByteSize());
  app.add_option("--max-steps", options.engine.limits.max_steps, "Most solver steps of one request")
      ->check(atl::WholeNumber(1, 100'000))
      ->capture_default_str();
  app.add_option("--max-images", options.engine.limits.max_images, "Most images of one request")
      ->check(atl::WholeNumber(1, 1'000'000))
      ->capture_default_str();
  app.add_option(
         "--max-images-in-flight", options.engine.admission.max_images_in_flight,
         "Images that are sampled at a time, and those that their callers have not taken yet; the others queue.\n"
         "At least --max-images")
      ->check(atl::WholeNumber(1, 1'000'000))
      ->capture_default_str();
  app.add_option("--max-queued-requests", options.engine.admission.max_queued_requests,
                 "Requests that queue; further ones are refused, and told when to come back")
      ->check(atl::WholeNumber(0, 1'000'000))
      ->capture_default_str();
  app.add_option("--drain-seconds", drain_seconds, "On SIGTERM, how long running requests may still take")
      ->check(atl::Number(0, 86'400))
      ->capture_default_str();
  app.add_option("--log-level", log_level, "trace, debug, info, warn, error or off")
      ->check(CLI::IsMember({"trace", "debug", "info", "warn", "error", "off"}))
      ->capture_default_str();
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) return app.exit(error);  // --help and --version
    std::fprintf(stderr, "atoll-router: %s\nTry 'atoll-router --help'.\n", error.what());
    return kUsage;
  }
  for (const std::string& pin : pinned) {
    const size_t at = pin.find('@');
    options.pinned[pin.substr(0, at)].push_back(pin.substr(at + 1));
  }
  spdlog::set_level(spdlog::level::from_str(log_level));
  auto& admission = options.engine.admission;
  admission.max_images_in_flight = std::max<int64_t>(admission.max_images_in_flight, options.engine.limits.max_images);

  std::signal(SIGPIPE, SIG_IGN);
  // Blocked in every thread, and taken by this one.
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);

  const auto security = atl::rpc::Security::Make(security_flags);
  if (!security.ok()) {
    std::fprintf(stderr, "atoll-router: %s\n", atl::Explain(security.status()).c_str());
    return security.status().code() == absl::StatusCode::kInvalidArgument ? kUsage : kFailed;
  }
  options.security = *security;
  absl::StatusOr<std::unique_ptr<atl::router::RouterServer>> router;
  try {
    router = atl::router::RouterServer::Start(options);
  } catch (const std::system_error& error) {
    std::fprintf(stderr, "atoll-router: cannot start its threads (--threads %d): %s\n", options.threads, error.what());
    return kFailed;
  }
  if (!router.ok()) {
    std::fprintf(stderr, "atoll-router: %s\n", atl::Explain(router.status()).c_str());
    return router.status().code() == absl::StatusCode::kInvalidArgument ? kUsage : kFailed;
  }
  if (!port_file.empty()) {
    if (const absl::Status written = atl::WriteFile(port_file, (*router)->address() + "\n"); !written.ok()) {
      std::fprintf(stderr, "atoll-router: --port-file: %s\n", std::string(written.message()).c_str());
      return kFailed;
    }
  }
  spdlog::info("atoll-router {} listens at {}", atl::kVersion, (*router)->address());
  if (!options.rest.listen.empty()) {
    spdlog::info("REST at {}://{}/v1", security_flags.tls_dir.empty() ? "http" : "https", (*router)->rest_address());
  }
  int signal = 0;
  sigwait(&signals, &signal);
  spdlog::info("signal {}: draining for at most {} s", signal, drain_seconds);
  (*router)->Shutdown(absl::Seconds(drain_seconds));
  return 0;
}
