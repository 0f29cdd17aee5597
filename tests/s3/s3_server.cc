#include "tests/s3/s3_server.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <system_error>

#include <fmt/format.h>

#include "absl/cleanup/cleanup.h"

namespace atl::testing_s3 {
namespace {

constexpr int kStarts = 5;

[[noreturn]] void Die(const std::string& message) {
  std::fprintf(stderr, "s3 server: %s\n", message.c_str());
  std::abort();
}

std::string Program() {
  const char* prefix = std::getenv("ATOLL_PREFIX");
  return prefix == nullptr ? "" : fmt::format("{}/s3-server", prefix);
}

sockaddr_in Loopback(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

// A port that was free a moment ago: the server knows no port 0.
int FreePort() {
  const int socket_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const absl::Cleanup closer = [socket_fd] { close(socket_fd); };
  sockaddr_in address = Loopback(0);
  socklen_t size = sizeof(address);
  if (bind(socket_fd, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
      getsockname(socket_fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    Die("no free port");
  }
  return ntohs(address.sin_port);
}

// Whether `path` is answered with 200 at that port.
bool Answers(int port, const std::string& path) {
  const int socket_fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const absl::Cleanup closer = [socket_fd] { close(socket_fd); };
  const sockaddr_in address = Loopback(port);
  if (connect(socket_fd, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) return false;
  const std::string request = fmt::format("GET {} HTTP/1.0\r\nHost: localhost\r\n\r\n", path);
  if (send(socket_fd, request.data(), request.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(request.size())) {
    return false;
  }
  char answer[64] = {};
  return recv(socket_fd, answer, sizeof(answer) - 1, 0) > 0 && std::string_view(answer).find(" 200 ") == 8;
}

}  // namespace

std::string MissingS3Server() {
  if (access(Program().c_str(), X_OK) == 0) return "";
  return fmt::format("an S3 server: '{}' is not there; run deploy/setup.sh --test-tools", Program());
}

S3Server::S3Server(bool accounts)
    : accounts_(accounts), folder_(std::filesystem::temp_directory_path() / "atoll-s3-XXXXXX") {
  if (mkdtemp(folder_.data()) == nullptr) Die("no temporary folder");
  std::filesystem::create_directories(FileOf(""));
  std::filesystem::create_directories(folder_ + "/accounts/beside");
  for (int i = 0; i < kStarts; ++i) {
    if (Start()) return;
  }
  Die(fmt::format("it does not start:\n{}", process_->Log()));
}

S3Server::~S3Server() {
  process_.reset();
  std::error_code error;
  std::filesystem::remove_all(folder_, error);
}

bool S3Server::Start() {
  port_ = FreePort();
  // Another process may have taken the port meanwhile, even another such server: only this one knows the path.
  const std::string health = fmt::format("/health-{:08x}", std::random_device()());
  std::vector<std::string> command = {Program(),  "--port", fmt::format("127.0.0.1:{}", port_),
                                      "--health", health,   "--quiet"};
  if (accounts_) command.insert(command.end(), {"--iam-dir", folder_ + "/accounts", "--iam-cache-disable"});
  command.push_back("posix");
  // A policy of several accounts is longer than what some file systems keep beside a file.
  if (accounts_) command.insert(command.end(), {"--sidecar", folder_ + "/accounts/beside"});
  command.push_back(folder_ + "/buckets");
  process_ = std::make_unique<testing_cluster::Process>(
      command, folder_ + "/log",
      std::vector<std::string>{fmt::format("ROOT_ACCESS_KEY={}", kAccessKey),
                               fmt::format("ROOT_SECRET_KEY={}", kSecretKey)});
  return testing_cluster::Await(absl::Seconds(20), [&] { return Answers(port_, health) || !process_->Running(); }) &&
         process_->Running();
}

std::string S3Server::Uri(std::string_view prefix) const {
  return Uri(prefix, port_, fmt::format("{}:{}", kAccessKey, kSecretKey));
}

std::string S3Server::Uri(std::string_view prefix, int port, std::string_view keys, std::string_view bucket) {
  return fmt::format("s3://{}{}{}/{}?endpoint_override=127.0.0.1:{}&scheme=http&region=us-east-1", keys,
                     keys.empty() ? "" : "@", bucket, prefix, port);
}

std::vector<std::string> S3Server::Environment() {
  return {fmt::format("AWS_ACCESS_KEY_ID={}", kAccessKey), fmt::format("AWS_SECRET_ACCESS_KEY={}", kSecretKey)};
}

std::vector<std::string> S3Server::GrantEnvironment() const {
  return {fmt::format("ATOLL_TEST_S3_SERVER={}", Program()),
          fmt::format("ATOLL_TEST_S3_ENDPOINT=http://127.0.0.1:{}", port_),
          fmt::format("ROOT_ACCESS_KEY={}", kAccessKey), fmt::format("ROOT_SECRET_KEY={}", kSecretKey)};
}

std::string S3Server::FileOf(std::string_view key) const {
  return fmt::format("{}/buckets/{}/{}", folder_, kBucket, key);
}

}  // namespace atl::testing_s3
