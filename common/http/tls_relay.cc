#include "common/http/tls_relay.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>

#include "common/http/tls_folder.h"
#include "openssl/err.h"
#include "openssl/ssl.h"

namespace atl::http {
namespace {

constexpr std::string_view kNotTls =
    "HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nContent-Length: 43\r\nConnection: close\r\n\r\n"
    "this port speaks TLS: use https, not http.\n";

// Of pieces that move one after the other before other connections have their turn.
constexpr int kRounds = 8;

bool WouldBlock() {
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

}  // namespace

TlsRelay::TlsRelay(int client, const std::shared_ptr<SSL_CTX>& context, const RelayLimits& limits, absl::Duration now)
    : client_(client),
      limits_(limits),
      clear_(context == nullptr),
      ssl_(clear_ ? nullptr : SSL_new(context.get())),
      start_(now),
      deadline_(now + limits.max_start_time),
      read_deadline_(absl::InfiniteDuration()) {
  if (clear_) phase_ = Phase::kOpen;
  if (ssl_ == nullptr) return;
  SSL_set_fd(ssl_, client_);
  SSL_set_accept_state(ssl_);
}

TlsRelay::~TlsRelay() {
  SSL_free(ssl_);
  if (server_ >= 0) close(server_);
  close(client_);
}

short TlsRelay::client_events() const {
  short events = 0;
  if (phase_ != Phase::kOpen || (!client_ended_ && request_.size() < kPieceBytes)) events |= POLLIN;
  if (wants_write_ || !answer_.empty()) events |= POLLOUT;
  return events;
}

short TlsRelay::server_events() const {
  if (phase_ != Phase::kOpen) return 0;
  short events = 0;
  if (answer_.empty() && !server_ended_) events |= POLLIN;
  if (!request_.empty()) events |= POLLOUT;
  return events;
}

absl::Duration TlsRelay::deadline() const {
  return std::min(deadline_, read_deadline_);
}

absl::Duration TlsRelay::crowded_deadline() const {
  return server_ >= 0 || phase_ == Phase::kClosing ? absl::InfiniteDuration() : start_ + limits_.max_crowded_start_time;
}

bool TlsRelay::Advance(absl::Duration now, ConnectFunction connect) {
  if ((ssl_ == nullptr && !clear_) || now >= deadline()) return false;
  if (phase_ == Phase::kHandshake && !Handshake(now)) return false;
  if (phase_ == Phase::kHandshake) return true;
  if (phase_ == Phase::kClosing) return Discard();
  for (int round = 0; round == 0 || (moved_ && round < kRounds); ++round) {
    moved_ = false;
    if (!ReadClient()) return false;
    if (server_ < 0) {
      if (client_ended_ && request_.empty()) return false;
      if (!client_ended_ && !HasHead()) {
        moved_ = false;
        return true;
      }
      X509* const certificate = clear_ ? nullptr : SSL_get0_peer_certificate(ssl_);
      if ((server_ = connect(NamesOf(certificate))) < 0) return false;
      deadline_ = now + limits_.max_answer_time;
    }
    if (!WriteServer() || !ReadServer(now) || !WriteClient()) return false;
  }
  if (!server_ended_ || !answer_.empty()) return true;
  if (!clear_) {
    ERR_clear_error();
    SSL_shutdown(ssl_);
  }
  BeginClose(now);
  return true;
}

bool TlsRelay::Handshake(absl::Duration now) {
  ERR_clear_error();
  wants_write_ = false;
  const int done = SSL_accept(ssl_);
  if (done == 1) {
    phase_ = Phase::kOpen;
    return true;
  }
  const int error = SSL_get_error(ssl_, done);
  wants_write_ = error == SSL_ERROR_WANT_WRITE;
  if (wants_write_ || error == SSL_ERROR_WANT_READ) return true;
  if (ERR_GET_REASON(ERR_peek_last_error()) == SSL_R_HTTP_REQUEST) {
    // As much of it as the socket takes: it has room for it, nothing was sent yet.
    [[maybe_unused]] const ssize_t sent = send(client_, kNotTls.data(), kNotTls.size(), MSG_NOSIGNAL);
    BeginClose(now);
    return true;
  }
  return false;
}

bool TlsRelay::ReadClient() {
  std::array<char, 16 << 10> piece;
  wants_write_ = false;
  while (!client_ended_ && request_.size() < kPieceBytes) {
    if (clear_) {
      const ssize_t read = recv(client_, piece.data(), piece.size(), 0);
      if (read < 0) return WouldBlock();
      request_.append(piece.data(), read);
      client_ended_ = read == 0;
      moved_ = true;
      continue;
    }
    ERR_clear_error();
    const int read = SSL_read(ssl_, piece.data(), static_cast<int>(piece.size()));
    if (read > 0) {
      request_.append(piece.data(), read);
      moved_ = true;
      continue;
    }
    const int error = SSL_get_error(ssl_, read);
    if (error == SSL_ERROR_ZERO_RETURN) {
      client_ended_ = moved_ = true;
      return true;
    }
    // Without the end that TLS has for it, nobody knows whether all of the request came.
    wants_write_ = error == SSL_ERROR_WANT_WRITE;
    return wants_write_ || error == SSL_ERROR_WANT_READ;
  }
  return true;
}

bool TlsRelay::HasHead() {
  if (request_.size() >= kPieceBytes) return true;
  // No more than the server behind takes for an end: it would wait for the rest, one thread for each. What comes before
  // the first line is nothing yet.
  const size_t first = request_.find_first_not_of(" \t\v\f\r\n");
  if (first == std::string::npos) return false;
  for (searched_ = std::max(searched_, first); searched_ < request_.size(); ++searched_) {
    const std::string_view head = std::string_view(request_).substr(first, searched_ + 1 - first);
    if (head.ends_with("\r\n\r\n") || head.ends_with("\n\n")) return true;
  }
  return false;
}

bool TlsRelay::WriteServer() {
  while (!request_.empty()) {
    const ssize_t sent = send(server_, request_.data(), request_.size(), MSG_NOSIGNAL);
    if (sent < 0) {
      if (WouldBlock()) return true;
      // It may have answered before it stopped reading.
      request_.clear();
      client_ended_ = true;
      return true;
    }
    request_.erase(0, sent);
    moved_ = true;
  }
  if (client_ended_ && !server_told_) {
    server_told_ = true;
    shutdown(server_, SHUT_WR);
  }
  return true;
}

bool TlsRelay::ReadServer(absl::Duration now) {
  if (!answer_.empty() || server_ended_) return true;
  answer_.resize(kPieceBytes);
  const ssize_t read = recv(server_, answer_.data(), answer_.size(), 0);
  answer_.resize(std::max<ssize_t>(read, 0));
  if (read < 0) return WouldBlock();
  moved_ = true;
  if (read == 0) {
    server_ended_ = true;
  } else {
    read_deadline_ = now + limits_.max_unread_time;
  }
  return true;
}

bool TlsRelay::WriteClient() {
  while (answered_ < answer_.size()) {
    if (clear_) {
      const ssize_t sent = send(client_, answer_.data() + answered_, answer_.size() - answered_, MSG_NOSIGNAL);
      if (sent < 0) return WouldBlock();
      answered_ += sent;
      moved_ = true;
      continue;
    }
    ERR_clear_error();
    const int sent = SSL_write(ssl_, answer_.data() + answered_, static_cast<int>(answer_.size() - answered_));
    if (sent <= 0) {
      const int error = SSL_get_error(ssl_, sent);
      return error == SSL_ERROR_WANT_WRITE || error == SSL_ERROR_WANT_READ;
    }
    answered_ += sent;
    moved_ = true;
  }
  answer_.clear();
  answered_ = 0;
  read_deadline_ = absl::InfiniteDuration();
  return true;
}

void TlsRelay::BeginClose(absl::Duration now) {
  shutdown(client_, SHUT_WR);
  wants_write_ = moved_ = false;
  phase_ = Phase::kClosing;
  deadline_ = now + limits_.max_close_time;
}

// Closing a socket with unread bytes would take back what was sent last. What goes on coming has its turn again: else
// one client that sends without end would keep the thread until it stops.
bool TlsRelay::Discard() {
  std::array<char, 16 << 10> piece;
  for (int round = 0; round < kRounds; ++round) {
    const ssize_t read = recv(client_, piece.data(), piece.size(), 0);
    if (read <= 0) return read < 0 && WouldBlock();
  }
  return true;
}

}  // namespace atl::http
