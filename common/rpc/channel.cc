#include "common/rpc/channel.h"

#include <algorithm>
#include <chrono>

#include "common/base/errors.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/support/channel_arguments.h"

namespace atl::rpc {

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 200);
  // Also the time that one connection attempt may take. When thousands of islands come back at once, handshakes of TLS
  // wait for the server's processor: to give them up halfway and begin them again would let in nobody.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, credentials != nullptr ? 10'000 : 1'000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 5'000);
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  return grpc::CreateCustomChannel(address, credentials != nullptr ? credentials : grpc::InsecureChannelCredentials(),
                                   arguments);
}

void SetTimeout(grpc::ClientContext* context, absl::Duration timeout, bool wait_for_ready) {
  constexpr absl::Duration kLongest = absl::Hours(24 * 365);
  context->set_deadline(std::chrono::system_clock::now() + absl::ToChronoMilliseconds(std::min(timeout, kLongest)));
  context->set_wait_for_ready(wait_for_ready);
}

absl::Duration TimeLeft(const grpc::ServerContextBase& context) {
  const auto deadline = context.deadline();
  if (deadline == std::chrono::system_clock::time_point::max()) return absl::InfiniteDuration();
  return std::max(absl::FromChrono(deadline - std::chrono::system_clock::now()), absl::ZeroDuration());
}

absl::Status RequireDeadline(const grpc::ServerContextBase& context) {
  if (TimeLeft(context) < absl::InfiniteDuration()) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, "DEADLINE_REQUIRED",
                   "expected a call with a deadline, found none");
}

}  // namespace atl::rpc
