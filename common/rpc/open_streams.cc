#include "common/rpc/open_streams.h"

#include <utility>

#include "absl/time/clock.h"

#include "common/rpc/guard.h"
#include "grpcpp/support/interceptor.h"
#include "spdlog/spdlog.h"

namespace atl::rpc {

// One per stream; the library destroys it with the stream's context.
class OpenStreams::Entry final : public grpc::experimental::Interceptor {
 public:
  Entry(std::shared_ptr<OpenStreams> streams, grpc::experimental::ServerRpcInfo* info)
      : streams_(std::move(streams)), info_(info) {}
  ~Entry() override {
    const std::lock_guard<std::recursive_mutex> lock(streams_->mutex_);
    streams_->open_.erase(this);
  }

  void Intercept(grpc::experimental::InterceptorBatchMethods* methods) override {
    // Before it the context has no call, and does not know who is at its other end.
    if (methods->QueryInterceptionHookPoint(grpc::experimental::InterceptionHookPoints::POST_RECV_INITIAL_METADATA)) {
      Enter();
    }
    methods->Proceed();
  }

  void Cancel() const { info_->server_context()->TryCancel(); }

 private:
  void Enter() {
    grpc::ServerContextBase* const context = info_->server_context();
    // The guard has let it in: its header is well formed.
    Caller caller{.method = info_->method(),
                  .bearer = std::string(BearerOf(context->client_metadata()).value_or("")),
                  .certificate_names = CertificateNames(*context->auth_context()),
                  .began = absl::Now()};
    const std::lock_guard<std::recursive_mutex> lock(streams_->mutex_);
    streams_->open_.emplace(this, std::move(caller));
  }

  const std::shared_ptr<OpenStreams> streams_;
  grpc::experimental::ServerRpcInfo* const info_;
};

class OpenStreams::Factory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit Factory(std::shared_ptr<OpenStreams> streams) : streams_(std::move(streams)) {}

  grpc::experimental::Interceptor* CreateServerInterceptor(grpc::experimental::ServerRpcInfo* info) override {
    if (info->type() == grpc::experimental::ServerRpcInfo::Type::UNARY) return nullptr;
    return new Entry(streams_, info);
  }

 private:
  const std::shared_ptr<OpenStreams> streams_;
};

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> OpenStreams::Interceptors() {
  return std::make_unique<Factory>(shared_from_this());
}

void OpenStreams::Cut(const std::function<absl::Status(const Caller&)>& judge) {
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  std::vector<std::pair<const Entry*, absl::Status>> refused;
  for (const auto& [entry, caller] : open_) {
    if (absl::Status status = judge(caller); !status.ok()) refused.emplace_back(entry, std::move(status));
  }
  for (const auto& [entry, status] : refused) {
    const auto found = open_.find(entry);
    if (found == open_.end()) continue;  // it ended with one before
    spdlog::warn("{}: an open stream is cut: {}", found->second.method, std::string(status.message()));
    entry->Cancel();
  }
}

size_t OpenStreams::size() const {
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  return open_.size();
}

}  // namespace atl::rpc
