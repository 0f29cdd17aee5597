#include "common/storage/curl.h"

#include <algorithm>
#include <cstdint>
#include <cstdlib>

namespace atl::storage {
namespace {

constexpr size_t kMaxAnswer = 64 << 10;

size_t TakeBody(char* data, size_t size, size_t count, void* out) {
  auto& body = *static_cast<std::string*>(out);
  body.append(data, std::min(size * count, kMaxAnswer - std::min(kMaxAnswer, body.size())));
  return size * count;
}

}  // namespace

Curl NewCurl(const RemoteOptions& options) {
  static const bool started = curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK;
  Curl curl(started ? curl_easy_init() : nullptr);
  if (curl == nullptr) std::abort();  // without memory
  curl_easy_setopt(curl.get(), CURLOPT_NOSIGNAL, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_CONNECTTIMEOUT_MS, absl::ToInt64Milliseconds(options.connect_timeout));
  curl_easy_setopt(curl.get(), CURLOPT_LOW_SPEED_LIMIT, 1L);
  curl_easy_setopt(curl.get(), CURLOPT_LOW_SPEED_TIME,
                   std::max<int64_t>(1, absl::ToInt64Seconds(options.stall_timeout)));
  return curl;
}

void AddHeader(Headers* headers, const std::string& line) {
  headers->reset(curl_slist_append(headers->release(), line.c_str()));
}

HttpAnswer Perform(CURL* curl, const std::string& url, const Headers& headers) {
  HttpAnswer answer;
  curl_easy_setopt(curl, CURLOPT_URL, url.c_str());
  curl_easy_setopt(curl, CURLOPT_HTTPHEADER, headers.get());
  curl_easy_setopt(curl, CURLOPT_WRITEFUNCTION, TakeBody);
  curl_easy_setopt(curl, CURLOPT_WRITEDATA, &answer.body);
  const CURLcode result = curl_easy_perform(curl);
  if (result != CURLE_OK) return {.status = 0, .body = curl_easy_strerror(result)};
  int64_t status = 0;
  curl_easy_getinfo(curl, CURLINFO_RESPONSE_CODE, &status);
  answer.status = static_cast<int>(status);
  return answer;
}

}  // namespace atl::storage
