// A caller over TLS for tests: like curl, but the test controls every step.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "openssl/types.h"
#include "tests/pki.h"

namespace atl::testing {

struct TlsClientOptions {
  int port = 0;             // of 127.0.0.1
  std::string authority;    // PEM: the authority that the client trusts
  Certificate certificate;  // its own; empty: none
  int receive_buffer = 0;   // bytes; 0: the system's choice
};

// Not thread-safe. Reads and writes block for at most 20 s, so that a test fails rather than hangs.
class TlsClient {
 public:
  // Returns null when it cannot connect, or does not trust the server. Whether the server trusts the client shows with
  // the first read: in TLS 1.3 a client finishes before its certificate is checked.
  static std::unique_ptr<TlsClient> Connect(const TlsClientOptions& options);
  ~TlsClient();

  // Returns the common name of the server's certificate.
  std::string server_name() const;
  int descriptor() const { return descriptor_; }

  bool Write(std::string_view bytes);
  // Reads at most `size` bytes; fewer at the end.
  std::string Read(size_t size);
  std::string ReadToEnd();
  // Signals the end of writing.
  void EndWriting();

 private:
  TlsClient() = default;

  int descriptor_ = -1;
  SSL* ssl_ = nullptr;
};

// Opens a TCP connection to 127.0.0.1:`port` whose reads and writes block for at most 20 s; -1 on failure.
int ConnectTo(int port, int receive_buffer = 0);

// Sends a GET for `path` over a new connection, with TLS if `options` has an authority. Returns the whole answer, head
// and body, or "" without one. `headers` include their line ends.
std::string Get(const TlsClientOptions& options, const std::string& path, const std::string& headers = "");

}  // namespace atl::testing
