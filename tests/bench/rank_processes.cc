#include "tests/bench/rank_processes.h"

#include <utility>

#include <fmt/format.h>

#include "absl/time/time.h"
#include "common/base/status_macros.h"
#include "worker/transport/ucx/ucx_transport.h"

namespace atl::bench {

absl::StatusOr<std::unique_ptr<transport::Transport>> ConnectRank(ParentPipes* parent, int rank, int ranks,
                                                                  const std::vector<transport::Lane>& lanes) {
  ATOLL_ASSIGN_OR_RETURN(std::unique_ptr<transport::Transport> transport,
                         transport::MakeUcxTransport({}, rank, ranks, {.incarnation = 1, .attempt = 1, .secret = "b"}));
  // Addresses are bytes; the parent passes them on as hexadecimal digits.
  std::string address;
  for (const char c : transport->Address()) address += fmt::format("{:02x}", static_cast<unsigned char>(c));
  ATOLL_RETURN_IF_ERROR(parent->Write(address));
  std::vector<std::string> addresses;
  for (int r = 0; r < ranks; ++r) {
    ATOLL_ASSIGN_OR_RETURN(const std::string digits, parent->Read());
    std::string& bytes = addresses.emplace_back();
    for (size_t i = 0; i + 1 < digits.size(); i += 2) {
      bytes += static_cast<char>(std::stoi(digits.substr(i, 2), nullptr, 16));
    }
  }
  ATOLL_RETURN_IF_ERROR(transport->Connect(addresses, lanes, absl::Seconds(60)));
  return transport;
}

std::vector<Child*> All(const Children& children) {
  std::vector<Child*> all;
  for (const auto& child : children) all.push_back(child.get());
  return all;
}

absl::StatusOr<Children> StartRanks(int ranks, const std::function<absl::Status(int rank, ParentPipes* parent)>& run) {
  Children children;
  for (int rank = 0; rank < ranks; ++rank) {
    ATOLL_ASSIGN_OR_RETURN(auto child, Child::Fork([&run, rank](int read_fd, int write_fd) {
                             ParentPipes parent{.read_fd = read_fd, .write_fd = write_fd};
                             const absl::Status status = run(rank, &parent);
                             if (!status.ok()) fmt::print(stderr, "rank {}: {}\n", rank, status.ToString());
                             return status.ok() ? 0 : 1;
                           }));
    children.push_back(std::move(child));
  }
  std::vector<std::string> addresses;
  for (const auto& child : children) {
    ATOLL_ASSIGN_OR_RETURN(addresses.emplace_back(), child->Receive());
  }
  for (const auto& child : children) {
    for (const std::string& address : addresses) ATOLL_RETURN_IF_ERROR(child->Send(address));
  }
  for (const auto& child : children) ATOLL_RETURN_IF_ERROR(child->Receive().status());
  return children;
}

absl::StatusOr<std::vector<Answer>> AskAll(const std::vector<Child*>& children, const std::string& command) {
  for (Child* child : children) ATOLL_RETURN_IF_ERROR(child->Send(command));
  std::vector<Answer> answers;
  for (Child* child : children) {
    ATOLL_ASSIGN_OR_RETURN(answers.emplace_back(), child->ReceiveAnswer());
  }
  return answers;
}

}  // namespace atl::bench
