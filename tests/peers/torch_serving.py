"""A PyTorch loop over images, as public samplers of decentralized diffusion models draw: one image after the other, and at
every step the router network, then the expert that it ranks first. The same shapes as tests/bench/serving measures.

Reads lines from standard input: "draw N" draws N images and answers on standard output with "<start> <end> <cpu>" in seconds,
the first two of CLOCK_MONOTONIC; the end of the input ends it. Between draws it blocks in a read and uses no CPU. The first
line that it writes is "ready". Run with tests/peers/setup.sh's python.
"""

import argparse
import sys
import time

import torch
from torch import nn

from torch_pipeline import Block, Embed, Head, norm_modulate


class Dit(nn.Module):
    def __init__(self, args, width, depth, outputs):
        super().__init__()
        self.embed = Embed(args.channels, 2, args.side, width, args.classes)
        self.blocks = nn.ModuleList([Block(width, args.heads, 4.0) for _ in range(depth)])
        self.head = Head(args.channels, 2, args.side, width)
        if outputs:
            self.head.out = nn.Linear(width, outputs)
        self.outputs = outputs

    def forward(self, x, t, y):
        tokens, c = self.embed(x, t, y)
        for block in self.blocks:
            tokens, c = block(tokens, c)
        if not self.outputs:
            return self.head(tokens, c)
        shift, scale = self.head.modulation(c).chunk(2, 1)
        return self.head.out(norm_modulate(tokens, shift, scale).mean(1))


@torch.inference_mode()
def draw(args, router, experts, count, first):
    for image in range(first, first + count):
        generator = torch.Generator().manual_seed(image)
        x = torch.randn(1, args.channels, args.side, args.side, generator=generator)
        y = torch.tensor([image % args.classes])
        for step in range(args.steps):
            t = torch.full((1,), 1 - step / args.steps)
            expert = experts[router(x, t, y).argmax().item()]
            x = x - expert(x, t, y) / args.steps
        if not torch.isfinite(x).all():
            raise ValueError(f"image {image} is not finite")


def main():
    parser = argparse.ArgumentParser()
    for name, default in (("experts", 8), ("classes", 64), ("channels", 4), ("side", 16), ("width", 256), ("depth", 8),
                          ("heads", 4), ("router-width", 64), ("router-depth", 4), ("steps", 10), ("threads", 1)):
        parser.add_argument("--" + name, type=int, default=default)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(0)
    router = Dit(args, args.router_width, args.router_depth, args.experts).eval()
    experts = [Dit(args, args.width, args.depth, 0).eval() for _ in range(args.experts)]
    with torch.no_grad():  # a fresh router would rank one expert first for nearly all classes
        for parameter in router.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    draw(args, router, experts, 1, 0)
    print("ready", flush=True)
    first = 0
    for line in sys.stdin:
        word, count = line.split()
        if word != "draw":
            sys.exit(f"unknown command {line!r}")
        start, cpu = time.monotonic(), time.process_time()
        draw(args, router, experts, int(count), first)
        print(start, time.monotonic(), time.process_time() - cpu, flush=True)
        first += int(count)


if __name__ == "__main__":
    main()
