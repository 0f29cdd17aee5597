"""Schedules as text between Atoll and torch.distributed.pipelining, both ways. Run with tests/peers/setup.sh's python.

  torch_schedules.py write FOLDER   writes schedules of PyTorch's generators, as tests/golden/schedules/pytorch holds them
  torch_schedules.py run FILE ...   runs the two-stage schedules of golden files in PyTorch's runtime over gloo and compares
                                    gradients with one process
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
    ):
        stages = [NamedStage(ranks, 2 * ranks, i) for i in range(2)]
        order = generator(stages, micro_batches, loss_fn=lambda a, b: 0).pipeline_order
        with open(os.path.join(folder, name + ".csv"), "w", newline="") as file:
            csv.writer(file).writerows(order[rank] for rank in range(ranks))


def modules():
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(2)]


def run_rank(rank, rendezvous, text, micro_batches):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + rendezvous, rank=rank, world_size=2)
    x = torch.randn(4 * micro_batches, 8, generator=torch.Generator().manual_seed(1))
    y = torch.zeros_like(x)
    stage = PipelineStage(modules()[rank], rank, 2, torch.device("cpu"))
    runtime = schedules._PipelineScheduleRuntime([stage], micro_batches, loss_fn=nn.functional.mse_loss)
    with tempfile.NamedTemporaryFile("w", suffix=".csv") as file:
        file.write(text)
        file.flush()
        runtime._load_csv(file.name)
    runtime.step(x) if rank == 0 else runtime.step(target=y)

    plain = modules()
    for part, goal in zip(x.chunk(micro_batches), y.chunk(micro_batches)):
        (nn.functional.mse_loss(plain[1](plain[0](part)), goal) / micro_batches).backward()
    for ours, theirs in zip(plain[rank].parameters(), stage.submod.parameters()):
        torch.testing.assert_close(ours.grad, theirs.grad)
    dist.destroy_process_group()


def run(files):
    for path in files:
        with open(path) as file:
            sections = re.split(r"^# ranks (\d+), micro-batches (\d+)\n", file.read(), flags=re.M)[1:]
        for stages, micro_batches, text in zip(sections[0::3], sections[1::3], sections[2::3]):
            if stages != "2":
                continue
            with tempfile.TemporaryDirectory() as folder:
                mp.spawn(run_rank, args=(folder + "/rendezvous", text, int(micro_batches)), nprocs=2)
            print(f"{path}: 2 stages, {micro_batches} micro-batches: gradients equal")


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "write":
        write(sys.argv[2])
    elif len(sys.argv) > 2 and sys.argv[1] == "run":
        run(sys.argv[2:])
    else:
        sys.exit(__doc__)
