"""One rank of torch.distributed.pipelining's 1F1B or ZBV over gloo, on the model and the step that tests/bench/pipeline measures.

Driven step by step: reads lines from standard input, "step" runs one training step and answers on standard output with
"<start> <end> <cpu> <page faults>", three times in seconds, the first two of CLOCK_MONOTONIC (shared by all processes of the
machine); "quit" or the end ends it. Between steps it blocks in a read and uses no CPU. The first line that it writes is "ready".
"""

import argparse
import math
import resource
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleZBVZeroBubble


class Embed(nn.Module):
    def __init__(self, channels, patch, side, width, classes):
        super().__init__()
        self.channels, self.patch, self.side = channels, patch, side
        self.patch_in = nn.Linear(channels * patch * patch, width)
        self.time_in = nn.Linear(256, width)
        self.time_out = nn.Linear(width, width)
        self.classes = nn.Embedding(classes + 1, width)
        self.register_buffer("position", torch.zeros(1, (side // patch) ** 2, width))
        self.register_buffer("frequencies", torch.exp(torch.arange(128) * (-math.log(10000.0) / 128)))

    def forward(self, x, t, y):
        n, p, cells = x.size(0), self.patch, self.side // self.patch
        patches = x.reshape(n, self.channels, cells, p, cells, p).permute(0, 2, 4, 1, 3, 5)
        tokens = self.patch_in(patches.reshape(n, cells * cells, -1)) + self.position
        angle = (t * 1000).unsqueeze(1) * self.frequencies
        c = self.time_out(F.silu(self.time_in(torch.cat([angle.cos(), angle.sin()], 1))))
        return tokens, F.silu(c + self.classes(y))


def norm_modulate(x, shift, scale):
    return torch.addcmul(shift.unsqueeze(1), F.layer_norm(x, x.shape[-1:], eps=1e-6), scale.unsqueeze(1) + 1)


class Block(nn.Module):
    """adaLN-Zero, as in DiT; modulation starts small instead of zero so that no kernel sees only zeros."""

    def __init__(self, width, heads, mlp_ratio):
        super().__init__()
        self.heads = heads
        self.modulation = nn.Linear(width, 6 * width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.mlp_in = nn.Linear(width, int(mlp_ratio * width))
        self.mlp_out = nn.Linear(int(mlp_ratio * width), width)

    def forward(self, x, c):
        m = self.modulation(c).chunk(6, 1)
        n, tokens, width = x.shape
        q, k, v = self.qkv(norm_modulate(x, m[0], m[1])).view(n, tokens, 3, self.heads, width // self.heads).unbind(2)
        out = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        y = torch.addcmul(x, m[2].unsqueeze(1), self.proj(out.transpose(1, 2).reshape(n, tokens, width)))
        hidden = F.gelu(self.mlp_in(norm_modulate(y, m[3], m[4])), approximate="tanh")
        return torch.addcmul(y, m[5].unsqueeze(1), self.mlp_out(hidden)), c


class Head(nn.Module):
    def __init__(self, channels, patch, side, width):
        super().__init__()
        self.channels, self.patch, self.side = channels, patch, side
        self.modulation = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, patch * patch * channels)

    def forward(self, x, c):
        m = self.modulation(c).chunk(2, 1)
        n, p, cells = x.size(0), self.patch, self.side // self.patch
        patches = self.out(norm_modulate(x, m[0], m[1])).view(n, cells, cells, p, p, self.channels)
        return patches.permute(0, 5, 1, 3, 2, 4).reshape(n, self.channels, self.side, self.side)


class Stage(nn.Module):
    def __init__(self, layers):
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, *inputs):
        flow = inputs
        for layer in self.layers:
            flow = layer(*flow)
        if isinstance(flow, torch.Tensor):
            return flow
        # A split backward detaches a stage's outputs in place; what goes through unchanged is an input too.
        return tuple(out.clone() if any(out is entered for entered in inputs) else out for out in flow)


def clip_scale(parameters, limit):
    """The scale that clips the gradient norm over all stages, as the step of every trainer does."""
    squares = torch.stack(torch._foreach_norm([p.grad for p in parameters])).square().sum()
    dist.all_reduce(squares)
    return min(1.0, limit / max(math.sqrt(squares.item()), 1e-12))


class Stages:
    """Which stages lie on this rank: one for 1F1B; for ZBV the rank-th from the front and the rank-th from the back."""

    def __init__(self, args):
        self.count = args.world * (2 if args.schedule == "zbv" else 1)
        self.here = [args.rank, self.count - 1 - args.rank] if args.schedule == "zbv" else [args.rank]

    def modules(self, args, side):
        """The model's layers, cut into stages; where the blocks do not divide, the first stages have one more each."""
        for stage in self.here:
            blocks = args.depth // self.count + (stage < args.depth % self.count)
            layers = [Block(args.width, args.heads, args.mlp_ratio) for _ in range(blocks)]
            if stage == 0:
                layers.insert(0, Embed(args.channels, args.patch, side, args.width, args.classes))
            if stage == self.count - 1:
                layers.append(Head(args.channels, args.patch, side, args.width))
            yield stage, Stage(layers)


class LocalStage(PipelineStage):
    def _get_init_p2p_neighbors_ops(self):
        # Its warm-up sends a message to the rank itself, which gloo cannot; gloo needs no warm-up.
        return []


class Trainer:
    def __init__(self, args):
        torch.manual_seed(args.rank)
        side = args.patch * math.isqrt(args.tokens)
        stages = Stages(args)
        self.modules = nn.ModuleList()
        parts = []
        for index, module in stages.modules(args, side):
            self.modules.append(module)
            parts.append(LocalStage(module, index, stages.count, torch.device("cpu")))
        self.first = 0 in stages.here
        self.last = stages.count - 1 in stages.here
        if args.schedule == "zbv":
            self.schedule = ScheduleZBVZeroBubble(parts, args.micro_batches, loss_fn=F.mse_loss)
        else:
            self.schedule = Schedule1F1B(parts[0], args.micro_batches, loss_fn=F.mse_loss)
        self.parameters = list(self.modules.parameters())
        self.optimizer = torch.optim.AdamW(self.parameters, lr=1e-3, weight_decay=0.0, fused=True)
        self.ema = [p.detach().clone() for p in self.parameters]
        batch = args.micro_batches * args.micro_batch_size
        self.x = torch.randn(batch, args.channels, side, side)
        self.t = torch.rand(batch)
        self.y = torch.randint(0, args.classes, (batch,))
        self.target = torch.randn(batch, args.channels, side, side)

    def step(self):
        inputs = (self.x, self.t, self.y) if self.first else ()
        if self.last:
            self.schedule.step(*inputs, target=self.target, losses=[])
        else:
            self.schedule.step(*inputs)
        with torch.no_grad():
            scale = clip_scale(self.parameters, 1.0)
            if scale != 1.0:
                torch._foreach_mul_([p.grad for p in self.parameters], scale)
            self.optimizer.step()
            self.optimizer.zero_grad(set_to_none=True)
            torch._foreach_lerp_(self.ema, self.parameters, 1e-3)


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--world", type=int, required=True)
    parser.add_argument("--schedule", choices=("1f1b", "zbv"), default="1f1b")
    parser.add_argument("--rendezvous", required=True, help="a file that does not exist yet")
    for name, value in (("depth", 8), ("width", 256), ("heads", 4), ("patch", 2), ("tokens", 64), ("channels", 1),
                        ("classes", 10), ("micro-batches", 8), ("micro-batch-size", 8)):
        parser.add_argument("--" + name, type=int, default=value)
    parser.add_argument("--mlp-ratio", type=float, default=4.0)
    return parser.parse_args()


def main():
    args = parse()
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method="file://" + args.rendezvous, rank=args.rank, world_size=args.world)
    trainer = Trainer(args)
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() != "step":
            break
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        start, cpu = time.monotonic(), time.process_time()
        trainer.step()
        end, cpu = time.monotonic(), time.process_time() - cpu
        faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults
        print(f"{start:.9f} {end:.9f} {cpu:.6f} {faults}", flush=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
