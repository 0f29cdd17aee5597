// In front of an HTTP server: accepts, decrypts where there is TLS, and hands whole requests' bytes on to a port of
// this machine's loopback. In the clear, too, it keeps those away from the server's few threads who send next to
// nothing.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "common/base/clock.h"
#include "common/http/tls_folder.h"
#include "common/http/tls_relay.h"

namespace atl::http {

struct TlsFrontOptions {
  std::string listen;    // "host:port"; port 0 takes a free one
  TlsFolderOptions tls;  // an empty folder: in the clear
  // Further ones wait to be accepted: then those that have not sent the head of a request are cut off first.
  int max_connections = 256;
  RelayLimits limits;
  // How long connections may still take when it is destroyed.
  absl::Duration drain_time = absl::Seconds(2);
};

// Whose requests come over a connection.
struct TlsPeer {
  std::string address;             // "ip:port"
  std::vector<std::string> names;  // of its verified certificate; empty: it showed none
};

// One thread of its own, joined by the destructor: destroy it after the server behind it. PeerOf is thread-safe.
class TlsFront {
 public:
  // Binds and reads the certificate; connections wait until Serve. INVALID_ARGUMENT, reason INVALID_ADDRESS;
  // UNAVAILABLE, reason CANNOT_LISTEN; errors of TlsFolder::Open.
  static absl::StatusOr<std::unique_ptr<TlsFront>> Open(const TlsFrontOptions& options, Clock* clock = Clock::Real());
  ~TlsFront();

  int port() const { return port_; }

  // Begins to hand connections on to 127.0.0.1:`port`. Once.
  void Serve(int port);

  // Of the connection whose other end the server behind sees at this address and port. Nothing for a connection that
  // did not come through here: any program of this machine can make one, also from a port of 127.0.0.2 that is in use
  // here, and it is not to be served.
  std::optional<TlsPeer> PeerOf(std::string_view host, int port) const;

 private:
  struct Connection;
  TlsFront(const TlsFrontOptions& options, Clock* clock);

  absl::Status Bind();
  void Run();
  void Accept();
  // From when on a connection may be cut off for others.
  absl::Duration SpareFrom() const;
  // Waits for events, at most until the first deadline; tells which connections have some.
  bool Poll(absl::Duration stop_by);
  void Advance(Connection* connection);
  int ConnectFor(Connection* connection, const std::vector<std::string>& names);

  const TlsFrontOptions options_;
  Clock* const clock_;
  std::unique_ptr<TlsFolder> folder_;
  int listener_ = -1;
  int port_ = 0;
  int stop_ = -1;  // an event: set by the destructor
  int behind_ = 0;
  absl::Duration accept_again_ = absl::ZeroDuration();
  bool others_wait_ = false;  // to be accepted
  std::vector<std::unique_ptr<Connection>> connections_;
  mutable absl::Mutex mutex_;
  std::map<int, TlsPeer> peers_ ABSL_GUARDED_BY(mutex_);  // by the port of this side's end
  std::thread thread_;
};

}  // namespace atl::http
