// A TCP proxy in the test's process that can block one direction, like a network that drops packets: both ends keep
// their connection, and blocked data arrives once the loss is over. It can also delay data.
#pragma once

#include <atomic>
#include <deque>
#include <list>
#include <string>
#include <thread>
#include <vector>

#include "absl/time/time.h"

namespace atl::testing_cluster {

enum class Direction { kToServer, kToClient };

// Thread-safe. Failing steps of the harness itself end the test process, with their reason.
class OneWayProxy {
 public:
  // Forwards to "127.0.0.1:port".
  explicit OneWayProxy(int port) : OneWayProxy("127.0.0.1:0", "127.0.0.1", port) {}
  // Listens at "address:port" (port 0: a free one) and forwards to a server that need not exist yet.
  OneWayProxy(const std::string& listen, const std::string& server_address, int server_port);
  ~OneWayProxy();  // closes every connection
  OneWayProxy(const OneWayProxy&) = delete;
  OneWayProxy& operator=(const OneWayProxy&) = delete;

  // Returns the address for clients: "127.0.0.1:port".
  std::string address() const { return address_; }

  // Blocks that direction from now on, also for new connections. Both may be cut.
  void Cut(Direction direction);
  // Delays all data that arrives from now on, in order.
  void Delay(absl::Duration delay);
  // Ends all cuts and delays.
  void Heal();

 private:
  struct Chunk {
    absl::Time due;  // before which it is not passed on
    std::vector<char> bytes;
  };
  // One direction of one connection, between reads and their writes.
  struct Pipe {
    int from = -1;
    int to = -1;
    Direction direction = Direction::kToServer;
    std::deque<Chunk> waiting;
    size_t waiting_bytes = 0;
    bool ended = false;  // `from` closed its side
    bool broken = false;
  };
  struct Connection {
    Pipe to_server;
    Pipe to_client;
  };

  void Loop();
  void Accept();
  bool IsCut(const Pipe& pipe) const;
  void Read(Pipe* pipe);
  static void Write(Pipe* pipe);
  // Returns the time in milliseconds, rounded up, until a delayed chunk is due; -1 without one.
  int NextDue(absl::Time now) const;
  void Wake();

  const std::string server_address_;
  const int server_port_;
  int listener_ = -1;
  int wake_ = -1;
  std::string address_;
  std::atomic<bool> cut_to_server_ = false;
  std::atomic<bool> cut_to_client_ = false;
  std::atomic<int64_t> delay_ms_ = 0;
  std::atomic<bool> stop_ = false;
  std::list<Connection> connections_;  // used only by the loop
  std::thread loop_;
};

}  // namespace atl::testing_cluster
