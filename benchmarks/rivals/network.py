"""The encoder of leco's laptop preset, for the rivals: MiniGrid's cells as categories, and two convolutions.

N     observations        C    3 x 49, the numbers of an observation
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

WIDTH = 64  # of the features, and of the recurrent core
CELL_VALUES = (11, 6, 4)  # objects, colours and states


class OneHotCells(nn.Module):
    """[N, 7, 7, 3] -> [N, 21, 7, 7], ones and zeros."""

    offset_C: Tensor

    def __init__(self) -> None:
        super().__init__()
        first_3 = torch.tensor(CELL_VALUES).cumsum(0) - torch.tensor(CELL_VALUES)
        self.register_buffer("offset_C", (first_3 * 49 + torch.arange(49).unsqueeze(1)).flatten(), persistent=False)

    def forward(self, observation_NHWC: Tensor) -> Tensor:
        """Of any type that holds small integers."""
        index_NC = 49 * observation_NHWC.flatten(1).long() + self.offset_C
        zeros = torch.zeros(index_NC.shape[0], 49 * 21, device=index_NC.device)
        return zeros.scatter_(1, index_NC, 1.0).view(-1, 21, 7, 7)


def encoder() -> nn.Sequential:
    """[N, 7, 7, 3] -> [N, WIDTH]; weights begin orthogonal."""
    layers = nn.Sequential(
        OneHotCells(),
        *(nn.Conv2d(21, 32, 3, stride=2, padding=1), nn.ELU()),
        *(nn.Conv2d(32, 32, 3, stride=2, padding=1), nn.ELU()),
        nn.Flatten(),
        nn.Linear(128, WIDTH),
    )
    for layer in layers:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.orthogonal_(layer.weight, 2**0.5)
            nn.init.zeros_(layer.get_parameter("bias"))
    return layers
