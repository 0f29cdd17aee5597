// One connection of a client, with TLS or in the clear, and the plain one behind it.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/time/time.h"
#include "openssl/types.h"

namespace atl::http {

struct RelayLimits {
  // From the connection until the whole head of a request has come: the handshake lies within it.
  absl::Duration max_start_time = absl::Seconds(10);
  // The same, once others wait because there are as many connections as there may be.
  absl::Duration max_crowded_start_time = absl::Seconds(1);
  // From the head until the connection is over, for servers that answer one request per connection.
  absl::Duration max_answer_time = absl::InfiniteDuration();
  // How long the other side may take to read a piece of an answer (kPieceBytes).
  absl::Duration max_unread_time = absl::Seconds(30);
  // How long it may take to close after the last piece; what it still sends is discarded.
  absl::Duration max_close_time = absl::Seconds(1);
};

// Moves bytes both ways without ever blocking. What is not taken is not read on either side. The plain connection is
// made when the whole head of a request has come (or a piece without an end of it, which the server behind is to
// refuse), so that whoever sends none, or a byte now and then, costs the server behind nothing. Not thread-safe.
class TlsRelay {
 public:
  static constexpr size_t kPieceBytes = size_t{64} << 10;
  // Connects to the server behind: a descriptor that does not block, or -1. Called at most once, with the names of the
  // client's certificate.
  using ConnectFunction = absl::FunctionRef<int(const std::vector<std::string>& names)>;

  // Takes `client`, a descriptor that does not block. Without a context it speaks in the clear.
  TlsRelay(int client, const std::shared_ptr<SSL_CTX>& context, const RelayLimits& limits, absl::Duration now);
  ~TlsRelay();
  TlsRelay(const TlsRelay&) = delete;
  TlsRelay& operator=(const TlsRelay&) = delete;

  int client() const { return client_; }
  // -1 before it is connected.
  int server() const { return server_; }
  // What to poll for, on each.
  short client_events() const;
  short server_events() const;
  // When it is to be moved even without an event.
  absl::Duration deadline() const;
  // From when on it may be cut off where others wait: infinite once the head of a request has come.
  absl::Duration crowded_deadline() const;
  // Whether it is to be moved again at once: others come in between.
  bool ready() const { return moved_; }

  // Does what can be done now. False when it is over: destroy it.
  bool Advance(absl::Duration now, ConnectFunction connect);

 private:
  enum class Phase { kHandshake, kOpen, kClosing };

  bool Handshake(absl::Duration now);
  // Each moves what can be moved now; false ends the connection.
  bool ReadClient();
  bool HasHead();
  bool WriteServer();
  bool ReadServer(absl::Duration now);
  bool WriteClient();
  void BeginClose(absl::Duration now);
  bool Discard();

  const int client_;
  const RelayLimits limits_;
  const bool clear_;
  SSL* const ssl_;  // null in the clear
  int server_ = -1;
  Phase phase_ = Phase::kHandshake;
  bool wants_write_ = false;   // TLS itself has something to send
  bool client_ended_ = false;  // it sends no more
  bool server_told_ = false;   // that the client sends no more
  bool server_ended_ = false;  // it sends no more
  bool moved_ = false;         // anything, in the last round of Advance
  std::string request_;        // read from the client, not written yet
  size_t searched_ = 0;        // bytes of request_ in which no head ends
  std::string answer_;         // read from the server
  size_t answered_ = 0;        // bytes of answer_ that were written
  const absl::Duration start_;
  absl::Duration deadline_;       // of the phase; infinite where it has none
  absl::Duration read_deadline_;  // of answer_
};

}  // namespace atl::http
