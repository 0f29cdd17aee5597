// Calls libcurl with the timeouts of RemoteOptions.
#pragma once

#include <curl/curl.h>

#include <string>

#include "common/base/handles.h"
#include "common/storage/blob_store.h"

namespace atl::storage {

using Curl = Handle<CURL, curl_easy_cleanup>;
using Headers = Handle<curl_slist, curl_slist_free_all>;

Curl NewCurl(const RemoteOptions& options);
void AddHeader(Headers* headers, const std::string& line);

struct HttpAnswer {
  int status = 0;    // 0: the connection failed or broke
  std::string body;  // its first 64 KiB; without a status, the reason
};
// Blocks.
HttpAnswer Perform(CURL* curl, const std::string& url, const Headers& headers);

}  // namespace atl::storage
