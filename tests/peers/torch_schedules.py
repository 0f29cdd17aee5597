"""Schedules as text between Atoll and torch.distributed.pipelining, both ways. Run with tests/peers/setup.sh's python.

  torch_schedules.py write FOLDER   writes schedules of PyTorch's generators, as tests/golden/schedules/pytorch holds them
  torch_schedules.py run FILE ...   runs the schedules for 2 and 4 ranks of golden files in PyTorch's runtime over gloo and
                                    compares gradients with one process
"""

import csv
import os
import re
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules
from torch.distributed.pipelining.stage import _PipelineStageBase


class NamedStage(_PipelineStageBase):
    """A stage without a module: all that the generators ask of it is how many there are."""

    def __init__(self, ranks, stages, index):
        self.num_stages, self.group_size, self.stage_index = stages, ranks, index
        self.group_rank, self.group, self.device, self.submod = 0, None, "cpu", None
        self.stage_index_to_group_rank, self.has_backward = None, True

    def _create_grad_recv_info(self, *args, **kwargs):
        return None

    def _prepare_forward_infra(self, *args, **kwargs):
        return None

    def _prepare_backward_infra(self, *args, **kwargs):
        return None


def write(folder):
    for name, generator, ranks, micro_batches in (
        ("interleaved_1f1b", schedules.ScheduleInterleaved1F1B, 2, 4),
        ("interleaved_zero_bubble", schedules.ScheduleInterleavedZeroBubble, 2, 6),
        ("zbv_zero_bubble", schedules.ScheduleZBVZeroBubble, 4, 8),
        ("looped_bfs", schedules.ScheduleLoopedBFS, 3, 4),
        ("interleaved_1f1b_4x8", schedules.ScheduleInterleaved1F1B, 4, 8),
        ("interleaved_zero_bubble_4x8", schedules.ScheduleInterleavedZeroBubble, 4, 8),
        ("zbv_zero_bubble_3x7", schedules.ScheduleZBVZeroBubble, 3, 7),
    ):
        stages = [NamedStage(ranks, 2 * ranks, i) for i in range(2)]
        order = generator(stages, micro_batches, loss_fn=lambda a, b: 0).pipeline_order
        with open(os.path.join(folder, name + ".csv"), "w", newline="") as file:
            csv.writer(file).writerows(order[rank] for rank in range(ranks))


RANKS = (2, 4)


def modules(stages):
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(stages)]


def stages_of(line):
    return sorted({int(stage) for stage in re.findall(r"(\d+)[FIWB]\d+", line)})


def plain_gradients(stages, x, y, micro_batches):
    plain = modules(stages)
    for part, goal in zip(x.chunk(micro_batches), y.chunk(micro_batches)):
        (nn.functional.mse_loss(nn.Sequential(*plain)(part), goal) / micro_batches).backward()
    return plain


def run_schedule(rank, text, micro_batches):
    lines = text.splitlines()
    stages = max(max(stages_of(line)) for line in lines) + 1
    mine = stages_of(lines[rank])
    x = torch.randn(4 * micro_batches, 8, generator=torch.Generator().manual_seed(1))
    y = torch.zeros_like(x)
    built = modules(stages)
    parts = [PipelineStage(built[stage], stage, stages, torch.device("cpu")) for stage in mine]
    runtime = schedules._PipelineScheduleRuntime(parts, micro_batches, loss_fn=nn.functional.mse_loss)
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
        file.write(text)
        file.flush()
        runtime._load_csv(file.name)
    inputs = [x] if 0 in mine else []
    runtime.step(*inputs, **({"target": y} if stages - 1 in mine else {}))

    plain = plain_gradients(stages, x, y, micro_batches)
    for part in parts:
        for ours, theirs in zip(plain[part.stage_index].parameters(), part.submod.parameters()):
            torch.testing.assert_close(theirs.grad, ours.grad)


def run_rank(rank, rendezvous, ranks, sections):
    torch.set_num_threads(1)
    # A warm-up message to itself is all that keeps V placement, with neighbouring stages on one rank, from gloo.
    PipelineStage._get_init_p2p_neighbors_ops = lambda self: []
    dist.init_process_group("gloo", init_method="file://" + rendezvous, rank=rank, world_size=ranks)
    for path, micro_batches, text in sections:
        run_schedule(rank, text, micro_batches)
        dist.barrier()
        if rank == 0:
            print(f"{path}: {ranks} ranks, {micro_batches} micro-batches: gradients equal", flush=True)
    dist.destroy_process_group()


def run(files):
    sections = {ranks: [] for ranks in RANKS}
    for path in files:
        with open(path) as file:
            found = re.split(r"^# ranks (\d+), micro-batches (\d+)\n", file.read(), flags=re.M)[1:]
        for ranks, micro_batches, text in zip(found[0::3], found[1::3], found[2::3]):
            if int(ranks) in sections:
                sections[int(ranks)].append((path, int(micro_batches), text))
    for ranks, work in sections.items():
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(run_rank, args=(folder + "/rendezvous", ranks, work), nprocs=ranks)


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "write":
        write(sys.argv[2])
    elif len(sys.argv) > 2 and sys.argv[1] == "run":
        run(sys.argv[2:])
    else:
        sys.exit(__doc__)
