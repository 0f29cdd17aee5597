#include "common/http/http_listen.h"

#include <charconv>
#include <thread>

#include "absl/synchronization/notification.h"
#include "civetweb.h"
#include "common/base/address.h"
#include "common/base/errors.h"
#include "fmt/format.h"

namespace atl::http {
namespace {

// Opens and closes a connection to a listening port of this machine, so that its poll returns.
void WakeListener(const std::string& address) {
  const size_t colon = address.rfind(':');
  const std::string host = address.substr(0, colon);
  const std::string dialable = host == "0.0.0.0" ? "127.0.0.1" : host;
  int port = 0;
  std::from_chars(address.data() + colon + 1, address.data() + address.size(), port);
  char error[64];
  if (mg_connection* connection = mg_connect_client(dialable.c_str(), port, 0, error, sizeof(error))) {
    mg_close_connection(connection);
  }
}

}  // namespace

absl::Status CheckListenAddress(const std::string& listen, std::string_view what) {
  const size_t colon = listen.rfind(':');
  const bool plain =
      colon != std::string::npos && colon > 0 && HasListenPort(listen) && listen.find(',') == std::string::npos;
  if (plain) return absl::OkStatus();
  return MakeError(absl::StatusCode::kInvalidArgument, "INVALID_ADDRESS",
                   fmt::format("expected host:port for {}, with a port from 0 to 65535, found '{}'", what, listen));
}

void CloseListener(const std::string& address, const std::function<void()>& close) {
  absl::Notification closed;
  std::thread closer([&] {
    close();
    closed.Notify();
  });
  while (!closed.WaitForNotificationWithTimeout(absl::Milliseconds(20))) WakeListener(address);
  closer.join();
}

}  // namespace atl::http
