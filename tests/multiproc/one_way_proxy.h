// A TCP proxy in the test's process that can lose what goes in one direction, as a network that drops packets does:
// both ends keep their connection, and what was on its way arrives once the loss is over.
#pragma once

#include <atomic>
#include <list>
#include <string>
#include <thread>
#include <vector>

namespace atl::testing_cluster {

enum class Direction { kToServer, kToClient };

// Thread-safe. Failing steps of the harness itself end the test process, with their reason.
class OneWayProxy {
 public:
  // Forwards to "127.0.0.1:port".
  explicit OneWayProxy(int port);
  ~OneWayProxy();  // closes every connection
  OneWayProxy(const OneWayProxy&) = delete;
  OneWayProxy& operator=(const OneWayProxy&) = delete;

  // Where clients connect: "127.0.0.1:port".
  std::string address() const;

  // From now on nothing goes that way, on connections to come either. Both may be cut.
  void Cut(Direction direction);
  void Heal();

 private:
  // Bytes of one direction of one connection, between a read and its write.
  struct Pipe {
    int from = -1;
    int to = -1;
    Direction direction = Direction::kToServer;
    std::vector<char> waiting;
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
  void Write(Pipe* pipe);
  void Wake();

  const int server_port_;
  int listener_ = -1;
  int wake_ = -1;
  int port_ = 0;
  std::atomic<bool> cut_to_server_ = false;
  std::atomic<bool> cut_to_client_ = false;
  std::atomic<bool> stop_ = false;
  std::list<Connection> connections_;  // of the loop alone
  std::thread loop_;
};

}  // namespace atl::testing_cluster
