#include "common/auth/security_flags.h"

#include <string>

namespace atl::rpc {

void AddSecurityFlags(CLI::App& app, SecurityOptions* options, Side side) {
  const auto add = [&](const char* flag, std::string* value, const char* variable, const char* what) {
    CLI::Option* const option = app.add_option(flag, *value, what);
    if (side != Side::kClient) option->envname(variable);
  };
  add("--tls-dir", &options->tls_dir, "ATOLL_TLS_DIR",
      "Folder with tls.crt, tls.key and ca.crt: speak TLS; read again when they change");
  if (side != Side::kServer) {
    add("--ca", &options->ca, "ATOLL_CA", "Certificates of the authorities to trust, in place of the folder's ca.crt");
    add("--token-file", &options->token_file, "ATOLL_TOKEN_FILE", "File with the token to show to servers");
  }
  if (side == Side::kClient) return;
  add("--principals", &options->principals, "ATOLL_PRINCIPALS",
      "YAML file of who may call, by token, certificate or JWT, in which roles; read again when it changes");
  add("--deny-list", &options->deny_list, "ATOLL_DENY_LIST",
      "File of revoked subjects and tokens; read again when it changes");
  app.add_flag("--require-client-certificate", options->require_client_certificate,
               "Refuse connections without a certificate of ca.crt's authority, also where a token would do");
  app.add_flag("--insecure-network", options->insecure_network,
               "Serve in the clear beyond this machine: everybody who reaches the port may call everything");
}

}  // namespace atl::rpc
