// One process's security: its certificates, its token, and the callers that it accepts. All files are reloaded when
// they change.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "common/auth/guard.h"
#include "common/auth/open_streams.h"
#include "common/auth/security_options.h"
#include "common/base/clock.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/security/server_credentials.h"

namespace atl::rpc {

// Thread-safe. The objects that it made outlive it.
class Security {
 public:
  // Reads every file once. INVALID_ARGUMENT or FAILED_PRECONDITION names the file and the error, as
  // CERTIFICATE_EXPIRED; TLS_REQUIRED where client certificates are required without tls_dir.
  static absl::StatusOr<std::shared_ptr<const Security>> Make(const SecurityOptions& options,
                                                              Clock* clock = Clock::Real());

  // Credentials for a port at `listen`; null: in the clear, for every caller. FAILED_PRECONDITION with reason
  // TLS_REQUIRED beyond loopback without TLS, and CALLERS_UNKNOWN where TLS would accept every caller.
  absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ServerCredentials(std::string_view listen) const;

  // For channels; null: in the clear. Without TLS and with a token they connect to this machine only.
  std::shared_ptr<grpc::ChannelCredentials> channel_credentials() const { return channel_credentials_; }

  // FAILED_PRECONDITION, reason TOKEN_NEEDS_TLS, where a token would leave this machine in the clear.
  absl::Status CheckTarget(std::string_view address) const;

  // Null without principals: then every accepted caller may call everything.
  const std::shared_ptr<Guard>& guard() const { return guard_; }
  // Null without principals. For servers that must cut the streams of revoked callers.
  const std::shared_ptr<OpenStreams>& open_streams() const { return open_streams_; }
  // Null without principals. For ports that do not speak gRPC.
  const std::shared_ptr<const Authenticator>& authenticator() const { return authenticator_; }
  const SecurityOptions& options() const { return options_; }
  // End of the process's own certificate in its current file; InfiniteFuture without one.
  absl::Time certificate_end() const;

  ~Security();

 private:
  struct Tls;
  Security();
  absl::Status LoadTls();
  absl::Status LoadChannelCredentials(Clock* clock);

  SecurityOptions options_;
  std::unique_ptr<Tls> tls_;  // null: none
  std::shared_ptr<const Authenticator> authenticator_;
  std::shared_ptr<Guard> guard_;
  std::shared_ptr<OpenStreams> open_streams_;
  std::shared_ptr<grpc::ChannelCredentials> channel_credentials_;
};

// The same for a process without security, as in tests: in the clear, for every caller.
absl::StatusOr<std::shared_ptr<grpc::ServerCredentials>> ServerCredentialsOf(const Security* security,
                                                                             std::string_view listen);
std::shared_ptr<grpc::ChannelCredentials> ChannelCredentialsOf(const Security* security);
std::shared_ptr<OpenStreams> OpenStreamsOf(const Security* security);

}  // namespace atl::rpc
