"""The images, which every client draws itself, and the network."""

from __future__ import annotations

import torch
from torch import Tensor, nn

CLASSES, SIDE = 10, 28


class LeNet5(nn.Module):
    """Two convolutions and three layers."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(),
            nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, CLASSES),
        )  # fmt: skip

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores of the classes."""
        return self.layers(images)


def samples(partition: int) -> tuple[Tensor, Tensor]:
    """Return what a client holds: noisy stripes, whose direction and width are the class.

    A stand-in for your own images, so that nothing has to be downloaded.
    """
    rng = torch.Generator().manual_seed(partition)
    size = int(40 + 300 / (1 + partition))
    known = torch.randperm(CLASSES, generator=rng)[: 2 + partition % 4]
    y = known[torch.randint(len(known), (size,), generator=rng)]
    angle = (y % 5 * torch.pi / 5)[:, None, None]
    width = (0.5 + 0.5 * (y // 5))[:, None, None]
    down, across = torch.meshgrid(torch.arange(SIDE), torch.arange(SIDE), indexing="ij")
    stripes = torch.sin(width * (down * torch.sin(angle) + across * torch.cos(angle)))
    noise = 0.5 * torch.randn(size, SIDE, SIDE, generator=rng)
    return (stripes + noise)[:, None], y
