#!/usr/bin/env python3
"""The training step of gpu_checks' dit-b2 cases in PyTorch: eager, then with torch.compile.

    dit_step.py [--steps N] [--compute float32|bfloat16] [--device cuda|cpu] [--small]

One JSON object per line on standard output, with the metrics of gpu_checks: cases dit-b2-<compute>-eager and -compile.
The work is the same, with the same fused operations (torch.addcmul for modulation and gates): a DiT-B/2 over 4 x 32 x 32 latents, batch 64, fp32 weights, gradient norm and clipping, fused AdamW,
EMA. bfloat16 is autocast. The batch lies on the device from the start and its noise is drawn there, which favours
PyTorch: gpu_checks reads samples and draws noise on the host at every step.
"""
import argparse
import copy
import json
import math
import statistics
import sys
import time

import torch
from torch import nn
from torch.nn import functional as F


def norm_modulate(x, shift, scale):
    return torch.addcmul(shift, F.layer_norm(x, x.shape[-1:], eps=1e-6), scale + 1)


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.modulation = nn.Linear(width, 6 * width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.mlp_in = nn.Linear(width, 4 * width)
        self.mlp_out = nn.Linear(4 * width, width)

    def forward(self, x, c):
        n, tokens, width = x.shape
        m = [part.unsqueeze(1) for part in self.modulation(c).chunk(6, 1)]
        hidden = norm_modulate(x, m[0], m[1])
        q, k, v = self.qkv(hidden).view(n, tokens, 3, self.heads, width // self.heads).unbind(2)
        hidden = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        x = torch.addcmul(x, m[2], self.proj(hidden.transpose(1, 2).reshape(n, tokens, width)))
        hidden = norm_modulate(x, m[3], m[4])
        return torch.addcmul(x, m[5], self.mlp_out(F.gelu(self.mlp_in(hidden), approximate="tanh")))


class Dit(nn.Module):
    def __init__(self, channels, side, patch, width, depth, heads, classes):
        super().__init__()
        self.shape = (channels, side, patch)
        tokens = (side // patch) ** 2
        self.patches = nn.Linear(channels * patch * patch, width)
        self.register_buffer("positions", torch.randn(1, tokens, width) * 0.02)
        self.register_buffer("frequencies", torch.exp(torch.arange(128) * (-math.log(10000.0) / 128)))
        self.time_in = nn.Linear(256, width)
        self.time_out = nn.Linear(width, width)
        self.labels = nn.Embedding(classes + 1, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        self.modulation = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, channels * patch * patch)
        for linear in [block.modulation for block in self.blocks] + [self.modulation, self.out]:
            nn.init.zeros_(linear.weight)
            nn.init.zeros_(linear.bias)

    def forward(self, x, t, labels):
        channels, side, p = self.shape
        n, cells = x.shape[0], side // p
        x = x.view(n, channels, cells, p, cells, p).permute(0, 2, 4, 1, 3, 5).reshape(n, cells * cells, channels * p * p)
        x = self.patches(x) + self.positions
        angle = (t * 1000).unsqueeze(1) * self.frequencies
        c = self.time_out(F.silu(self.time_in(torch.cat([angle.cos(), angle.sin()], 1)))) + self.labels(labels)
        c = F.silu(c)
        for block in self.blocks:
            x = block(x, c)
        shift, scale = (part.unsqueeze(1) for part in self.modulation(c).chunk(2, 1))
        x = self.out(norm_modulate(x, shift, scale))
        return x.view(n, cells, cells, p, p, channels).permute(0, 5, 1, 3, 2, 4).reshape(n, channels, side, side)


def measure(args, compiled):
    torch.manual_seed(3)
    device = torch.device(args.device)
    width, depth, heads, batch = (64, 2, 4, 4) if args.small else (768, 12, 12, 64)
    model = Dit(4, 32, 2, width, depth, heads, 1000).to(device)
    averages = [p.detach().clone() for p in model.parameters()]
    parameters = list(model.parameters())
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)
    forward = torch.compile(model) if compiled else model
    pixels = torch.randn(batch, 4, 32, 32, device=device)
    labels = torch.randint(0, 1000, (batch,), device=device)

    def step():
        noise = torch.randn_like(pixels)
        t = torch.rand(batch, device=device)
        mixed = (1 - t.view(-1, 1, 1, 1)) * pixels + t.view(-1, 1, 1, 1) * noise
        with torch.autocast(device.type, torch.bfloat16, enabled=args.compute == "bfloat16"):
            out = forward(mixed, t, labels)
        loss = F.mse_loss(out.float(), noise - pixels)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 1.0, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        torch._foreach_lerp_(averages, [p.detach() for p in parameters], 1e-4)
        return loss.item()

    for _ in range(5):
        step()
    seconds, losses = [], []
    for _ in range(args.steps):
        start = time.perf_counter()
        losses.append(step())
        seconds.append(time.perf_counter() - start)
    case = f"dit-b2-{args.compute.replace('float32', 'fp32').replace('bfloat16', 'bf16')}-{'compile' if compiled else 'eager'}"
    for metric, value, unit in [("step", statistics.median(seconds), "s"),
                                ("images_per_second", batch / statistics.median(seconds), "1/s")]:
        print(json.dumps({"case": case, "metric": metric, "value": value, "unit": unit}), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--compute", choices=["float32", "bfloat16"], default="bfloat16")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--small", action="store_true", help="a model for trying this script without a GPU")
    args = parser.parse_args()
    if args.device == "cuda" and not torch.cuda.is_available():
        print("SKIPPED dit_step: expected a CUDA device, PyTorch found none", file=sys.stderr)
        sys.exit(77)
    measure(args, compiled=False)
    measure(args, compiled=True)


if __name__ == "__main__":
    main()
