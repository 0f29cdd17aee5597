#include "coordinator/service/standby.h"

#include <unistd.h>

#include <climits>
#include <fstream>
#include <utility>

#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/wire/status.h"
#include "fmt/format.h"
#include "grpcpp/generic/async_generic_service.h"

namespace atl::coordinator {

class Standby::Refusing : public grpc::CallbackGenericService {
 private:
  class Refusal : public grpc::ServerGenericBidiReactor {
   public:
    Refusal() {
      Finish(rpc::ToGrpc(
          MakeError(absl::StatusCode::kUnavailable, "COORDINATOR_STANDBY",
                    "this coordinator waits for the store, which another one has or whose server is away")));
    }
    void OnDone() override { delete this; }
  };

  grpc::ServerGenericBidiReactor* CreateReactor(grpc::GenericCallbackServerContext*) override { return new Refusal; }
};

Standby::Standby() : refusing_(std::make_unique<Refusing>()) {}

absl::StatusOr<std::unique_ptr<Standby>> Standby::Start(rpc::ServerOptions server, const std::string& metrics_listen,
                                                        const metrics::Registry* registry,
                                                        http::HttpSecurity metrics_security,
                                                        std::function<void()> refresh) {
  std::unique_ptr<Standby> standby(new Standby);
  server.services.clear();
  server.other_calls = standby->refusing_.get();
  ATOLL_ASSIGN_OR_RETURN(standby->server_, rpc::Server::Start(server));
  standby->server_->SetServing("", false);
  if (!metrics_listen.empty()) {
    ATOLL_ASSIGN_OR_RETURN(standby->exposer_, metrics::Exposer::Start(
                                                  registry, metrics_listen, [] { return false; }, std::move(refresh),
                                                  std::move(metrics_security)));
  }
  return standby;
}

Standby::~Standby() = default;

std::string HolderName(const std::string& listen) {
  char host[HOST_NAME_MAX + 1] = {};
  gethostname(host, sizeof host - 1);
  std::string boot;
  std::ifstream("/proc/sys/kernel/random/boot_id") >> boot;
  // "net:[4026531840]": containers of one machine listen at the same port.
  char network[64] = {};
  if (readlink("/proc/self/ns/net", network, sizeof network - 1) < 0) network[0] = '\0';
  const bool any_port = listen.size() > 2 && listen.substr(listen.size() - 2) == ":0";
  return fmt::format("{} at {} ({} {}{})", host, listen, boot.substr(0, 8), network,
                     any_port ? fmt::format(" process {}", getpid()) : "");
}

}  // namespace atl::coordinator
