"""Runs the public schedule search of "Pipeline Parallelism with Controllable Memory" (arXiv 2405.15362) and prints, for
every number of ranks and every memory limit, the least idle time that its schedules have. Any python3 runs it.

  published_schedules.py REPOSITORY [FIRST LAST] > tests/golden/published_schedules.csv

REPOSITORY is a clone of https://github.com/sail-sg/zero-bubble-pipeline-parallelism; its files are read at HEAD and are
not changed. FIRST and LAST are numbers of ranks (2 and 16). The search takes seconds for 6 ranks and hours for 16.

Every pass takes one slot, transfers take none, and there are twice as many micro-batches as ranks. A row counts every
schedule that the search makes and that holds at most `limit` activations of one chunk per rank, timed eagerly:
`own_span` is the idle time of the worst rank between its first and last pass, `step` the idle time of the whole step.
"""

import contextlib
import datetime
import os
import subprocess
import sys
import types

FILE = "megatron/core/pipeline_parallel/zerobubble/scheduler/v_auto_schedule.py"


def git(repository, *arguments):
    command = ["git", "-C", repository, *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def load(repository):
    search = types.ModuleType("v_auto_schedule")
    exec(compile(git(repository, "show", "HEAD:" + FILE), FILE, "exec"), search.__dict__)
    return search


def run(search, ranks):
    """The best (own_span, step) by the activations held, of all the schedules that the search looks at."""
    micro_batches = 2 * ranks
    work = 6 * micro_batches
    best = {}
    calc_bubble = search.calc_bubble

    def note(schedules):
        timed = search.transform_schedule(schedules, 1, 1, 1, 0)
        ends = [max(node.completion_time for node in rank) for rank in timed]
        starts = [min(node.start_time for node in rank) for rank in timed]
        held = search.get_peak_mem(schedules)
        own = max(end - start for start, end in zip(starts, ends)) - work
        step = max(ends) - work
        before = best.get(held, (own, step))
        best[held] = (min(own, before[0]), min(step, before[1]))
        return calc_bubble(schedules)

    search.calc_bubble = note
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        search.schedule(ranks, micro_batches, (1, 1, 1, 0), 2 * ranks)
    search.calc_bubble = calc_bubble
    return best


def main():
    if len(sys.argv) not in (2, 4):
        sys.exit(__doc__)
    repository = sys.argv[1]
    first, last = map(int, sys.argv[2:]) if len(sys.argv) == 4 else (2, 16)
    sys.setrecursionlimit(100_000)
    search = load(repository)
    print(f"# source: https://github.com/sail-sg/zero-bubble-pipeline-parallelism {FILE}")
    print("# commit:", git(repository, "rev-parse", "HEAD").strip())
    print("# date:", datetime.date.today())
    print(f"# command: tests/peers/published_schedules.py REPOSITORY {first} {last}")
    print("ranks,limit,own_span,step", flush=True)
    for ranks in range(first, last + 1):
        own, step = None, None
        best = run(search, ranks)
        for limit in range(1, 2 * ranks + 1):
            if limit in best:
                own = best[limit][0] if own is None else min(own, best[limit][0])
                step = best[limit][1] if step is None else min(step, best[limit][1])
            if own is not None:
                print(f"{ranks},{limit},{own},{step}", flush=True)


if __name__ == "__main__":
    main()
