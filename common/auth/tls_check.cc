#include "common/auth/tls_check.h"

#include <netdb.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <sys/socket.h>
#include <unistd.h>

#include <array>
#include <memory>
#include <vector>

#include "common/base/address.h"
#include "common/base/errors.h"
#include "common/base/handles.h"
#include "common/base/status_macros.h"
#include "fmt/format.h"

namespace atl::rpc {
namespace {

using ContextPtr = Handle<SSL_CTX, SSL_CTX_free>;
using SslPtr = Handle<SSL, SSL_free>;

std::string HostOf(const std::string& address) {
  std::string host = address.substr(0, address.rfind(':'));
  if (host.size() > 2 && host.front() == '[' && host.back() == ']') host = host.substr(1, host.size() - 2);
  return host;
}

// Returns no descriptor if the address cannot be dialled.
Descriptor Dial(const std::string& address, absl::Duration timeout) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(HostOf(address).c_str(), address.substr(address.rfind(':') + 1).c_str(), &hints, &found) != 0) {
    return {};
  }
  const timeval limit = absl::ToTimeval(timeout);
  Descriptor connected;
  for (const addrinfo* one = found; one != nullptr && connected.get() < 0; one = one->ai_next) {
    connected = Descriptor(socket(one->ai_family, one->ai_socktype | SOCK_CLOEXEC, one->ai_protocol));
    if (connected.get() < 0) continue;
    setsockopt(connected.get(), SOL_SOCKET, SO_SNDTIMEO, &limit, sizeof(limit));  // bounds connect, too
    setsockopt(connected.get(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    if (connect(connected.get(), one->ai_addr, one->ai_addrlen) == 0) break;
    connected.Close();
  }
  freeaddrinfo(found);
  return connected;
}

absl::Status Broken(std::string_view reason, const std::string& address, std::string_view message) {
  return MakeError(absl::StatusCode::kUnavailable, reason, fmt::format("{} {}", address, message));
}

// Returns OpenSSL's last error as text, and clears it.
std::string TakeError() {
  const unsigned long error = ERR_peek_last_error();
  const char* const reason = ERR_reason_error_string(error);
  ERR_clear_error();
  return reason == nullptr ? "the connection was closed" : reason;
}

// Whether the server ended the connection instead of answering. `result`: of the last call over it.
bool EndedByServer(const SSL* ssl, int result) {
  return SSL_get_error(ssl, result) == SSL_ERROR_SYSCALL ||
         ERR_GET_REASON(ERR_peek_last_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING;
}

ContextPtr MakeContext(const SecurityOptions& options) {
  ContextPtr context(SSL_CTX_new(TLS_client_method()));
  if (context == nullptr) return nullptr;
  SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
  const std::string folder = options.tls_dir + "/";
  if (!options.tls_dir.empty()) {
    SSL_CTX_use_certificate_chain_file(context.get(), (folder + "tls.crt").c_str());
    SSL_CTX_use_PrivateKey_file(context.get(), (folder + "tls.key").c_str(), SSL_FILETYPE_PEM);
  }
  const std::string authorities = options.ca.empty() ? folder + "ca.crt" : options.ca;
  if (SSL_CTX_load_verify_file(context.get(), authorities.c_str()) != 1) {
    SSL_CTX_set_default_verify_paths(context.get());
  }
  ERR_clear_error();
  return context;
}

void SetHost(SSL* ssl, const std::string& host) {
  X509_VERIFY_PARAM* const parameters = SSL_get0_param(ssl);
  if (X509_VERIFY_PARAM_set1_ip_asc(parameters, host.c_str()) == 1) return;
  ERR_clear_error();
  SSL_set1_host(ssl, host.c_str());
  SSL_set_tlsext_host_name(ssl, host.c_str());
}

}  // namespace

absl::Status ExplainConnection(const SecurityOptions& options, const std::string& address, absl::Duration timeout) {
  constexpr std::string_view kOneName = "dns:///";
  if (address.starts_with(kOneName)) return ExplainConnection(options, address.substr(kOneName.size()), timeout);
  if (const std::vector<std::string> each = SplitAddresses(address); each.size() > 1) {
    for (const std::string& one : each) ATOLL_RETURN_IF_ERROR(ExplainConnection(options, one, timeout));
    return absl::OkStatus();
  }
  const bool with_tls = !options.tls_dir.empty() || !options.ca.empty();
  const ContextPtr context = MakeContext(options);
  const SslPtr ssl(context == nullptr ? nullptr : SSL_new(context.get()));
  if (ssl == nullptr) return absl::OkStatus();
  const Descriptor socket = Dial(address, timeout);
  if (socket.get() < 0) return absl::OkStatus();
  constexpr std::array<unsigned char, 3> kHttp2 = {2, 'h', '2'};
  SSL_set_alpn_protos(ssl.get(), kHttp2.data(), kHttp2.size());
  SetHost(ssl.get(), HostOf(address));
  SSL_set_fd(ssl.get(), socket.get());
  // The verdict is wanted, not an end before it.
  SSL_set_verify(ssl.get(), SSL_VERIFY_NONE, nullptr);
  ERR_clear_error();
  const int handshake = SSL_connect(ssl.get());
  const bool connected = handshake == 1;
  // A server that cannot be served by this hello still answers it in TLS.
  const bool speaks_tls = connected || SSL_get0_peer_certificate(ssl.get()) != nullptr;
  if (!with_tls) {
    ERR_clear_error();
    if (!speaks_tls) return absl::OkStatus();
    return Broken("TLS_EXPECTED", address, "speaks TLS: give --tls-dir DIR or --ca FILE");
  }
  if (!speaks_tls) {
    // A gRPC port ends every connection, too, while its files are broken.
    const bool ended = EndedByServer(ssl.get(), handshake);
    return Broken(
        "TLS_NOT_SPOKEN", address,
        fmt::format("does not speak TLS{} ({})",
                    ended ? ", or its certificate files are broken, which its log then says" : "", TakeError()));
  }
  if (const long verdict = SSL_get_verify_result(ssl.get()); verdict != X509_V_OK) {
    ERR_clear_error();
    return Broken("SERVER_NOT_TRUSTED", address,
                  fmt::format("is not trusted: its certificate: {}", X509_verify_cert_error_string(verdict)));
  }
  // With TLS 1.3 the server rejects a client certificate only now; a server that accepts it sends its HTTP/2 settings.
  std::array<char, 1> byte{};
  if (!connected || SSL_read(ssl.get(), byte.data(), byte.size()) <= 0) {
    return Broken("CERTIFICATE_REFUSED", address,
                  fmt::format("refuses this client's certificate{}: {}",
                              options.tls_dir.empty() ? ", of which there is none (--tls-dir)" : "", TakeError()));
  }
  return absl::OkStatus();
}

}  // namespace atl::rpc
