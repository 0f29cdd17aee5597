// Lets calls in or refuses them, before a handler sees them, and tells handlers who calls.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/auth/authenticator.h"
#include "common/auth/principals.h"
#include "grpcpp/security/auth_context.h"
#include "grpcpp/security/auth_metadata_processor.h"
#include "grpcpp/server_context.h"

namespace atl::rpc {

// A call that was refused before a handler saw it. Holds nothing of its credential.
struct RefusedCall {
  std::string method;   // "/atoll.job.v1.JobService/SubmitJob", or an HTTP route: as the caller wrote it
  std::string subject;  // who the caller is known to be, by its entry or else by its certificate; empty: nobody
  std::string peer;     // "ip:port" of an HTTP caller; empty of a gRPC one, whose address a guard is not told
  absl::Status status;
};

// What a call began with: enough to ask again, while it goes on, who its caller is. Keep it out of logs.
struct CallStart {
  std::string method;  // "/package.Service/Method"
  std::string bearer;  // token; "" without one
  std::vector<std::string> certificate_names;
  absl::Time began;
};

// Of a call that was let in; keeps no reference to it.
CallStart StartOf(std::string method, const grpc::ServerContextBase& call);

// The caller of a call that goes on, by today's files. Errors as in Authenticator::CheckAsOf and CheckAccess.
absl::StatusOr<Principal> WhoStill(const Authenticator& authenticator, const CallStart& start);

// A gRPC authentication context belongs to a connection, which calls of several users may share: nothing is written
// into it, and handlers ask Who again. A credential is checked when a call starts; a stream that is open goes on after
// its token has expired, but not after its caller was shut out (open_streams.h). Thread-safe.
class Guard final : public grpc::AuthMetadataProcessor {
 public:
  explicit Guard(std::shared_ptr<const Authenticator> authenticator) : authenticator_(std::move(authenticator)) {}

  bool IsBlocking() const override { return false; }
  // OK where the table (roles.h) lets this caller call this method. gRPC carries code and text alone from here: the
  // reason stands in brackets before the message, where FromGrpc finds it.
  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* context, OutputMetadata* consumed,
                       OutputMetadata* response) override;

  // The caller of a call that was let in. An error where its credential has expired or was revoked since.
  absl::StatusOr<Principal> Who(const grpc::ServerContextBase& call) const;
  // As rpc::WhoStill.
  absl::StatusOr<Principal> WhoStill(const CallStart& start) const { return rpc::WhoStill(*authenticator_, start); }

  // Who hears of every call that is refused from now on; null: nobody. Called from serving threads; must not block, nor
  // call this. When it returns, the one before is not being called any more.
  using OnRefused = std::function<void(const RefusedCall&)>;
  void TellRefused(OnRefused on_refused);
  // For ports that do not speak gRPC.
  void Refused(const RefusedCall& call) const;

 private:
  const std::shared_ptr<const Authenticator> authenticator_;
  mutable absl::Mutex mutex_;
  OnRefused on_refused_ ABSL_GUARDED_BY(mutex_);
};

// Who calls, with a guard or without: on a port without one whoever reaches it may do everything (OpenPrincipal), under
// the name in the client's certificate, else as "anonymous".
absl::StatusOr<Principal> CallerOf(const Guard* guard, const grpc::ServerContextBase& call);

// The token in a call's metadata; "" without one. A view into it. UNAUTHENTICATED, reason TOKEN_INVALID.
absl::StatusOr<std::string_view> BearerOf(const std::multimap<grpc::string_ref, grpc::string_ref>& metadata);

// Names in the client's verified certificate: common name, then alternative names; empty without one.
std::vector<std::string> CertificateNames(const grpc::AuthContext& context);

}  // namespace atl::rpc
