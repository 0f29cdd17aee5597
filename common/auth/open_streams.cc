#include "common/auth/open_streams.h"

#include <utility>
#include <vector>

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
    // Before this point the context has no call and does not know its caller.
    if (methods->QueryInterceptionHookPoint(grpc::experimental::InterceptionHookPoints::POST_RECV_INITIAL_METADATA)) {
      Enter();
    }
    methods->Proceed();
  }

  void Cancel() const { info_->server_context()->TryCancel(); }

 private:
  void Enter() {
    const auto start = std::make_shared<const CallStart>(StartOf(info_->method(), *info_->server_context()));
    const std::lock_guard<std::recursive_mutex> lock(streams_->mutex_);
    streams_->open_.emplace(this, start);
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

void OpenStreams::Cut(const Judge& judge) {
  std::vector<std::pair<const Entry*, std::shared_ptr<const CallStart>>> open;
  {
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    open.assign(open_.begin(), open_.end());
  }
  for (const auto& [entry, start] : open) {
    const absl::Status why = judge(*start);
    if (why.ok()) continue;
    const std::lock_guard<std::recursive_mutex> lock(mutex_);
    // Another stream may have taken the place of its entry in memory, but not of its start.
    const auto found = open_.find(entry);
    if (found == open_.end() || found->second != start) continue;  // it has ended
    spdlog::warn("{}: an open stream is cut: {}", start->method, std::string(why.message()));
    entry->Cancel();
  }
}

size_t OpenStreams::size() const {
  const std::lock_guard<std::recursive_mutex> lock(mutex_);
  return open_.size();
}

}  // namespace atl::rpc
