// A real S3 server for tests: versitygw, which deploy/setup.sh --test-tools installs, over a temporary folder.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "tests/facility.h"
#include "tests/multiproc/process.h"

namespace atl::testing_s3 {

// Returns why no server can be started here, and how to fix it; empty if one can.
std::string MissingS3Server();

// Serves one bucket on loopback until it is destroyed, which deletes its files. Not thread-safe. Steps of the harness
// that fail end the test process, with their reason.
class S3Server {
 public:
  static constexpr char kAccessKey[] = "ATOLLTESTKEY";
  static constexpr char kSecretKey[] = "atolltestsecret";
  static constexpr char kBucket[] = "atoll-test";

  // `accounts`: the server can have more accounts than that of the keys above, each with the rights that the bucket's
  // policy gives it.
  explicit S3Server(bool accounts = false);
  ~S3Server();
  S3Server(const S3Server&) = delete;
  S3Server& operator=(const S3Server&) = delete;

  int port() const { return port_; }
  // Returns "s3://<keys>@<bucket>/<prefix>?…": a separate store below `prefix`, with the keys in it.
  std::string Uri(std::string_view prefix) const;
  // The same through another port, for a proxy in between, and with other keys ("key:secret"; empty: none).
  static std::string Uri(std::string_view prefix, int port, std::string_view keys, std::string_view bucket = kBucket);
  // Returns the environment that a process needs beside a URI without keys: "NAME=value".
  static std::vector<std::string> Environment();
  // Returns the environment that tests/s3/grant_keys.py needs: "NAME=value".
  std::vector<std::string> GrantEnvironment() const;
  // Returns the path of the file that holds the object of a key.
  std::string FileOf(std::string_view key) const;

 private:
  bool Start();

  const bool accounts_;
  std::string folder_;
  int port_ = 0;
  std::unique_ptr<testing_cluster::Process> process_;
};

}  // namespace atl::testing_s3

// Skips the test by name where no server is installed; fails it in CI, which installs one.
#define ATOLL_REQUIRE_S3_SERVER() \
  ATOLL_REQUIRE_FACILITY(::atl::testing_s3::MissingS3Server().empty(), ::atl::testing_s3::MissingS3Server())
