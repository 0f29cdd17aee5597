// Paths of a process's certificates, token and principals, as its flags set them.
#pragma once

#include <string>

namespace atl::rpc {

struct SecurityOptions {
  // Folder with tls.crt, tls.key and ca.crt (the names of Kubernetes' secrets). Replace all three at once, by swapping
  // a link. Empty: no TLS.
  std::string tls_dir;
  // Client only: certificates to trust in place of tls_dir's ca.crt. A server still verifies its clients by tls_dir's
  // ca.crt.
  std::string ca;
  // Client only: file with the token that it sends.
  std::string token_file;
  // Server only: the principals file. Empty: a port without TLS lets every caller call everything, and a port with TLS
  // every caller with a certificate of the authority.
  std::string principals;
  std::string deny_list;
  bool require_client_certificate = false;
  // Allows serving in the clear beyond this machine.
  bool insecure_network = false;
};

}  // namespace atl::rpc
