// A caller over TLS for tests: what curl does, with every step in the test's hand.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "openssl/types.h"
#include "tests/pki.h"

namespace atl::testing {

struct TlsClientOptions {
  int port = 0;             // of 127.0.0.1
  std::string authority;    // PEM: whom it believes
  Certificate certificate;  // its own; empty: none
  int receive_buffer = 0;   // bytes; 0: the system's choice
};

// Not thread-safe. What it reads and writes blocks, at most for 20 s: then a test fails rather than hangs.
class TlsClient {
 public:
  // Null when it cannot connect, or does not believe the server. Whether the server believes it shows with the first
  // read: in TLS 1.3 a client is done before its certificate is looked at.
  static std::unique_ptr<TlsClient> Connect(const TlsClientOptions& options);
  ~TlsClient();

  // The common name of the server's certificate.
  std::string server_name() const;
  int descriptor() const { return descriptor_; }

  bool Write(std::string_view bytes);
  // At most `size` bytes, or fewer at the end.
  std::string Read(size_t size);
  std::string ReadToEnd();
  // Says that nothing more comes.
  void EndWriting();

 private:
  TlsClient() = default;

  int descriptor_ = -1;
  SSL* ssl_ = nullptr;
};

// A TCP connection to 127.0.0.1:`port` whose reads and writes block, at most for 20 s; -1 where there is none.
int ConnectTo(int port, int receive_buffer = 0);

// Sends a GET for `path` over a connection of its own, over TLS where `options` has an authority; the whole answer,
// head and body, or "" where there was none. `headers` with their line ends.
std::string Get(const TlsClientOptions& options, const std::string& path, const std::string& headers = "");

}  // namespace atl::testing
