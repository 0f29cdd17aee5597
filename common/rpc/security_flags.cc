#include "common/rpc/security_flags.h"

namespace atl::rpc {

void AddSecurityFlags(CLI::App& app, SecurityOptions* options, Side side) {
  app.add_option("--tls-dir", options->tls_dir,
                 "Folder with tls.crt, tls.key and ca.crt: speak TLS; read again when they change")
      ->envname("ATOLL_TLS_DIR");
  if (side != Side::kServer) {
    app.add_option("--ca", options->ca, "Certificates of the authorities to trust, in place of the folder's ca.crt")
        ->envname("ATOLL_CA");
    app.add_option("--token-file", options->token_file, "File with the token to show to servers")
        ->envname("ATOLL_TOKEN_FILE");
  }
  if (side == Side::kClient) return;
  app.add_option("--principals", options->principals,
                 "YAML file of who may call, by token, certificate or JWT, in which roles; read again when it changes")
      ->envname("ATOLL_PRINCIPALS");
  app.add_option("--deny-list", options->deny_list, "File of revoked subjects and tokens; read again when it changes")
      ->envname("ATOLL_DENY_LIST");
  app.add_flag("--require-client-certificate", options->require_client_certificate,
               "Refuse connections without a certificate of ca.crt's authority, also where a token would do");
  app.add_flag("--insecure-network", options->insecure_network,
               "Serve in the clear beyond this machine: everybody who reaches the port may call everything");
}

}  // namespace atl::rpc
