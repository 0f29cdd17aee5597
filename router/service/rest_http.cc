#include "router/service/rest_http.h"

#include <algorithm>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "civetweb.h"
#include "common/base/errors.h"
#include "fmt/format.h"
#include "router/policy/admission.h"
#include "router/service/rest_wire.h"

namespace atl::router {
namespace {

std::string_view ReasonPhrase(int code) {
  switch (code) {
    case 200:
      return "OK";
    case 401:
      return "Unauthorized";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 413:
      return "Content Too Large";
    case 415:
      return "Unsupported Media Type";
    case 429:
      return "Too Many Requests";
    case 431:
      return "Request Header Fields Too Large";
    case 501:
      return "Not Implemented";
    case 503:
      return "Service Unavailable";
    case 504:
      return "Gateway Timeout";
    default:
      return code < 500 ? "Bad Request" : "Internal Server Error";
  }
}

Reply Malformed(std::string_view what) {
  return ErrorReply(400, "REQUEST_MALFORMED", what);
}

}  // namespace

Reply ErrorReply(const absl::Status& status) {
  Reply reply{.code = HttpCode(status.code()), .body = ErrorBody(status)};
  const absl::Duration delay = RetryDelayOf(status);
  if (delay > absl::ZeroDuration()) {
    const int64_t seconds = absl::ToInt64Seconds(absl::Ceil(delay, absl::Seconds(1)));
    reply.extra_header = fmt::format("Retry-After: {}\r\n", seconds);
  }
  if (reply.code == 401) reply.extra_header = "WWW-Authenticate: Bearer\r\n";
  return reply;
}

Reply ErrorReply(int code, std::string_view reason, std::string_view message) {
  const absl::StatusCode kind = code == 404   ? absl::StatusCode::kNotFound
                                : code == 429 ? absl::StatusCode::kResourceExhausted
                                              : absl::StatusCode::kInvalidArgument;
  Reply reply = ErrorReply(MakeError(kind, reason, message));
  reply.code = code;
  return reply;
}

std::optional<Reply> RefuseHead(const mg_request_info& request) {
  // CivetWeb drops what is beyond.
  if (request.num_headers >= MG_MAX_HEADERS) {
    return ErrorReply(431, "HEAD_TOO_LARGE", fmt::format("expected fewer than {} fields in the head", MG_MAX_HEADERS));
  }
  int lengths = 0;
  int encodings = 0;
  for (int i = 0; i < request.num_headers; ++i) {
    const auto& [name, text] = request.http_headers[i];
    const std::string_view value = text;
    if (absl::EqualsIgnoreCase(name, "Content-Length")) {
      ++lengths;
      const bool plain = !value.empty() && value.find_first_not_of("0123456789") == std::string_view::npos;
      if (!plain) return Malformed("Content-Length: expected a plain number, found another text");
    }
    if (absl::EqualsIgnoreCase(name, "Transfer-Encoding")) {
      ++encodings;
      if (!absl::EqualsIgnoreCase(text, "chunked")) return Malformed("Transfer-Encoding: expected chunked");
    }
  }
  if (lengths + encodings > 1) {
    return Malformed("expected one Content-Length or one Transfer-Encoding, found several");
  }
  if (encodings > 0 && std::string_view(request.http_version) != "1.1") {
    return Malformed("Transfer-Encoding: expected none before HTTP/1.1");
  }
  return std::nullopt;
}

bool AllowsKeepAlive(const mg_request_info& request) {
  bool keep = std::string_view(request.http_version) == "1.1";
  for (int i = 0; i < request.num_headers; ++i) {
    const auto& [name, value] = request.http_headers[i];
    // CivetWeb does not read on to the end of the chunks.
    if (absl::EqualsIgnoreCase(name, "Transfer-Encoding")) return false;
    if (!absl::EqualsIgnoreCase(name, "Connection")) continue;
    keep = false;
    for (const absl::string_view option : absl::StrSplit(value, ',')) {
      keep |= absl::EqualsIgnoreCase(absl::StripAsciiWhitespace(option), "keep-alive");
    }
  }
  return keep;
}

Reply UnreadableReply(int code, std::string_view why) {
  // CivetWeb checks the length before anybody else can.
  if (code == 411) return Malformed("Content-Length: expected a plain number, found another text");
  return ErrorReply(
      code, "REQUEST_MALFORMED",
      fmt::format("expected an HTTP/1.1 request with a head of at most {} bytes, found something else: {}",
                  kMaxHeadBytes, why));
}

bool AnswerWriter::Write(const Reply& reply, bool head_only) {
  const std::string head = fmt::format(
      "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n{}Connection: {}\r\n\r\n",
      reply.code, ReasonPhrase(reply.code), reply.type, reply.body.size(), reply.extra_header,
      keep_alive_ ? "keep-alive" : "close");
  return WriteAll(head_only ? head : head + reply.body);
}

bool AnswerWriter::BeginStream(std::string_view type, bool chunked) {
  chunked_ = chunked;
  return WriteAll(
      fmt::format("HTTP/1.1 200 OK\r\nContent-Type: {}\r\n{}Cache-Control: no-store\r\nConnection: {}\r\n\r\n", type,
                  chunked ? "Transfer-Encoding: chunked\r\n" : "", keep_alive_ ? "keep-alive" : "close"));
}

bool AnswerWriter::WritePiece(std::string_view piece) {
  if (!chunked_ || piece.empty()) return WriteAll(piece);
  return WriteAll(fmt::format("{:x}\r\n{}\r\n", piece.size(), piece));
}

bool AnswerWriter::EndStream() {
  return !chunked_ || WriteAll("0\r\n\r\n");
}

bool AnswerWriter::WriteAll(std::string_view bytes) {
  // Small pieces: CivetWeb waits for each of them as long as any of its bytes are taken.
  constexpr size_t kPiece = 4096;
  const absl::Duration end = clock_->Monotonic() + max_transfer_time_;
  while (!bytes.empty()) {
    const std::string_view piece = bytes.substr(0, kPiece);
    if (clock_->Monotonic() > end || mg_write(connection_, piece.data(), piece.size()) <= 0) return false;
    bytes.remove_prefix(piece.size());
  }
  return true;
}

}  // namespace atl::router
