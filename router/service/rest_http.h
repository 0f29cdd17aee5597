// What CivetWeb leaves to its users of HTTP: heads that must not be understood in two ways, connections that are kept,
// and answers that are written in time.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/time/time.h"
#include "common/base/clock.h"

struct mg_connection;
struct mg_request_info;

namespace atl::router {

// Of a request; CivetWeb reads no more.
inline constexpr int kMaxHeadBytes = 16'384;

struct Reply {
  int code = 200;
  std::string body;
  const char* type = "application/json";
  std::string extra_header;  // with its line end
};

// In OpenAI's form, with Retry-After where the error has a delay.
Reply ErrorReply(const absl::Status& status);
Reply ErrorReply(int code, std::string_view reason, std::string_view message);

// Why a request is not served: its head must say in one way alone where the body ends: programs that disagree on it
// would take part of a body for a request of its own. 400 (REQUEST_MALFORMED) for several lengths, one that is no plain
// number, one beside a transfer encoding, and an encoding that is not "chunked"; 431 (HEAD_TOO_LARGE) for more fields
// than are read.
std::optional<Reply> RefuseHead(const mg_request_info& request);

// Of what CivetWeb itself could not read, and says `why` not.
Reply UnreadableReply(int code, std::string_view why);

// Whether the caller would send another request on its connection, and what is read of this one ends it surely.
bool AllowsKeepAlive(const mg_request_info& request);

// Writes one answer. Not thread-safe; of a thread that serves the connection.
class AnswerWriter {
 public:
  // `connection` and `clock` must outlive it. A connection that is not kept must have been told so
  // (mg_disable_connection_keep_alive).
  AnswerWriter(mg_connection* connection, Clock* clock, absl::Duration max_transfer_time, bool keep_alive)
      : connection_(connection), clock_(clock), max_transfer_time_(max_transfer_time), keep_alive_(keep_alive) {}

  // The whole answer, or to a HEAD the head of it. False when the caller did not take it in time, or is gone: the
  // connection is of no use then.
  bool Write(const Reply& reply, bool head_only = false);

  // An answer whose length is not known: its head, its pieces, its end. HTTP/1.0 knows no chunks: there the end of the
  // connection is the end of the answer.
  bool BeginStream(std::string_view type, bool chunked);
  bool WritePiece(std::string_view piece);
  bool EndStream();

 private:
  bool WriteAll(std::string_view bytes);

  mg_connection* const connection_;
  Clock* const clock_;
  const absl::Duration max_transfer_time_;
  const bool keep_alive_;
  bool chunked_ = false;
};

}  // namespace atl::router
