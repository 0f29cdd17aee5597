#include "client/server_text.h"

#include <algorithm>
#include <tuple>

#include "client/table.h"
#include "fmt/format.h"

namespace atl::client {
namespace {

using atlpb::expert::v1::HostedNetwork;
using atlpb::expert::v1::Network;
using atlpb::serving::v1::ExpertServer;
using atlpb::serving::v1::VersionShortage;
using atlpb::serving::v1::WatchServersResponse;

std::string NetworkName(int32_t expert) {
  return expert < 0 ? "router" : fmt::format("expert {}", expert);
}

std::string MemoryText(int64_t bytes) {
  return bytes == 0 ? "no limit" : BytesText(bytes);
}

bool Same(const Network& a, const Network& b) {
  return std::tie(a.model(), a.version(), a.digest()) == std::tie(b.model(), b.version(), b.digest()) &&
         a.expert() == b.expert();
}

// Returns the assigned networks that the server does not report yet.
std::vector<Network> ToCome(const ExpertServer& server) {
  std::vector<Network> networks;
  for (const Network& assigned : server.assigned()) {
    const auto& hosted = server.hosting().networks();
    const bool known = std::any_of(hosted.begin(), hosted.end(),
                                   [&](const HostedNetwork& entry) { return Same(entry.network(), assigned); });
    if (!known) networks.push_back(assigned);
  }
  return networks;
}

std::vector<std::string> Row(const ExpertServer& server) {
  int64_t count[4] = {};
  int64_t weights = 0;
  std::string error;
  for (const HostedNetwork& network : server.hosting().networks()) {
    ++count[std::clamp<int>(network.state(), 0, 3)];
    if (network.state() == HostedNetwork::STATE_READY) weights += network.bytes();
    if (network.state() != HostedNetwork::STATE_FAILED || !error.empty()) continue;
    error = fmt::format("{} {}: {}", network.network().model(), NetworkName(network.network().expert()),
                        OneLine(network.error().message()));
  }
  return {server.server_id(),
          server.address(),
          fmt::format("{}", count[HostedNetwork::STATE_READY]),
          fmt::format("{}", count[HostedNetwork::STATE_LOADING] + static_cast<int64_t>(ToCome(server).size())),
          fmt::format("{}", count[HostedNetwork::STATE_FAILED]),
          BytesText(weights),
          MemoryText(server.hosting().memory_bytes()),
          error};
}

std::string NetworkNumbers(const VersionShortage& shortage) {
  std::string text;
  for (const int32_t network : shortage.networks()) {
    text += (text.empty() ? "" : ",") + (network < 0 ? "router" : fmt::format("{}", network));
  }
  return text;
}

}  // namespace

std::string DescribeServers(const WatchServersResponse& response, int width) {
  Table servers({"SERVER", "ADDRESS", "READY", "LOADING", "FAILED", "WEIGHTS", "MEMORY", "ERROR"});
  for (const ExpertServer& server : response.servers()) servers.Add(Row(server));
  std::string text = servers.Text(width);
  if (!response.shortages().empty()) {
    Table shortages({"MODEL", "VERSION", "NOWHERE", "NEEDS", "LACKS", "WHY"});
    for (const VersionShortage& shortage : response.shortages()) {
      shortages.Add({shortage.model(), shortage.version(), NetworkNumbers(shortage), BytesText(shortage.needed_bytes()),
                     BytesText(shortage.lacking_bytes()), OneLine(shortage.error().message())});
    }
    text += "\n" + shortages.Text(width);
  }
  if (response.over_memory_bytes() > 0) {
    text += fmt::format("\n{} more than memory holds: what is asked for is read in turn, while a version is replaced\n",
                        BytesText(response.over_memory_bytes()));
  }
  return text;
}

std::string DescribeServer(const ExpertServer& server, int width) {
  std::string text = fmt::format("server      {}\naddress     {}\nslots       {}\nmemory      {}\narithmetic  {}\n\n",
                                 OneLine(server.server_id()), OneLine(server.address()), server.hosting().slots(),
                                 MemoryText(server.hosting().memory_bytes()), OneLine(server.hosting().fingerprint()));
  Table table({"MODEL", "VERSION", "NETWORK", "STATE", "WEIGHTS", "ERROR"});
  for (const HostedNetwork& entry : server.hosting().networks()) {
    const Network& network = entry.network();
    table.Add({network.model(), network.version(), NetworkName(network.expert()),
               EnumText(HostedNetwork::State_Name(entry.state())), BytesText(entry.bytes()),
               OneLine(entry.error().message())});
  }
  for (const Network& network : ToCome(server)) {
    table.Add({network.model(), network.version(), NetworkName(network.expert()), "assigned", "-", ""});
  }
  return text + table.Text(width);
}

}  // namespace atl::client
