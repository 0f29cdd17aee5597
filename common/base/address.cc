#include "common/base/address.h"

#include <algorithm>
#include <charconv>

namespace atl {
namespace {

// Returns the port after `colon`, or -1 if there is no valid port.
int PortAfter(std::string_view text, size_t colon) {
  int port = -1;
  const char* const end = text.data() + text.size();
  const auto [parsed, error] = std::from_chars(text.data() + colon + 1, end, port);
  return error == std::errc() && parsed == end && port >= 0 && port <= 65535 ? port : -1;
}

}  // namespace

bool IsAddress(std::string_view text) {
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos || colon == 0) return false;
  const std::string_view host = text.substr(0, colon);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  // A name, or what stands in brackets: the brackets themselves are checked above.
  const std::string_view inner = bracketed ? host.substr(1, host.size() - 2) : host;
  const bool plain = std::all_of(inner.begin(), inner.end(), [&](char c) {
    return static_cast<unsigned char>(c) > 0x20 && c != 0x7F &&
           std::string_view("/[],").find(c) == std::string_view::npos;
  });
  if (!plain || (!bracketed && host.find(':') != std::string_view::npos)) return false;
  return PortAfter(text, colon) >= 1;
}

bool HasListenPort(std::string_view address) {
  const size_t colon = address.rfind(':');
  return colon != std::string_view::npos && PortAfter(address, colon) >= 0;
}

std::vector<std::string> SplitAddresses(std::string_view list) {
  std::vector<std::string> addresses;
  while (true) {
    const size_t comma = list.find(',');
    addresses.emplace_back(list.substr(0, comma));
    if (comma == std::string_view::npos) return addresses;
    list.remove_prefix(comma + 1);
  }
}

bool IsAddressList(std::string_view list) {
  constexpr std::string_view kOneName = "dns:///";
  if (list.starts_with(kOneName)) return IsAddress(list.substr(kOneName.size()));
  const std::vector<std::string> addresses = SplitAddresses(list);
  return std::all_of(addresses.begin(), addresses.end(), [](const std::string& address) { return IsAddress(address); });
}

bool IsLoopback(std::string_view address) {
  const std::string_view host = address.substr(0, address.rfind(':'));
  if (host == "localhost" || host == "[::1]") return true;
  // Only digits and dots are accepted: the name 127.example.org may be any machine.
  return host.starts_with("127.") && host.find_first_not_of("0123456789.") == std::string_view::npos;
}

}  // namespace atl
