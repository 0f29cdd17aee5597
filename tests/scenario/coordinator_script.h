// Runs a story of jobs and islands, written as text, over the coordinator's core with a fake clock and a real store.
//
//   # comment
//   job j [experts=1] [shards=1] [budget=3] [priority=0] [keep=2] [milestones=0] [ranks=1] [model=digits]
//   register a [island=a] [ranks=1] [start=<process start>] [quota=2] [of=<prefix>]   -> incarnation=1
//   claim a [wait=30s]          -> j/cluster attempt=1 [resume=20] [skip=11+2] | nothing | waits | unmet <text>
//                                  | <REASON>
//   answered a                  -> as claim: what a waiting claim was answered with, or: waits
//   heartbeat a [step=2.5]      -> ok | revoked <REASON> | stopping <REASON> | drained | <REASON>
//   commit a step=10            -> ok | superseded 10,20 | <REASON>
//   complete a | fail a [permanent] | release a     -> ok | <REASON>
//   rollback a bad=12 [through=12]  -> to=10 [skip=11+2] | failed | <REASON>
//   cancel j | delete j         -> ok | <REASON>
//   serve digits j generation=1 -> ok | <REASON>
//   drain a [reason=<word>] | undrain a    the island of process a -> ok | <REASON>
//   move j/cluster [to=b]       -> ok | <REASON>
//   forget                      islands that were silent for a week -> ok
//   island a                    -> BUSY j/cluster slowdown=3.0 SLOW | IDLE | DRAINING j/cluster | DRAINED | LOST
//   advance 11s                 the clock moves, and the core is told
//   restart                     the process dies and starts again on the same store
//   restore                     as restart, with a store that takes a higher epoch
//   task j/cluster              -> READY attempt=1 failures=0 step=0
//   attempt j/cluster 1         -> EXPIRED
//   job j                       -> RUNNING
//   serving digits              -> j generation=1
//   checkpoints j/train_expert-0 -> 10:COMMITTED,20:DELETING,30:SUPERSEDED
//   errors j/cluster            -> 2:b:EXPIRED,1:a:INTERNAL   of a FAILED task: attempt, island, code
//
// `a` is a process of an island: it keeps its own incarnation and token, also when they are stale.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/fake_clock.h"
#include "coordinator/core/core.h"
#include "coordinator/store/sqlite_store.h"

namespace atl::coordinator {

class CoordinatorScript {
 public:
  // `folder` is an empty folder for the store.
  explicit CoordinatorScript(std::string folder);
  ~CoordinatorScript();

  // Runs the script up to the first line whose result differs from its expectation. Returns "" or that line, the
  // expected and the found result.
  std::string Run(const std::string& text);

  // Runs one line and returns its result in the form after "->".
  std::string Do(const std::string& line);

 private:
  struct Line {
    std::vector<std::string> words;
    std::map<std::string, std::string> options;
    std::string expected;

    const std::string& word(size_t i) const;
    std::string option(const std::string& name, const std::string& otherwise) const;
    int64_t number(const std::string& name, int64_t otherwise) const;
  };
  struct Process {
    std::string island_id;
    int64_t incarnation = 0;
    int64_t sequence = 0;
    spec::TaskGrant grant;
    int64_t last_step = 0;
    std::string waiting = "nothing";  // the answer to the last claim
    std::vector<std::string> unmet;
  };

  static Line Parse(const std::string& text);
  std::string Execute(const Line& line);
  std::string Ask(const Line& line);
  void Open(bool restored);
  void Settle();

  std::string SubmitJob(const Line& line);
  std::string Register(const Line& line);
  std::string Claim(const Line& line);
  std::string Heartbeat(Process& process, double step_seconds);
  std::string ShowIsland(const std::string& island_id);
  std::string Commit(Process& process, int64_t step);
  std::string Complete(Process& process);
  std::string Rollback(Process& process, int64_t bad, int64_t through);
  std::string ShowTask(const std::string& task_id);
  std::string ShowCheckpoints(const std::string& task_id);
  std::string ShowErrors(const std::string& task_id);
  // Maps script names of jobs to the ids that the coordinator gave.
  std::string RealId(const std::string& script_id) const;
  std::string ScriptId(const std::string& real_id) const;

  const std::string folder_;
  FakeClock clock_;
  std::unique_ptr<metrics::Registry> registry_;
  std::unique_ptr<CoreMetrics> metrics_;
  std::unique_ptr<store::SqliteStore> store_;
  std::unique_ptr<Core> core_;
  std::map<std::string, Process> processes_;
  std::map<std::string, std::string> job_ids_;
  int random_ = 0;
};

}  // namespace atl::coordinator
