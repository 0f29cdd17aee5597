#include "worker/process/preemption.h"

#include <curl/curl.h>

#include <mutex>
#include <utility>

#include <fmt/format.h>
#include <spdlog/spdlog.h>

#include "common/base/errors.h"
#include "common/base/handles.h"
#include "common/base/status_macros.h"

namespace atl::worker {
namespace {

constexpr size_t kLargestAnswer = 64 << 10;

size_t TakeBody(char* data, size_t size, size_t count, void* answer) {
  std::string& body = static_cast<MetadataAnswer*>(answer)->body;
  // Fewer bytes taken than given end the transfer with an error.
  if (body.size() + size * count > kLargestAnswer) return 0;
  body.append(data, size * count);
  return size * count;
}

absl::Status Unanswered(const std::string& url, const std::string& why) {
  return MakeError(absl::StatusCode::kUnavailable, "METADATA_UNAVAILABLE",
                   fmt::format("{}: expected a cloud's metadata server, found none: {}", url, why));
}

}  // namespace

std::optional<Cloud> CloudNamed(std::string_view name) {
  for (const Cloud cloud : {Cloud::kAws, Cloud::kGcp, Cloud::kAzure}) {
    if (name == ToString(cloud)) return cloud;
  }
  return std::nullopt;
}

AskMetadata AskOverHttp(const std::string& url, absl::Duration timeout) {
  static std::once_flag once;
  std::call_once(once, [] { curl_global_init(CURL_GLOBAL_DEFAULT); });
  return [url, timeout](const MetadataRequest& request) -> absl::StatusOr<MetadataAnswer> {
    const Handle<CURL, curl_easy_cleanup> curl(curl_easy_init());
    if (curl == nullptr) return Unanswered(url, "out of memory");
    Handle<curl_slist, curl_slist_free_all> headers;
    for (const std::string& header : request.headers) {
      headers.reset(curl_slist_append(headers.release(), header.c_str()));
    }
    MetadataAnswer answer;
    const auto timeout_ms = static_cast<long>(absl::ToInt64Milliseconds(timeout));  // NOLINT(google-runtime-int)
    const std::string whole = url + request.path;
    curl_easy_setopt(curl.get(), CURLOPT_URL, whole.c_str());
    curl_easy_setopt(curl.get(), CURLOPT_CUSTOMREQUEST, request.method.c_str());
    curl_easy_setopt(curl.get(), CURLOPT_HTTPHEADER, headers.get());
    curl_easy_setopt(curl.get(), CURLOPT_PROTOCOLS_STR, "http");
    // Proxy settings are for external hosts; metadata servers reject requests through a proxy.
    curl_easy_setopt(curl.get(), CURLOPT_NOPROXY, "*");
    curl_easy_setopt(curl.get(), CURLOPT_TIMEOUT_MS, timeout_ms);
    curl_easy_setopt(curl.get(), CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(curl.get(), CURLOPT_WRITEFUNCTION, TakeBody);
    curl_easy_setopt(curl.get(), CURLOPT_WRITEDATA, &answer);
    const CURLcode code = curl_easy_perform(curl.get());
    if (code != CURLE_OK) return Unanswered(whole, curl_easy_strerror(code));
    long http = 0;  // NOLINT(google-runtime-int): curl's type
    curl_easy_getinfo(curl.get(), CURLINFO_RESPONSE_CODE, &http);
    answer.code = static_cast<int>(http);
    return answer;
  };
}

PreemptionWatch::PreemptionWatch(PreemptionOptions options, Clock* clock,
                                 std::function<void(const SpotNotice&)> noticed)
    : options_(std::move(options)),
      clock_(clock),
      noticed_(std::move(noticed)),
      ask_([this, ask = AskOverHttp(options_.metadata_url, options_.timeout)](
               const MetadataRequest& request) -> absl::StatusOr<MetadataAnswer> {
        // One turn may be several requests, each of which may time out.
        if (Closing()) return absl::CancelledError("the process ends");
        return ask(request);
      }) {
  if (options_.cloud) reader_.emplace(*options_.cloud, ask_);
  thread_ = std::thread([this] { Loop(); });
}

PreemptionWatch::~PreemptionWatch() {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
  }
  thread_.join();
}

void PreemptionWatch::Loop() {
  for (;;) {
    const absl::StatusOr<NoticeReading> reading = ReadOnce();
    if (reading.ok() && reading->notice) {
      spdlog::warn("{}", reading->notice->what);
      return noticed_(*reading->notice);
    }
    if (Closing()) return;
    Remark(reading.ok() ? reading->remark : fmt::format("no notices of a preemption: {}", reading.status().ToString()));
    absl::MutexLock lock(&mutex_);
    clock_->AwaitUntil(&mutex_, absl::Condition(&closing_), clock_->Monotonic() + options_.interval);
    if (closing_) return;
  }
}

bool PreemptionWatch::Closing() {
  absl::MutexLock lock(&mutex_);
  return closing_;
}

absl::Status PreemptionWatch::FindCloud() {
  for (const Cloud cloud : {Cloud::kAws, Cloud::kGcp, Cloud::kAzure}) {
    NoticeReader reader(cloud, ask_);
    if (!reader.Probe().ok()) continue;
    reader_ = std::move(reader);
    spdlog::info("notices of a preemption are asked of {} at {}", ToString(cloud), options_.metadata_url);
    return absl::OkStatus();
  }
  return Unanswered(options_.metadata_url, "neither AWS nor GCP nor Azure answers");
}

absl::StatusOr<NoticeReading> PreemptionWatch::ReadOnce() {
  if (!reader_) ATOLL_RETURN_IF_ERROR(FindCloud());
  return reader_->Read(clock_->Now());
}

void PreemptionWatch::Remark(const std::string& text) {
  if (text == remark_) return;
  remark_ = text;
  if (text.empty()) {
    spdlog::info("the metadata server at {} answers", options_.metadata_url);
  } else {
    spdlog::warn("{}", text);
  }
}

}  // namespace atl::worker
