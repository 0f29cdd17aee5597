// Where a process's certificates, token and principals lie: what its flags say.
#pragma once

#include <string>

namespace atl::rpc {

struct SecurityOptions {
  // Folder with tls.crt, tls.key and ca.crt (the names of Kubernetes' secrets), to be replaced as one: by a link that
  // is swapped. Empty: no TLS.
  std::string tls_dir;
  // A client's: certificates to trust where it has none of its own, in place of tls_dir's ca.crt. A server knows its
  // clients by that one all the same.
  std::string ca;
  // A client's: file with the token that it shows.
  std::string token_file;
  // A server's: who callers are. Empty: a port without TLS lets everybody call everything, a port with TLS everybody
  // who has a certificate of the authority.
  std::string principals;
  std::string deny_list;
  bool require_client_certificate = false;
  // Serve in the clear beyond this machine.
  bool insecure_network = false;
};

}  // namespace atl::rpc
