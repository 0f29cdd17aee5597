"""Checks that the PyTorch rivals do all of the work that they are measured with. Run with tests/peers/setup.sh's python."""
import os
import sys
import types
import unittest

import torch

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import torch_pipeline
import torch_serving


def blocks(schedule, rank, world, depth):
    args = types.SimpleNamespace(schedule=schedule, rank=rank, world=world, depth=depth, width=8, heads=2, mlp_ratio=1.0,
                                 channels=1, patch=2, classes=2)
    modules = [module for _, module in torch_pipeline.Stages(args).modules(args, side=4)]
    return sum(isinstance(layer, torch_pipeline.Block) for module in modules for layer in module.layers)


class Pipeline(unittest.TestCase):
    def test_the_ranks_have_every_block_together(self):
        for schedule in ("1f1b", "zbv"):
            for depth in (4, 5, 6, 7, 8):
                self.assertEqual(sum(blocks(schedule, rank, 2, depth) for rank in (0, 1)), depth, (schedule, depth))

    def test_blocks_that_do_not_divide_are_shared_out_evenly(self):
        self.assertEqual([blocks("zbv", rank, 2, 6) for rank in (0, 1)], [3, 3])
        self.assertEqual([blocks("1f1b", rank, 2, 5) for rank in (0, 1)], [3, 2])


class Serving(unittest.TestCase):
    def test_images_are_the_same_in_groups_of_any_size(self):
        args = torch_serving.parse(["--experts", "3", "--side", "4", "--width", "16", "--depth", "2", "--router-width", "16",
                                    "--router-depth", "1", "--steps", "4"])
        router, experts = torch_serving.networks(args)
        alone, *others = [torch.cat(torch_serving.draw(args, router, experts, 10, group, 3)) for group in (1, 4, 10)]
        self.assertEqual(alone.shape, (10, 4, 4, 4))
        for images in others:
            torch.testing.assert_close(images, alone, rtol=1e-4, atol=1e-5)


if __name__ == "__main__":
    unittest.main()
