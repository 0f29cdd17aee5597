#include "common/storage/conditional_put.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "absl/random/random.h"
#include "absl/strings/ascii.h"
#include "absl/time/clock.h"
#include "arrow/filesystem/gcsfs.h"
#include "arrow/filesystem/s3fs.h"
#include "common/base/errors.h"
#include "common/base/status_macros.h"
#include "common/storage/arrow_status.h"
#include "common/storage/google_token.h"
#include "common/storage/local_files.h"
#include "common/storage/remote_files.h"
#include "common/storage/sha256.h"
#include "fmt/format.h"

namespace atl::storage {
namespace {

// After "x-amz-" or "x-goog-".
constexpr char kWriterHeader[] = "meta-atoll-writer";

// Encodes a path as S3 requires it in signatures: everything but letters, digits and -._~, slashes kept.
std::string Encoded(std::string_view path) {
  std::string encoded;
  for (const char c : path) {
    const auto byte = static_cast<unsigned char>(c);
    if (absl::ascii_isalnum(byte) || c == '-' || c == '.' || c == '_' || c == '~' || c == '/') {
      encoded.push_back(c);
    } else {
      encoded += fmt::format("%{:02X}", byte);
    }
  }
  return encoded;
}

std::string UrlOf(const arrow::fs::S3FileSystem& filesystem, const std::string& path) {
  const arrow::fs::S3Options options = filesystem.options();
  const bool own_endpoint = !options.endpoint_override.empty();
  const std::string host =
      own_endpoint ? options.endpoint_override : fmt::format("s3.{}.amazonaws.com", filesystem.region());
  const size_t slash = path.find('/');
  // A name with a dot in it does not fit the certificate of the host that it would make.
  const bool virtual_host =
      options.force_virtual_addressing || (!own_endpoint && path.substr(0, slash).find('.') == std::string::npos);
  if (virtual_host) {
    return fmt::format("{}://{}.{}/{}", options.scheme, path.substr(0, slash), host, Encoded(path.substr(slash + 1)));
  }
  return fmt::format("{}://{}/{}", options.scheme, host, Encoded(path));
}

size_t TakeHeader(char* data, size_t size, size_t count, void* out) {
  std::string line(data, size * count);
  if (const size_t colon = line.find(':'); colon != std::string::npos) {
    std::string name = line.substr(0, colon);
    absl::AsciiStrToLower(&name);
    line.erase(0, colon + 1);
    absl::StripAsciiWhitespace(&line);
    if (name.ends_with(kWriterHeader)) *static_cast<std::string*>(out) = line;
  }
  return size * count;
}

// The text between <name> and </name>, or "".
std::string ElementOf(std::string_view xml, std::string_view name) {
  const std::string open = fmt::format("<{}>", name);
  const size_t start = xml.find(open);
  const size_t end = xml.find(fmt::format("</{}>", name));
  if (start == std::string_view::npos || end == std::string_view::npos || end < start) return "";
  return std::string(xml.substr(start + open.size(), end - start - open.size()));
}

void SetTransport(CURL* curl, const arrow::fs::S3Options& s3) {
  if (!s3.proxy_options.host.empty()) {
    curl_easy_setopt(curl, CURLOPT_PROXY, s3.proxy_options.host.c_str());
    curl_easy_setopt(curl, CURLOPT_PROXYPORT, static_cast<int64_t>(s3.proxy_options.port));
  }
  if (!s3.tls_ca_file_path.empty()) curl_easy_setopt(curl, CURLOPT_CAINFO, s3.tls_ca_file_path.c_str());
  if (!s3.tls_ca_dir_path.empty()) curl_easy_setopt(curl, CURLOPT_CAPATH, s3.tls_ca_dir_path.c_str());
  if (!s3.tls_verify_certificates) {
    curl_easy_setopt(curl, CURLOPT_SSL_VERIFYPEER, 0L);
    curl_easy_setopt(curl, CURLOPT_SSL_VERIFYHOST, 0L);
  }
}

}  // namespace

std::unique_ptr<ConditionalPut> ConditionalPut::Over(const std::shared_ptr<arrow::fs::FileSystem>& filesystem,
                                                     const RemoteOptions& options) {
  auto s3 = std::dynamic_pointer_cast<arrow::fs::S3FileSystem>(filesystem);
  auto gcs = std::dynamic_pointer_cast<arrow::fs::GcsFileSystem>(filesystem);
  if (s3 == nullptr && gcs == nullptr) return nullptr;
  return std::unique_ptr<ConditionalPut>(new ConditionalPut(std::move(s3), std::move(gcs), options));
}

ConditionalPut::ConditionalPut(std::shared_ptr<arrow::fs::S3FileSystem> s3,
                               std::shared_ptr<arrow::fs::GcsFileSystem> gcs, const RemoteOptions& options)
    : s3_(std::move(s3)), gcs_(std::move(gcs)), options_(options) {}

absl::StatusOr<std::string> ConditionalPut::Prepare(const std::string& path, std::string_view body, CURL* curl,
                                                    Headers* headers) const {
  if (s3_ != nullptr) {
    const arrow::fs::S3Options s3 = s3_->options();
    SetTransport(curl, s3);
    const std::string sign = fmt::format("aws:amz:{}:s3", s3_->region());
    // Read at every call, because the keys of a role are replaced from time to time.
    const std::string keys = fmt::format("{}:{}", s3.GetAccessKey(), s3.GetSecretKey());
    curl_easy_setopt(curl, CURLOPT_AWS_SIGV4, sign.c_str());
    curl_easy_setopt(curl, CURLOPT_USERPWD, keys.c_str());
    AddHeader(headers, fmt::format("x-amz-content-sha256: {}", Sha256(body)));
    if (const std::string token = s3.GetSessionToken(); !token.empty()) {
      AddHeader(headers, fmt::format("x-amz-security-token: {}", token));
    }
    return UrlOf(*s3_, path);
  }
  const arrow::fs::GcsOptions& gcs = gcs_->options();
  if (!gcs.credentials.anonymous()) {
    ATOLL_ASSIGN_OR_RETURN(const std::string token, GoogleToken(options_));
    AddHeader(headers, fmt::format("Authorization: Bearer {}", token));
  }
  return fmt::format("{}://{}/{}", gcs.scheme.empty() ? "https" : gcs.scheme,
                     gcs.endpoint_override.empty() ? "storage.googleapis.com" : gcs.endpoint_override, Encoded(path));
}

ConditionalPut::Answer ConditionalPut::Call(const std::string& method, const std::string& path, std::string_view body,
                                            const std::string& writer) {
  Answer answer;
  const Curl curl = NewCurl(options_);
  Headers headers;
  const absl::StatusOr<std::string> url = Prepare(path, body, curl.get(), &headers);
  if (!url.ok()) {
    answer.detail = std::string(url.status().message());
    return answer;
  }
  if (method == "HEAD") {
    curl_easy_setopt(curl.get(), CURLOPT_NOBODY, 1L);
  } else {
    AddHeader(&headers, s3_ != nullptr ? "If-None-Match: *" : "x-goog-if-generation-match: 0");
    AddHeader(&headers, fmt::format("{}{}: {}", s3_ != nullptr ? "x-amz-" : "x-goog-", kWriterHeader, writer));
    AddHeader(&headers, "Content-Type: application/octet-stream");
    AddHeader(&headers, "Expect:");
    curl_easy_setopt(curl.get(), CURLOPT_CUSTOMREQUEST, method.c_str());
    curl_easy_setopt(curl.get(), CURLOPT_POSTFIELDSIZE_LARGE, static_cast<curl_off_t>(body.size()));
    curl_easy_setopt(curl.get(), CURLOPT_POSTFIELDS, body.data());
  }
  curl_easy_setopt(curl.get(), CURLOPT_HEADERFUNCTION, TakeHeader);
  curl_easy_setopt(curl.get(), CURLOPT_HEADERDATA, &answer.writer);
  const HttpAnswer http = Perform(curl.get(), *url, headers);
  answer.http_status = http.status;
  answer.code = ElementOf(http.body, "Code");
  answer.detail = http.status == 0 ? http.body : ElementOf(http.body, "Message");
  return answer;
}

ConditionalPut::Answer ConditionalPut::CallPatiently(const std::string& method, const std::string& path,
                                                     std::string_view body, const std::string& writer,
                                                     bool* ambiguous) {
  absl::BitGen random;
  for (int64_t failures = 1;; ++failures) {
    Answer answer = Call(method, path, body, writer);
    const int status = answer.http_status;
    // 409: another conditional write of the object is under way, and may fail yet.
    const bool passing = status == 0 || status == 409 || status == 429 || (status >= 500 && status != 501);
    if (!passing) return answer;
    if (status != 409 && status != 429) *ambiguous = true;
    const std::optional<absl::Duration> delay =
        RetryDelay(options_, status == 0, failures, absl::Uniform(random, 0.0, 1.0));
    if (!delay.has_value()) return answer;
    absl::SleepFor(*delay);
  }
}

absl::StatusOr<bool> ConditionalPut::PutIfAbsent(const std::string& path, std::string_view bytes,
                                                 std::string_view what) {
  const std::string writer = RandomSuffix();
  bool ambiguous = false;
  const Answer put = CallPatiently("PUT", path, bytes, writer, &ambiguous);
  if (put.http_status / 100 == 2) return true;
  if (put.http_status == 412 && !ambiguous) return false;
  if (put.http_status == 412) {
    const Answer head = CallPatiently("HEAD", path, "", "", &ambiguous);
    if (head.http_status / 100 == 2) return head.writer == writer;
    return FromS3(head.code, head.http_status, what, head.detail);
  }
  return FromS3(put.code, put.http_status, what, put.detail);
}

absl::StatusOr<bool> ConditionalPut::Probe(const std::string& path, std::string_view what) {
  bool ambiguous = false;
  // A server that does not know the condition writes both times, or refuses the header.
  for (int i = 0; i < 2; ++i) {
    const Answer put = CallPatiently("PUT", path, "probe", "probe", &ambiguous);
    if (put.http_status == 412) return true;
    if (put.http_status == 400 || put.http_status == 501) return false;
    if (put.http_status / 100 != 2) return FromS3(put.code, put.http_status, what, put.detail);
  }
  return false;
}

}  // namespace atl::storage
