#include "tests/contract/transport_island.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <condition_variable>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "gtest/gtest.h"
#include "worker/transport/loopback/loopback_transport.h"

namespace atl::transport {
namespace {

// AllGather of threads.
class Table {
 public:
  explicit Table(int32_t seats) : texts_(seats) {}

  std::vector<std::string> AllGather(int32_t rank, const std::string& text) {
    std::unique_lock lock(mutex_);
    texts_[rank] = text;
    const int64_t round = round_;
    if (++arrived_ == texts_.size()) {
      arrived_ = 0;
      ++round_;
      gathered_ = texts_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return round_ != round; });
    return gathered_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> texts_;
  std::vector<std::string> gathered_;
  size_t arrived_ = 0;
  int64_t round_ = 0;
};

class ThreadSeat final : public RankSeat {
 public:
  ThreadSeat(Table* table, int32_t rank, int32_t rank_count, std::unique_ptr<Transport> transport)
      : table_(table), rank_(rank), rank_count_(rank_count) {
    transport_ = std::move(transport);
  }
  int32_t rank() const override { return rank_; }
  int32_t rank_count() const override { return rank_count_; }
  std::vector<std::string> AllGather(const std::string& text) override { return table_->AllGather(rank_, text); }

 private:
  Table* const table_;
  const int32_t rank_;
  const int32_t rank_count_;
};

void RunThreads(const std::vector<AttemptIdentity>& identities, const RankBody& body,
                std::vector<std::unique_ptr<Transport>> transports) {
  const auto ranks = static_cast<int32_t>(identities.size());
  Table table(ranks);
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    threads.emplace_back([&, rank] {
      ThreadSeat seat(&table, rank, ranks, std::move(transports[rank]));
      body(seat);
    });
  }
  for (std::thread& thread : threads) thread.join();
}

class LoopbackIsland final : public Island {
 public:
  void Run(const std::vector<AttemptIdentity>& identities, const RankBody& body, const std::vector<int32_t>&) override {
    RunThreads(identities, body, MakeLoopbackTransports(identities));
  }
};

class ThreadIsland final : public Island {
 public:
  explicit ThreadIsland(TransportFactory factory) : factory_(std::move(factory)) {}
  void Run(const std::vector<AttemptIdentity>& identities, const RankBody& body, const std::vector<int32_t>&) override {
    std::vector<std::unique_ptr<Transport>> transports;
    for (size_t rank = 0; rank < identities.size(); ++rank) {
      transports.push_back(
          factory_(static_cast<int32_t>(rank), static_cast<int32_t>(identities.size()), identities[rank]));
      ASSERT_NE(transports.back(), nullptr);
    }
    RunThreads(identities, body, std::move(transports));
  }

 private:
  const TransportFactory factory_;
};

// Whole messages over a socket pair: a length, then the text.
bool WriteAll(int fd, const void* data, size_t size) {
  const auto* at = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t n = send(fd, at, size, MSG_NOSIGNAL);
    if (n <= 0) return false;
    at += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}

bool ReadAll(int fd, void* data, size_t size) {
  auto* at = static_cast<char*>(data);
  while (size > 0) {
    const ssize_t n = read(fd, at, size);
    if (n <= 0) return false;
    at += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}

bool WriteText(int fd, const std::string& text) {
  const auto size = static_cast<uint32_t>(text.size());
  return WriteAll(fd, &size, sizeof(size)) && WriteAll(fd, text.data(), size);
}

std::optional<std::string> ReadText(int fd) {
  uint32_t size = 0;
  if (!ReadAll(fd, &size, sizeof(size))) return std::nullopt;
  std::string text(size, '\0');
  if (!ReadAll(fd, text.data(), size)) return std::nullopt;
  return text;
}

class ProcessSeat final : public RankSeat {
 public:
  ProcessSeat(int fd, int32_t rank, int32_t rank_count, std::unique_ptr<Transport> transport)
      : fd_(fd), rank_(rank), rank_count_(rank_count) {
    transport_ = std::move(transport);
  }
  int32_t rank() const override { return rank_; }
  int32_t rank_count() const override { return rank_count_; }
  // A rank that ended counts as one that says nothing.
  std::vector<std::string> AllGather(const std::string& text) override {
    WriteText(fd_, text);
    std::vector<std::string> texts(rank_count_);
    for (std::string& other : texts) other = ReadText(fd_).value_or("");
    return texts;
  }

 private:
  const int fd_;
  const int32_t rank_;
  const int32_t rank_count_;
};

class ProcessIsland final : public Island {
 public:
  explicit ProcessIsland(TransportFactory factory) : factory_(std::move(factory)) {}

  void Run(const std::vector<AttemptIdentity>& identities, const RankBody& body,
           const std::vector<int32_t>& killed) override {
    const auto ranks = static_cast<int32_t>(identities.size());
    std::fflush(nullptr);
    std::vector<int> sockets;
    std::vector<pid_t> pids;
    for (int32_t rank = 0; rank < ranks; ++rank) {
      int pair[2];
      ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
      const pid_t pid = fork();
      ASSERT_GE(pid, 0);
      if (pid == 0) {
        for (const int other : sockets) close(other);
        close(pair[0]);
        RunChild(pair[1], rank, identities, body);
      }
      close(pair[1]);
      sockets.push_back(pair[0]);
      pids.push_back(pid);
    }
    Relay(sockets);
    for (int32_t rank = 0; rank < ranks; ++rank) {
      int status = 0;
      ASSERT_EQ(waitpid(pids[rank], &status, 0), pids[rank]);
      close(sockets[rank]);
      if (std::find(killed.begin(), killed.end(), rank) != killed.end()) {
        EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL) << "rank " << rank << ": status " << status;
      } else {
        EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
            << "rank " << rank << " failed (status " << status << "); its output is above";
      }
    }
  }

 private:
  [[noreturn]] void RunChild(int fd, int32_t rank, const std::vector<AttemptIdentity>& identities,
                             const RankBody& body) const {
    {
      const auto ranks = static_cast<int32_t>(identities.size());
      ProcessSeat seat(fd, rank, ranks, factory_(rank, ranks, identities[rank]));
      body(seat);
    }
    close(fd);
    std::fflush(nullptr);
    _exit(::testing::Test::HasFailure() ? 1 : 0);
  }

  // Serves AllGather until every rank has closed its end.
  static void Relay(const std::vector<int>& sockets) {
    std::vector<bool> open(sockets.size(), true);
    while (std::find(open.begin(), open.end(), true) != open.end()) {
      std::vector<std::string> texts(sockets.size());
      for (size_t rank = 0; rank < sockets.size(); ++rank) {
        if (!open[rank]) continue;
        auto text = ReadText(sockets[rank]);
        open[rank] = text.has_value();
        texts[rank] = std::move(text).value_or("");
      }
      for (size_t rank = 0; rank < sockets.size(); ++rank) {
        for (const std::string& text : texts) open[rank] = open[rank] && WriteText(sockets[rank], text);
      }
    }
  }

  const TransportFactory factory_;
};

}  // namespace

absl::Status RankSeat::Connect(const std::vector<Lane>& lanes, absl::Duration timeout) {
  return transport_->Connect(AllGather(transport_->Address()), lanes, timeout);
}

std::unique_ptr<Island> MakeLoopbackIsland() {
  return std::make_unique<LoopbackIsland>();
}

std::unique_ptr<Island> MakeThreadIsland(TransportFactory factory) {
  return std::make_unique<ThreadIsland>(std::move(factory));
}

std::unique_ptr<Island> MakeProcessIsland(TransportFactory factory) {
  return std::make_unique<ProcessIsland>(std::move(factory));
}

}  // namespace atl::transport
