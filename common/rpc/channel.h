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

// Returns a channel to "host:port" that connects on first use. It pings an idle connection every 20 s, and reconnects
// after 0.2 s growing to at most 5 s (gRPC adds 20 % of jitter). Thread-safe. The channel ends with its last reference,
// which a reactor must not hold. Null credentials: in the clear.
//
// For a list "host:port,host:port", each call goes to a server whose health (the name "") is SERVING: to the active
// coordinator and not to a standby. Names in a list are resolved now, once, which blocks. Their certificates must bear
// the first one's name, and they are called by IPv4 if any has such an address. "dns:///host:port" is a list of every
// address that the name has, resolved again when connections break.
std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           const std::shared_ptr<grpc::ChannelCredentials>& credentials = nullptr);

// Ends the call after `timeout` at the latest. With `wait_for_ready` it waits for a server that is not there yet
// instead of failing with UNAVAILABLE at once.
void SetTimeout(grpc::ClientContext* context, absl::Duration timeout, bool wait_for_ready = false);

// Returns the time that the caller still waits; InfiniteDuration without a deadline, zero when it is past.
absl::Duration TimeLeft(const grpc::ServerContextBase& context);

// Returns INVALID_ARGUMENT with reason DEADLINE_REQUIRED if the caller set no deadline, else OK.
absl::Status RequireDeadline(const grpc::ServerContextBase& context);

}  // namespace atl::rpc
