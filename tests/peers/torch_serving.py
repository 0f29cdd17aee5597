"""Draws images in PyTorch, the same shapes as tests/bench/serving measures: at every step the router network, then each image's
expert, the one that the router ranks first. Images are drawn in groups: groups of one are the loop of public samplers of
decentralized diffusion models; in a larger group the router network takes all images at once, and each expert all that are its own.

Reads lines from standard input: "draw N B" draws N images in groups of B and answers on standard output with
"<start> <end> <cpu>" in seconds, the first two of CLOCK_MONOTONIC; the end of the input ends it. Between draws it blocks in a
read and uses no CPU. The first line that it writes is "ready". Run with tests/peers/setup.sh's python.
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


def noise(args, image):
    return torch.randn(args.channels, args.side, args.side, generator=torch.Generator().manual_seed(image))


@torch.inference_mode()
def draw_group(args, router, experts, images):
    x = torch.stack([noise(args, image) for image in images])
    y = torch.tensor([image % args.classes for image in images])
    for step in range(args.steps):
        t = torch.full((len(images),), 1 - step / args.steps)
        choices = router(x, t, y).argmax(1)
        if len(images) == 1:
            x = x - experts[choices.item()](x, t, y) / args.steps
            continue
        velocity = torch.empty_like(x)
        for choice in choices.unique().tolist():
            rows = (choices == choice).nonzero().squeeze(1)
            velocity[rows] = experts[choice](x[rows], t[rows], y[rows])
        x = x - velocity / args.steps
    if not torch.isfinite(x).all():
        raise ValueError(f"images {images} are not finite")
    return x


def draw(args, router, experts, count, group, first):
    return [draw_group(args, router, experts, range(start, min(start + group, first + count)))
            for start in range(first, first + count, group)]


def networks(args):
    torch.manual_seed(0)
    router = Dit(args, args.router_width, args.router_depth, args.experts).eval()
    experts = [Dit(args, args.width, args.depth, 0).eval() for _ in range(args.experts)]
    with torch.no_grad():  # a fresh router would rank one expert first for nearly all classes
        for parameter in router.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return router, experts


def parse(arguments=None):
    parser = argparse.ArgumentParser()
    for name, default in (("experts", 8), ("classes", 64), ("channels", 4), ("side", 16), ("width", 256), ("depth", 8),
                          ("heads", 4), ("router-width", 64), ("router-depth", 4), ("steps", 10), ("threads", 1)):
        parser.add_argument("--" + name, type=int, default=default)
    return parser.parse_args(arguments)


def main():
    args = parse()
    torch.set_num_threads(args.threads)
    router, experts = networks(args)
    draw(args, router, experts, 4, 4, 0)
    print("ready", flush=True)
    first = 0
    for line in sys.stdin:
        word, count, group = line.split()
        if word != "draw":
            sys.exit(f"unknown command {line!r}")
        start, cpu = time.monotonic(), time.process_time()
        draw(args, router, experts, int(count), int(group), first)
        print(start, time.monotonic(), time.process_time() - cpu, flush=True)
        first += int(count)


if __name__ == "__main__":
    main()
