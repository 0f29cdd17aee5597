// Accepts or refuses calls before a handler sees them, and tells handlers the caller.
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

// A call that was refused before a handler saw it. Holds no part of its credential.
struct RefusedCall {
  std::string method;   // "/atoll.job.v1.JobService/SubmitJob", or an HTTP route: as the caller wrote it
  std::string subject;  // the caller's name, by its entry or else by its certificate; empty: unknown
  std::string peer;     // "ip:port" of an HTTP caller; empty for gRPC, whose guard does not see the address
  absl::Status status;
};

// The credentials that a call began with, to check its caller again while it runs. Keep it out of logs.
struct CallStart {
  std::string method;  // "/package.Service/Method"
  std::string bearer;  // token; "" without one
  std::vector<std::string> certificate_names;
  absl::Time began;
};

// Copies the credentials of an accepted call; keeps no reference to it.
CallStart StartOf(std::string method, const grpc::ServerContextBase& call);

// Returns the caller of a running call by the current files. Errors as in Authenticator::CheckAsOf and CheckAccess.
absl::StatusOr<Principal> WhoStill(const Authenticator& authenticator, const CallStart& start);

// Checks a credential when a call starts. A gRPC authentication context belongs to a connection, which calls of several
// users may share, so the guard writes nothing into it and handlers ask Who again. An open stream continues after its
// token has expired, but not after its caller was revoked (open_streams.h). Thread-safe.
class Guard final : public grpc::AuthMetadataProcessor {
 public:
  explicit Guard(std::shared_ptr<const Authenticator> authenticator) : authenticator_(std::move(authenticator)) {}

  bool IsBlocking() const override { return false; }
  // OK if the table (roles.h) lets this caller call this method. gRPC passes on only code and text from here, so the
  // reason stands in brackets before the message, where FromGrpc finds it.
  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* context, OutputMetadata* consumed,
                       OutputMetadata* response) override;

  // Returns the caller of an accepted call. An error if its credential has expired or was revoked since.
  absl::StatusOr<Principal> Who(const grpc::ServerContextBase& call) const;
  // As rpc::WhoStill.
  absl::StatusOr<Principal> WhoStill(const CallStart& start) const { return rpc::WhoStill(*authenticator_, start); }

  // Callback for every call that is refused from now on; null: none. Runs on serving threads; must not block or call
  // TellRefused. When TellRefused returns, the previous callback is no longer running.
  using OnRefused = std::function<void(const RefusedCall&)>;
  void TellRefused(OnRefused on_refused);
  // Reports a refused call of a port that does not speak gRPC.
  void Refused(const RefusedCall& call) const;

 private:
  const std::shared_ptr<const Authenticator> authenticator_;
  mutable absl::Mutex mutex_;
  OnRefused on_refused_ ABSL_GUARDED_BY(mutex_);
};

// Returns the caller, with or without a guard. Without one, every caller may call everything (OpenPrincipal), under the
// name in its client certificate, else as "anonymous".
absl::StatusOr<Principal> CallerOf(const Guard* guard, const grpc::ServerContextBase& call);

// Returns the token in a call's metadata, a view into it; "" without one. UNAUTHENTICATED, reason TOKEN_INVALID.
absl::StatusOr<std::string_view> BearerOf(const std::multimap<grpc::string_ref, grpc::string_ref>& metadata);

// Returns the names in the client's verified certificate: common name, then alternative names; empty without one.
std::vector<std::string> CertificateNames(const grpc::AuthContext& context);

}  // namespace atl::rpc
