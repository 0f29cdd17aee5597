// Channels to Atoll's services, and deadlines of calls. Every call has a deadline: set one before it starts.
#pragma once

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "grpcpp/channel.h"
#include "grpcpp/client_context.h"
#include "grpcpp/security/credentials.h"
#include "grpcpp/server_context.h"

namespace atl::rpc {

// Largest message either side takes. Tensors and images above it are streamed or passed by URI.
inline constexpr int kMaxMessageBytes = 64 << 20;

// A channel to "host:port" that connects when first used: pings an idle connection every 20 s, and tries again after
// 0.2 s growing to at most 5 s (gRPC adds 20 % of jitter). Thread-safe; it dies with its last reference, which a
// reactor must not hold. Null credentials: in the clear.
//
// Of a list "host:port,host:port" each call goes to a server that says by its health (the name "") that it serves: to
// the active coordinator and no standby. Names in a list are looked up now, once, which blocks; their certificates must
// bear the first one's name, and they are called by IPv4 where any has such an address. "dns:///host:port" is such a
// list too: of every address that the name has, looked up again when connections break.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           const std::shared_ptr<grpc::ChannelCredentials>& credentials = nullptr);

// The call ends after `timeout` at the latest. With `wait_for_ready` it waits for a server that is not there yet
// instead of failing with UNAVAILABLE at once.
void SetTimeout(grpc::ClientContext* context, absl::Duration timeout, bool wait_for_ready = false);

// Time that the caller still waits; InfiniteDuration when it set no deadline, zero when it is past.
absl::Duration TimeLeft(const grpc::ServerContextBase& context);

// OK, or INVALID_ARGUMENT with reason DEADLINE_REQUIRED when the caller set no deadline.
absl::Status RequireDeadline(const grpc::ServerContextBase& context);

}  // namespace atl::rpc
