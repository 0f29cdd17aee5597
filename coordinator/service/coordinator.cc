#include "coordinator/service/coordinator.h"

#include <openssl/rand.h>

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/synchronization/notification.h"
#include "common/auth/http_access.h"
#include "common/auth/roles.h"
#include "common/base/address.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/rpc/listen_probe.h"
#include "coordinator/blobs/adoption.h"
#include "coordinator/blobs/weights_lookup.h"
#include "coordinator/core/epoch.h"
#include "coordinator/store/pg_store.h"
#include "coordinator/store/sqlite_store.h"
#include "fmt/format.h"
#include "spdlog/spdlog.h"

namespace atl::coordinator {
namespace {

// Bounded, so that a slow blob store refuses instead of hoarding.
constexpr size_t kWaitingReads = 64;
// A job's spec is the largest of what is sent here.
constexpr int kMaxRequestBytes = 4 << 20;
// The total for all connections and their pending messages.
constexpr int64_t kMaxConnectionBytes = int64_t{512} << 20;

std::string RandomBytes(size_t size) {
  std::string bytes(size, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(bytes.data()), static_cast<int>(size)) != 1) {
    spdlog::critical("the system has no random bytes");
    std::abort();
  }
  return bytes;
}

// The core's memory may differ from the store, so only a process that loads the store anew may answer calls.
[[noreturn]] void EndProcess(const absl::Status& why) {
  spdlog::critical("{}; this process ends", why.ToString());
  spdlog::default_logger()->flush();
  std::_Exit(kExitStoreLost);
}

// Returns a method without its service, as in other lines of the audit log; returns an unknown method unchanged.
std::string NameOf(const std::string& method) {
  const bool known = method.starts_with("/atoll.") && rpc::FindAccess(method) != nullptr;
  return known ? method.substr(method.rfind('/') + 1) : method;
}

void AuditRefused(const rpc::RefusedCall& call, AuditLog* audit, Clock* clock) {
  audit->WriteRefused({.time = clock->Now(),
                       .subject = call.subject,
                       .peer = call.peer,
                       .method = NameOf(call.method),
                       .resource = "",
                       .status = call.status},
                      clock->Monotonic());
}

}  // namespace

absl::Status CheckListen(const CoordinatorOptions& options) {
  ATOLL_RETURN_IF_ERROR(rpc::ServerCredentialsOf(options.security.get(), options.listen).status());
  if (!options.metrics_listen.empty()) ATOLL_RETURN_IF_ERROR(rpc::CheckListenAddress(options.metrics_listen));
  return rpc::ProbeListen(options.listen);
}

absl::Status CheckStorageGrants(const CoordinatorOptions& options) {
  if (options.storage_grants.command.empty()) return absl::OkStatus();
  if (!options.blob_store.starts_with("s3://")) {
    return FieldError("--storage-grant-command", "GRANTS_UNSUPPORTED",
                      "expected --blob-store s3://…, where keys can be granted, found another");
  }
  const bool clear = options.security == nullptr || options.security->options().tls_dir.empty();
  if (clear && !IsLoopback(options.listen)) {
    return FieldError("--storage-grant-command", "STORAGE_GRANT_NEEDS_TLS",
                      fmt::format("keys would leave this machine in the clear: give --tls-dir, or listen at loopback "
                                  "alone, found --listen {}",
                                  options.listen));
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Coordinator>> Coordinator::Start(CoordinatorOptions options, Clock* clock) {
  if (!options.on_store_lost) options.on_store_lost = EndProcess;
  // First: a second coordinator on a port that is taken must leave no store behind.
  ATOLL_RETURN_IF_ERROR(CheckListen(options));
  std::unique_ptr<Coordinator> coordinator(new Coordinator);
  ATOLL_RETURN_IF_ERROR(coordinator->Open(options, clock));
  ATOLL_RETURN_IF_ERROR(coordinator->Serve(options, clock));
  return coordinator;
}

absl::Status Coordinator::Open(const CoordinatorOptions& options, Clock* clock) {
  security_ = options.security;
  registry_ = metrics::Registry::Create("coordinator");
  metrics_ = std::make_unique<CoreMetrics>(registry_.get());
  if (!options.audit_log.empty()) {
    ATOLL_ASSIGN_OR_RETURN(audit_, AuditLog::Open(options.audit_log, registry_.get()));
    if (guard() != nullptr) {
      guard()->TellRefused([this, clock](const rpc::RefusedCall& call) { AuditRefused(call, audit_.get(), clock); });
    }
  }
  ATOLL_RETURN_IF_ERROR(OpenStore(options));
  ATOLL_ASSIGN_OR_RETURN(blobs_, storage::BlobStore::Open(options.blob_store));
  if (options.adopt) ATOLL_RETURN_IF_ERROR(CheckRanHere(*blobs_, *store_));
  ATOLL_RETURN_IF_ERROR(EstablishEpoch(*blobs_, *store_, options.restored));
  CoreOptions core;
  core.lease = options.lease;
  core.blob_root = blobs_->root();
  core.watch_interval = options.watch_interval;
  core.random_bytes = RandomBytes;
  ATOLL_ASSIGN_OR_RETURN(core_, Core::Load(store_.get(), clock, std::move(core), metrics_.get()));
  if (options.adopt) {
    const auto go_on = [&] { return !options.keep_waiting || options.keep_waiting(absl::ZeroDuration()); };
    ATOLL_RETURN_IF_ERROR(AdoptCheckpoints(*blobs_, *core_, clock, go_on).status());
  }
  // All this may have taken days, in which the file was moved away.
  ATOLL_RETURN_IF_ERROR(ReopenAuditLog());
  return OpenExperts(options, clock);
}

absl::Status Coordinator::OpenStore(const CoordinatorOptions& options) {
  if (!store::IsPgUri(options.store)) {
    ATOLL_ASSIGN_OR_RETURN(store_, store::SqliteStore::Open({.path = options.store, .on_lost = options.on_store_lost}));
    return absl::OkStatus();
  }
  store::PgStoreOptions store;
  store.uri = options.store;
  store.holder = HolderName(options.listen);
  store.lease_duration = options.store_lease;
  store.on_lost = options.on_store_lost;
  absl::Status standby;
  if (options.keep_waiting) {
    store.keep_waiting = [&](const std::string& holder) {
      standby = StandBy(options, holder);
      return standby.ok() && options.keep_waiting(std::min(options.store_lease / 5, absl::Seconds(1)));
    };
  }
  absl::StatusOr<std::unique_ptr<store::PgStore>> opened = store::PgStore::Open(std::move(store));
  ATOLL_RETURN_IF_ERROR(standby);
  ATOLL_RETURN_IF_ERROR(opened.status());
  store_ = *std::move(opened);
  return absl::OkStatus();
}

absl::Status Coordinator::StandBy(const CoordinatorOptions& options, const std::string& holder) {
  if (standby_ != nullptr) return absl::OkStatus();
  rpc::ServerOptions server;
  server.listen = options.listen;
  ATOLL_ASSIGN_OR_RETURN(server.credentials, rpc::ServerCredentialsOf(options.security.get(), options.listen));
  ATOLL_ASSIGN_OR_RETURN(standby_, Standby::Start(std::move(server), options.metrics_listen, registry_.get(),
                                                  rpc::MetricsSecurityOf(options.security.get(), options.metrics_open),
                                                  rpc::ShowCertificate(options.security, registry_.get())));
  spdlog::info(
      "standby at {}: {}", standby_->address(),
      holder.empty() ? "the server of the store is away" : fmt::format("the coordinator {} has the store", holder));
  if (options.on_standby) options.on_standby(standby_->address());
  return absl::OkStatus();
}

absl::Status Coordinator::StartStorageGrants(const CoordinatorOptions& options, Clock* clock) {
  if (options.storage_grants.command.empty()) return absl::OkStatus();
  StorageGrantOptions grants = options.storage_grants;
  // The island does not renew its lease before it has the answer.
  grants.limit = std::min(grants.limit, options.lease.lease_duration * 0.8);
  grants.blob_root = blobs_->root();
  ATOLL_ASSIGN_OR_RETURN(storage_grants_, StorageGrants::Start(std::move(grants), clock));
  return absl::OkStatus();
}

absl::Status Coordinator::OpenExperts(const CoordinatorOptions& options, Clock* clock) {
  ATOLL_ASSIGN_OR_RETURN(const std::vector<store::Model> published, core_->ListModels("", 1));
  experts_metrics_ = std::make_unique<ExpertRegistryMetrics>(registry_.get());
  experts_ = std::make_unique<ExpertRegistry>(
      ExpertRegistryOptions{.replicas = options.expert_replicas, .watch_interval = options.watch_interval},
      /*settles=*/!published.empty(), clock, experts_metrics_.get(),
      [this](const std::string& uri, const std::string& digest, ExpertRegistry::WeightsCallback done) {
        return ReadWeights(uri, digest, std::move(done));
      });
  core_->WatchModel("", 0, [experts = experts_.get()](const absl::StatusOr<store::Model>& model, bool) {
    if (model.ok()) experts->TakeModel(*model);
  });
  return absl::OkStatus();
}

bool Coordinator::ReadWeights(const std::string& uri, const std::string& digest, ExpertRegistry::WeightsCallback done) {
  return blob_thread_->Post([this, uri, digest, done = std::move(done)] {
    auto weights = LookUpWeights(*blobs_, uri, digest);
    core_thread_->PostEnd([done, weights = std::move(weights)] { done(weights); });
  });
}

absl::Status Coordinator::Serve(const CoordinatorOptions& options, Clock* clock) {
  Core* const core = core_.get();
  Executor::Options core_thread;
  ExpertRegistry* const experts = experts_.get();
  watches_ = std::make_unique<OpenWatches>();
  core_thread.after_each = [core, experts] {
    core->Deliver();
    core->Tick();
    core->Deliver();
    experts->Tick();
  };
  core_thread.next_wake = [core, experts] { return std::min(core->NextWake(), experts->NextWake()); };
  metrics::Histogram* const wait = registry_->AddHistogram("atoll_coordinator_core_wait_seconds",
                                                           "Time that calls wait for the thread that answers them all.",
                                                           metrics::CallSecondsBounds());
  core_thread.waited = [wait](absl::Duration waited) { wait->Observe(absl::ToDoubleSeconds(waited)); };
  core_thread_ = std::make_unique<Executor>(clock, std::move(core_thread));
  blob_thread_ = std::make_unique<Executor>(clock, Executor::Options{.capacity = kWaitingReads});

  ATOLL_RETURN_IF_ERROR(StartStorageGrants(options, clock));
  const ServiceContext context{core,    core_thread_.get(), clock,        registry_.get(),
                               guard(), watches_.get(),     audit_.get(), storage_grants_.get()};
  job_service_ = std::make_unique<JobServiceImpl>(context, blobs_.get(), blob_thread_.get());
  island_service_ = std::make_unique<IslandServiceImpl>(context);
  model_service_ = std::make_unique<ModelServiceImpl>(context);
  admin_service_ = std::make_unique<AdminServiceImpl>(context);
  serving_service_ = std::make_unique<ServingServiceImpl>(context, experts_.get());
  rpc::ServerOptions server;
  server.listen = options.listen;
  server.max_message_bytes = kMaxRequestBytes;
  server.max_connection_age = absl::Hours(6);
  server.memory_bytes = kMaxConnectionBytes;
  ATOLL_ASSIGN_OR_RETURN(server.credentials, rpc::ServerCredentialsOf(security_.get(), options.listen));
  server.open_streams = rpc::OpenStreamsOf(security_.get());
  if (standby_ != nullptr) {
    // Where callers found the standby.
    server.listen = fmt::format("{}:{}", options.listen.substr(0, options.listen.rfind(':')), standby_->port());
    standby_.reset();
  }
  server.services = {{atlpb::job::v1::JobService::service_full_name(), job_service_.get()},
                     {atlpb::island::v1::IslandService::service_full_name(), island_service_.get()},
                     {atlpb::model::v1::ModelService::service_full_name(), model_service_.get()},
                     {atlpb::admin::v1::AdminService::service_full_name(), admin_service_.get()},
                     {atlpb::serving::v1::ServingService::service_full_name(), serving_service_.get()}};
  ATOLL_ASSIGN_OR_RETURN(server_, rpc::Server::Start(server));
  CollectorOptions collector = options.collector;
  // This store does not have the other coordinator's new grants and publications.
  collector.superseded = options.on_store_lost;
  collector_ = std::make_unique<Collector>(
      blobs_.get(), clock, [this](const std::function<void(Core&)>& function) { return WithCore(function); },
      store_->store_id(), metrics_.get(), std::move(collector));
  if (!options.metrics_listen.empty()) {
    ATOLL_ASSIGN_OR_RETURN(exposer_,
                           metrics::Exposer::Start(registry_.get(), options.metrics_listen, /*healthy=*/{},
                                                   rpc::ShowCertificate(security_, registry_.get()),
                                                   rpc::MetricsSecurityOf(security_.get(), options.metrics_open)));
  }
  server_->SetServing(true);
  metrics_->active->Set(1);
  return absl::OkStatus();
}

Coordinator::~Coordinator() {
  if (server_ != nullptr) Stop(absl::ZeroDuration());
  if (core_thread_ != nullptr) core_thread_->Stop();
  // Others may have the guard, too.
  if (audit_ != nullptr && guard() != nullptr) guard()->TellRefused(nullptr);
}

rpc::Guard* Coordinator::guard() const {
  return security_ == nullptr ? nullptr : security_->guard().get();
}

bool Coordinator::WithCore(const std::function<void(Core&)>& function) {
  absl::Notification done;
  const bool posted = core_thread_->Post([&] {
    function(*core_);
    done.Notify();
  });
  if (posted) done.WaitForNotification();
  return posted;
}

absl::Status Coordinator::ReopenAuditLog() {
  return audit_ == nullptr ? absl::OkStatus() : audit_->Reopen();
}

void Coordinator::Stop(absl::Duration grace) {
  server_->SetServing(false);
  if (collector_ != nullptr) collector_->Stop();
  // Ends what would otherwise last as long as its callers wish.
  core_thread_->PostEnd([this] {
    core_->EndAllWaits();
    experts_->EndWatches();
  });
  if (storage_grants_ != nullptr) storage_grants_->Stop();
  server_->Shutdown(grace);
  collector_.reset();
  blob_thread_->Stop();
  core_thread_->Stop();
}

}  // namespace atl::coordinator
