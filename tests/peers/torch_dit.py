"""Atoll's networks written a second time, in plain PyTorch from docs/formats.md and the papers, with none of its code: does a
published model version answer its probe as Atoll does?

    python tests/peers/torch_dit.py FOLDER [--tolerance 1e-5]

FOLDER holds model_index.json. One JSON object per network on standard output: `relative` is the norm of the difference over the
norm of Atoll's answer, in float32; `relative_float64` the same against this script in float64, `peer_float64` this script's own
float32 against it. Exits with 1 when a `relative` is above the tolerance, or a file is not the one that the index names.
"""

import argparse
import hashlib
import json
import math
import pathlib
import struct
import sys

import torch

DTYPES = {"F32": torch.float32, "F64": torch.float64, "BF16": torch.bfloat16, "I64": torch.int64}


def read_safetensors(path):
    data = path.read_bytes()
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])
    tensors = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        raw = bytearray(data[8 + length + begin : 8 + length + end])
        tensors[name] = torch.frombuffer(raw, dtype=DTYPES[entry["dtype"]]).reshape(entry["shape"])
    return tensors


class Dit:
    """One network: a DiT with adaLN-Zero (arXiv 2212.09748), its head a velocity or logits."""

    def __init__(self, config, weights, dtype):
        self.config = config
        self.dtype = dtype
        self.weights = {name: tensor.to(dtype) for name, tensor in weights.items()}

    def linear(self, name, x):
        return torch.einsum("...i,oi->...o", x, self.weights[f"{name}.weight"]) + self.weights[f"{name}.bias"]

    def positions(self):
        config = self.config
        quarter = config["width"] // 4
        rows, columns = config["height"] // config["patch"], config["width_pixels"] // config["patch"]
        table = torch.empty(rows * columns, config["width"], dtype=torch.float64)
        for row in range(rows):
            for column in range(columns):
                values = []
                for place in (column, row):
                    angles = [place / 10000 ** (i / quarter) for i in range(quarter)]
                    values += [math.sin(a) for a in angles] + [math.cos(a) for a in angles]
                table[row * columns + column] = torch.tensor(values, dtype=torch.float64)
        return table.to(self.dtype)

    def conditioning(self, t, classes):
        frequencies = torch.tensor([10000 ** (-i / 128) for i in range(128)], dtype=torch.float64).to(self.dtype)
        angles = 1000 * t.to(self.dtype)[:, None] * frequencies
        c = self.linear("embed.time.in", torch.cat([torch.cos(angles), torch.sin(angles)], dim=1))
        c = self.linear("embed.time.out", c * torch.sigmoid(c))
        if self.config["classes"] > 0:
            c = c + self.weights["embed.class.weight"][classes]
        return c * torch.sigmoid(c)

    @staticmethod
    def normalise(x):
        centred = x - x.mean(-1, keepdim=True)
        return centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + 1e-6)

    def modulated(self, x, shift, scale):
        return self.normalise(x) * (1 + scale[:, None, :]) + shift[:, None, :]

    def attention(self, name, x):
        n, tokens, width = x.shape
        heads = self.config["heads"]
        qkv = self.linear(f"{name}.qkv", x).reshape(n, tokens, 3, heads, width // heads)
        q, k, v = qkv[:, :, 0], qkv[:, :, 1], qkv[:, :, 2]
        scores = torch.einsum("nqhd,nkhd->nhqk", q, k) / math.sqrt(width // heads)
        weights = torch.softmax(scores, dim=-1)
        return self.linear(f"{name}.proj", torch.einsum("nhqk,nkhd->nqhd", weights, v).reshape(n, tokens, width))

    @staticmethod
    def gelu(x):
        return 0.5 * x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))

    def __call__(self, x, t, classes, estimate=None):
        config = self.config
        x = x.to(self.dtype)
        if config.get("self_conditioning", False):
            x = torch.cat([x, torch.zeros_like(x) if estimate is None else estimate.to(self.dtype)], dim=1)
        patch = config["patch"]
        # A patch is a convolution's window that moves by its own size.
        kernel = self.weights["embed.patch.weight"].reshape(config["width"], x.shape[1], patch, patch)
        tokens = torch.nn.functional.conv2d(x, kernel, self.weights["embed.patch.bias"], stride=patch)
        tokens = tokens.flatten(2).transpose(1, 2) + self.positions()
        c = self.conditioning(t, classes)
        for block in range(config["depth"]):
            name = f"blocks.{block}"
            m = self.linear(f"{name}.modulation", c).chunk(6, dim=1)
            tokens = tokens + m[2][:, None, :] * self.attention(f"{name}.attention", self.modulated(tokens, m[0], m[1]))
            hidden = self.gelu(self.linear(f"{name}.mlp.in", self.modulated(tokens, m[3], m[4])))
            tokens = tokens + m[5][:, None, :] * self.linear(f"{name}.mlp.out", hidden)
        shift, scale = self.linear("head.modulation", c).chunk(2, dim=1)
        tokens = self.modulated(tokens, shift, scale)
        if config["outputs"] > 0:
            return torch.softmax(self.linear("head.out", tokens.mean(1)), dim=-1)
        out = self.linear("head.out", tokens)
        # [n, tokens, (row in patch, column in patch, channel)] -> [n, channels, height, width]
        picture = torch.empty(x.shape[0], config["channels"], config["height"], config["width_pixels"], dtype=self.dtype)
        columns = config["width_pixels"] // patch
        for token in range(out.shape[1]):
            row, column = token // columns * patch, token % columns * patch
            values = out[:, token].reshape(-1, patch, patch, config["channels"])
            picture[:, :, row : row + patch, column : column + patch] = values.permute(0, 3, 1, 2)
        return picture


def relative(found, expected):
    return float((found.double() - expected.double()).norm() / expected.double().norm())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--tolerance", type=float, default=1e-5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)

    index = json.loads((arguments.folder / "model_index.json").read_text())
    if "probe" not in index:
        sys.exit(f"{arguments.folder}: expected a model version with a probe, found one without")
    for file in index["files"]:
        found = hashlib.sha256((arguments.folder / file["name"]).read_bytes()).hexdigest()
        if found != file["sha256"]:
            sys.exit(f"{file['name']}: expected SHA-256 {file['sha256']}, found {found}")
    probe = read_safetensors(arguments.folder / index["probe"])

    worst = 0.0
    with torch.no_grad():
        for part in [f"expert_{k}" for k in range(index["experts"])] + ["router"]:
            config = json.loads((arguments.folder / part / "config.json").read_text())
            weights = read_safetensors(arguments.folder / part / "diffusion_pytorch_model.safetensors")
            inputs = (probe["x"], probe["t"], probe["class"], None if part == "router" else probe.get("estimate"))
            atoll = probe["posterior" if part == "router" else f"velocity.{part.removeprefix('expert_')}"]
            single = Dit(config, weights, torch.float32)(*inputs)
            double = Dit(config, weights, torch.float64)(*inputs)
            figure = relative(atoll, single)
            worst = max(worst, figure)
            print(json.dumps({
                "network": part,
                "relative": figure,
                "relative_float64": relative(atoll, double),
                "peer_float64": relative(single, double),
                "rows": atoll.shape[0],
                "norm": float(atoll.double().norm()),
            }))
    if not worst <= arguments.tolerance:
        sys.exit(f"expected answers within {arguments.tolerance} of each other, found {worst}")


if __name__ == "__main__":
    main()
