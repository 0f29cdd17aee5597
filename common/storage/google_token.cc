#include "common/storage/google_token.h"

#include <openssl/evp.h>
#include <openssl/pem.h>

#include <cstdlib>
#include <fstream>
#include <iterator>

#include "absl/strings/escaping.h"
#include "absl/time/clock.h"
#include "common/base/errors.h"
#include "common/base/handles.h"
#include "common/base/status_macros.h"
#include "common/storage/curl.h"
#include "fmt/format.h"
#include "nlohmann/json.hpp"

namespace atl::storage {
namespace {

using Json = nlohmann::json;

constexpr char kScope[] = "https://www.googleapis.com/auth/devstorage.read_write";

absl::Status BadFile(const std::string& path, std::string_view what) {
  return MakeError(
      absl::StatusCode::kFailedPrecondition, "GOOGLE_CREDENTIALS",
      fmt::format("{} (GOOGLE_APPLICATION_CREDENTIALS): expected the key file of a service account, {}", path, what));
}

// RSA with SHA-256; empty where `pem` is no private key.
std::string Sign(const std::string& pem, const std::string& text) {
  const Handle<BIO, BIO_free> bytes(BIO_new_mem_buf(pem.data(), static_cast<int>(pem.size())));
  const Handle<EVP_PKEY, EVP_PKEY_free> key(PEM_read_bio_PrivateKey(bytes.get(), nullptr, nullptr, nullptr));
  const Handle<EVP_MD_CTX, EVP_MD_CTX_free> context(EVP_MD_CTX_new());
  if (key == nullptr || EVP_DigestSignInit(context.get(), nullptr, EVP_sha256(), nullptr, key.get()) != 1) return "";
  std::string signature(static_cast<size_t>(EVP_PKEY_size(key.get())), '\0');
  size_t size = signature.size();
  const bool made = EVP_DigestSign(context.get(), reinterpret_cast<unsigned char*>(signature.data()), &size,
                                   reinterpret_cast<const unsigned char*>(text.data()), text.size()) == 1;
  signature.resize(made ? size : 0);
  return signature;
}

absl::StatusOr<std::string> TokenIn(const HttpAnswer& answer, const std::string& url) {
  const Json json = Json::parse(answer.body, nullptr, /*allow_exceptions=*/false);
  if (answer.status == 200 && json.is_object() && json.contains("access_token") && json["access_token"].is_string()) {
    return json["access_token"].get<std::string>();
  }
  return MakeError(absl::StatusCode::kUnavailable, "STORE_UNAVAILABLE",
                   fmt::format("no access token from {}: {}", url,
                               answer.status == 0 ? answer.body : fmt::format("HTTP status {}", answer.status)));
}

// Gets a token by a signed request (RFC 7523).
absl::StatusOr<std::string> TokenOfFile(const std::string& path, const RemoteOptions& options) {
  std::ifstream file(path, std::ios::binary);
  const Json key = Json::parse(std::string(std::istreambuf_iterator<char>(file), {}), nullptr, false);
  const auto field = [&](const char* name) {
    return key.is_object() && key.contains(name) && key[name].is_string() ? key[name].get<std::string>() : "";
  };
  if (field("type") != "service_account") return BadFile(path, fmt::format("found type '{}'", field("type")));
  const int64_t now = absl::ToUnixSeconds(absl::Now());
  const std::string url = field("token_uri");
  const std::string claims =
      Json({{"iss", field("client_email")}, {"scope", kScope}, {"aud", url}, {"iat", now}, {"exp", now + 600}}).dump();
  const std::string text =
      absl::WebSafeBase64Escape(R"({"alg":"RS256","typ":"JWT"})") + "." + absl::WebSafeBase64Escape(claims);
  const std::string signature = Sign(field("private_key"), text);
  if (url.empty() || signature.empty()) return BadFile(path, "found none in its token_uri and private_key");
  const std::string form =
      fmt::format("grant_type=urn%3Aietf%3Aparams%3Aoauth%3Agrant-type%3Ajwt-bearer&assertion={}.{}", text,
                  absl::WebSafeBase64Escape(signature));
  const Curl curl = NewCurl(options);
  curl_easy_setopt(curl.get(), CURLOPT_POSTFIELDS, form.c_str());
  return TokenIn(Perform(curl.get(), url, Headers()), url);
}

}  // namespace

absl::StatusOr<std::string> GoogleToken(const RemoteOptions& options) {
  if (const char* path = std::getenv("GOOGLE_APPLICATION_CREDENTIALS"); path != nullptr && *path != '\0') {
    return TokenOfFile(path, options);
  }
  const char* host = std::getenv("GCE_METADATA_HOST");
  const std::string url = fmt::format("http://{}/computeMetadata/v1/instance/service-accounts/default/token",
                                      host == nullptr || *host == '\0' ? "metadata.google.internal" : host);
  const Curl curl = NewCurl(options);
  Headers headers;
  AddHeader(&headers, "Metadata-Flavor: Google");
  return TokenIn(Perform(curl.get(), url, headers), url);
}

}  // namespace atl::storage
