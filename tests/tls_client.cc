#include "tests/tls_client.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>

#include "openssl/pem.h"
#include "openssl/ssl.h"

namespace atl::testing {
namespace {

constexpr int kPatienceSeconds = 20;

std::shared_ptr<BIO> Memory(const std::string& text) {
  return {BIO_new_mem_buf(text.data(), static_cast<int>(text.size())), BIO_free};
}

bool Configure(SSL_CTX* context, const TlsClientOptions& options) {
  const std::shared_ptr<X509> authority(PEM_read_bio_X509(Memory(options.authority).get(), nullptr, nullptr, nullptr),
                                        X509_free);
  if (authority == nullptr) return false;
  X509_STORE_add_cert(SSL_CTX_get_cert_store(context), authority.get());
  SSL_CTX_set_verify(context, SSL_VERIFY_PEER, nullptr);
  if (options.certificate.certificate.empty()) return true;
  const std::shared_ptr<X509> own(
      PEM_read_bio_X509(Memory(options.certificate.certificate).get(), nullptr, nullptr, nullptr), X509_free);
  const std::shared_ptr<EVP_PKEY> key(
      PEM_read_bio_PrivateKey(Memory(options.certificate.key).get(), nullptr, nullptr, nullptr), EVP_PKEY_free);
  return SSL_CTX_use_certificate(context, own.get()) == 1 && SSL_CTX_use_PrivateKey(context, key.get()) == 1;
}

}  // namespace

int ConnectTo(int port, int receive_buffer) {
  const int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const timeval patience{.tv_sec = kPatienceSeconds, .tv_usec = 0};
  setsockopt(descriptor, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
  setsockopt(descriptor, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof(patience));
  if (receive_buffer > 0) setsockopt(descriptor, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof(receive_buffer));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (connect(descriptor, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0) return descriptor;
  close(descriptor);
  return -1;
}

std::unique_ptr<TlsClient> TlsClient::Connect(const TlsClientOptions& options) {
  // OpenSSL answers the end of a connection with an alert, for which the other side may be gone. Programs ignore it
  // too.
  std::signal(SIGPIPE, SIG_IGN);
  std::unique_ptr<TlsClient> client(new TlsClient);
  client->descriptor_ = ConnectTo(options.port, options.receive_buffer);
  const std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
  if (client->descriptor_ < 0 || !Configure(context.get(), options)) return nullptr;
  client->ssl_ = SSL_new(context.get());
  SSL_set1_host(client->ssl_, "localhost");
  SSL_set_fd(client->ssl_, client->descriptor_);
  return SSL_connect(client->ssl_) == 1 ? std::move(client) : nullptr;
}

TlsClient::~TlsClient() {
  SSL_free(ssl_);
  if (descriptor_ >= 0) close(descriptor_);
}

std::string TlsClient::server_name() const {
  std::array<char, 256> name{};
  X509_NAME_get_text_by_NID(X509_get_subject_name(SSL_get0_peer_certificate(ssl_)), NID_commonName, name.data(),
                            name.size());
  return name.data();
}

bool TlsClient::Write(std::string_view bytes) {
  return SSL_write(ssl_, bytes.data(), static_cast<int>(bytes.size())) == static_cast<int>(bytes.size());
}

std::string TlsClient::Read(size_t size) {
  std::string bytes(size, '\0');
  size_t filled = 0;
  while (filled < size) {
    const int read = SSL_read(ssl_, bytes.data() + filled, static_cast<int>(std::min<size_t>(size - filled, 1 << 20)));
    if (read <= 0) break;
    filled += read;
  }
  bytes.resize(filled);
  return bytes;
}

std::string TlsClient::ReadToEnd() {
  std::string all;
  for (std::string piece; !(piece = Read(4096)).empty();) all += piece;
  return all;
}

void TlsClient::EndWriting() {
  SSL_shutdown(ssl_);
}

std::string Get(const TlsClientOptions& options, const std::string& path, const std::string& headers) {
  const std::string request =
      "GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n" + headers + "\r\n";
  if (!options.authority.empty()) {
    const std::unique_ptr<TlsClient> client = TlsClient::Connect(options);
    return client != nullptr && client->Write(request) ? client->ReadToEnd() : "";
  }
  const int descriptor = ConnectTo(options.port);
  std::string answer;
  if (send(descriptor, request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size())) {
    std::array<char, 4096> piece;
    for (ssize_t read; (read = recv(descriptor, piece.data(), piece.size(), 0)) > 0;) answer.append(piece.data(), read);
  }
  if (descriptor >= 0) close(descriptor);
  return answer;
}

}  // namespace atl::testing
