#include "common/rpc/channel.h"

#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <string_view>
#include <vector>

#include "absl/strings/str_join.h"
#include "common/base/address.h"
#include "common/base/errors.h"
#include "grpcpp/create_channel.h"
#include "grpcpp/support/channel_arguments.h"

namespace atl::rpc {
namespace {

// Sends calls only to servers whose health is SERVING.
constexpr char kHealthyOnes[] =
    R"({"loadBalancingConfig": [{"round_robin": {}}], "healthCheckConfig": {"serviceName": ""}})";

// Every address of "host:port", as gRPC's schemes ipv4 and ipv6 want it.
void LookUp(const std::string& address, std::vector<std::string>* ipv4, std::vector<std::string>* ipv6) {
  const size_t colon = address.rfind(':');
  if (colon == std::string::npos) return;
  std::string host = address.substr(0, colon);
  if (host.size() > 1 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(host.c_str(), nullptr, &hints, &found) != 0) return;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    char text[NI_MAXHOST];
    if (getnameinfo(at->ai_addr, at->ai_addrlen, text, sizeof text, nullptr, 0, NI_NUMERICHOST) != 0) continue;
    if (at->ai_family == AF_INET) ipv4->push_back(text + address.substr(colon));
    if (at->ai_family == AF_INET6) ipv6->push_back("[" + std::string(text) + "]" + address.substr(colon));
  }
  freeaddrinfo(found);
}

// Returns the target: gRPC takes several addresses of one kind. If no name resolves, the list itself is the target, and
// gRPC reports the error.
std::string TargetOf(const std::vector<std::string>& addresses) {
  std::vector<std::string> ipv4;
  std::vector<std::string> ipv6;
  for (const std::string& address : addresses) LookUp(address, &ipv4, &ipv6);
  if (!ipv4.empty()) return "ipv4:" + absl::StrJoin(ipv4, ",");
  return ipv6.empty() ? absl::StrJoin(addresses, ",") : "ipv6:" + absl::StrJoin(ipv6, ",");
}

}  // namespace

std::shared_ptr<grpc::Channel> MakeChannel(const std::string& address,
                                           const std::shared_ptr<grpc::ChannelCredentials>& credentials) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, 20'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 10'000);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_PERMIT_WITHOUT_CALLS, 1);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, 200);
  // This is also the limit of one connection attempt. When thousands of islands reconnect at once, TLS handshakes wait
  // for the server's processor. If clients gave up halfway and retried, none would ever connect.
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, credentials != nullptr ? 10'000 : 1'000);
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, 5'000);
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  const std::vector<std::string> addresses = SplitAddresses(address);
  std::string target = address;
  if (addresses.size() > 1) {
    target = TargetOf(addresses);
    arguments.SetString(GRPC_ARG_DEFAULT_AUTHORITY, addresses[0]);
  } else if (IsAddress(address)) {
    // The explicit scheme keeps host names apart from gRPC's schemes: "unix:80" would be a file.
    target = "dns:///" + address;
  }
  if (addresses.size() > 1 || address.starts_with("dns:")) arguments.SetServiceConfigJSON(kHealthyOnes);
  return grpc::CreateCustomChannel(target, credentials != nullptr ? credentials : grpc::InsecureChannelCredentials(),
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
