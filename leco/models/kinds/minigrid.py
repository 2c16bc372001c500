"""MiniGrid's view: 7 x 7 cells of (object, colour, state).

N     observations
C     3 x 49, the numbers of an observation
F     features
P     bits of a code
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from leco.algo.hashes import digest, pack_bits
from leco.models.autoencoder import Chain, Decoder, Scale, down, up
from leco.models.exploration import Embedding
from leco.models.intrinsic import WIDTH
from leco.models.kinds.table import MINIGRID, Autoencoder, Features
from leco.models.policy import PAPER_WIDTH, Policy, begin_orthogonal
from leco.models.weighted_norm import Normed

if TYPE_CHECKING:
    from leco.config.training import NetworkConfig
    from leco.models.kinds.table import Kind

FEATURE_WIDTH = 128
OBJECT_CODE_WIDTH = 35
CELL_VALUES = (11, 6, 4)  # objects, colours and states that MiniGrid has
CELL_LEVELS = 2
_TOKENS = math.prod(CELL_VALUES)
_AGENT = 3 * 7 + 6  # its own cell, in the middle of the last row of the view
_FLOOR = 3  # MiniGrid's numbers: 0 unseen, 1 empty, 2 wall, 3 floor; objects after them


class OneHotCells(nn.Module):
    """Cells of (object, colour, state) as categories: [N, 3, 7, 7] -> [N, 21, 7, 7].

    A value that MiniGrid does not have counts as the largest one.
    """

    channels = sum(CELL_VALUES)
    first_31: Tensor
    largest_31: Tensor
    cell_P: Tensor

    def __init__(self) -> None:
        super().__init__()
        values = torch.tensor(CELL_VALUES).unsqueeze(1)
        self.register_buffer("first_31", values.cumsum(0) - values, persistent=False)  # channel of each one's value 0
        self.register_buffer("largest_31", values - 1, persistent=False)
        self.register_buffer("cell_P", torch.arange(49), persistent=False)

    def forward(self, value_N3HW: Tensor) -> Tensor:
        """Ones and zeros, of the type of what is given."""
        value_N3P = torch.minimum(value_N3HW.flatten(2).long(), self.largest_31)
        index_N3P = (value_N3P + self.first_31) * self.cell_P.shape[0] + self.cell_P
        categories = value_N3HW.new_zeros(value_N3HW.shape[0], self.channels * self.cell_P.shape[0])
        return categories.scatter_(1, index_N3P.flatten(1), 1).view(-1, self.channels, *value_N3HW.shape[2:])


class MiniGridPolicy(Policy):
    """The paper's policy for MiniGrid: the integers enter the first convolution as they are; no previous action and reward.

    With one-hot cells it tells objects, colours and states apart from the beginning, and the last convolution, which leaves 32
    numbers of a view, is left out. On ObstructedMaze-1Q its value explains 60 to 80 % of returns where the paper's explains 10.

    Weights begin orthogonal, with a gain that keeps the size of what passes through the encoder. With torch's own beginnings the
    observation's share of the gates varied by 0.005 (now by 0.13), and agents that count explored more slowly (docs/results).
    """

    def __init__(self, num_actions: int, width: int = PAPER_WIDTH, *, one_hot: bool = False) -> None:
        encoder = nn.Sequential(
            *([OneHotCells()] if one_hot else []),
            *(nn.Conv2d(OneHotCells.channels if one_hot else 3, 32, 3, stride=2, padding=1), nn.ELU()),
            *(nn.Conv2d(32, 32, 3, stride=2, padding=1), nn.ELU()),
            *([] if one_hot else [nn.Conv2d(32, 32, 3, stride=2, padding=1), nn.ELU()]),
            nn.Flatten(),  # 7 -> 4 -> 2: 128 numbers; -> 1: 32
            nn.Linear(128 if one_hot else 32, width),
        )
        super().__init__(
            num_actions, encoder, image=MINIGRID.shape, width=width, layers=1, use_last_action_reward=False
        )
        begin_orthogonal(self)


class CellFeatures(nn.Module):
    """A linear layer on the one-hot (object, colour, state) of each cell, and a ReLU.

    It is a sum of 147 rows of a table, so no one-hot vector is ever made.
    """

    offset_C: Tensor
    largest_C: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        values = torch.tensor(CELL_VALUES)
        of_cell = torch.cat([torch.zeros(1, dtype=torch.long), values.cumsum(0)[:-1]])
        offset = torch.arange(49).unsqueeze(1) * values.sum() + of_cell
        self.register_buffer("offset_C", offset.flatten(), persistent=False)
        self.register_buffer("largest_C", (values - 1).repeat(49), persistent=False)
        self.table = nn.Parameter(torch.randn(49 * int(values.sum()), width) / math.sqrt(147))
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, observation_NHWC: Tensor, _weight_N: Tensor | None = None) -> Tensor:
        """[N, 7, 7, 3] -> [N, F]. A value that MiniGrid does not have counts as the largest one."""
        value_NC = torch.minimum(observation_NHWC.flatten(1).long(), self.largest_C)
        return functional.relu(functional.embedding_bag(value_NC + self.offset_C, self.table, mode="sum") + self.bias)


def build_policy(_kind: Kind, num_actions: int, network: NetworkConfig) -> Policy:
    """The paper's policy, or the one that sees categories."""
    return MiniGridPolicy(num_actions, network.width, one_hot=network.encoder == "one-hot")


def build_autoencoder(_kind: Kind, size: tuple[int, int]) -> Autoencoder:
    """z_e of h x w is made from a picture of 4h x 4w, which is halved twice: 12 x 12 for the paper's 3 x 3."""
    first = Normed(nn.Conv2d(3, WIDTH, 3, padding=1, bias=False), relu=True)
    encoder = Chain([first, down(WIDTH, WIDTH), down(WIDTH, WIDTH)])
    decoder = Decoder([up(WIDTH), up(WIDTH)], nn.Conv2d(WIDTH, 3, 3, padding=1))
    return Autoencoder(Scale(MINIGRID.shape, MINIGRID.channel_max, (4 * size[0], 4 * size[1])), encoder, decoder)


def build_features(_kind: Kind) -> Features:
    """One linear layer on one-hot cells."""
    return Features(CellFeatures(FEATURE_WIDTH), FEATURE_WIDTH)


def build_embedding(_kind: Kind) -> Embedding:
    """As NovelD and RIDE have it for MiniGrid's views: three convolutions, 7 -> 4 -> 2 -> 1, to 128 features."""
    sizes = ((3, 32), (32, 32), (32, 128))
    layers = [each for a, b in sizes for each in (nn.Conv2d(a, b, 3, stride=2, padding=1), nn.ELU())]
    return Embedding(nn.Sequential(*layers, nn.Flatten()), 128, MINIGRID.shape, 1.0)


def cell_number(observation_NHWC: Tensor) -> Tensor:
    """The number of each cell's (object, colour, state), int64 [N, 49]. A value that MiniGrid does not have is the largest."""
    if observation_NHWC.ndim != 4 or observation_NHWC.shape[1:] != MINIGRID.shape:
        raise ValueError(f"observation_NHWC has shape {tuple(observation_NHWC.shape)}, expected [N, 7, 7, 3]")
    most_3 = torch.tensor(CELL_VALUES, device=observation_NHWC.device) - 1
    object_NC, colour_NC, state_NC = torch.minimum(observation_NHWC.flatten(1, 2).long(), most_3).unbind(-1)
    _, colours, states = CELL_VALUES
    return (object_NC * colours + colour_NC) * states + state_NC


def cells_code(observation_NHWC: Tensor) -> Tensor:
    """`levels_code` of the cells as they are, of which all that are no objects count as one. uint8 [N, 2 x 16]."""
    number_NC = cell_number(observation_NHWC)
    return levels_code(torch.where(_is_object(number_NC), number_NC + 1, 0), _TOKENS + 1)


def levels_code(code_NC: Tensor, codes: int) -> Tensor:
    """Two codes of each view, as digests: what is in view, wherever it is, and in hand; what is in hand and in front.

    code_NC  [N, 49], a number for each cell, below `codes`

    Returns uint8 [N, 2 x 16].
    """
    hand_N2, front_N2 = _two_bytes(code_NC[:, _AGENT]), _two_bytes(code_NC[:, _AGENT - 1])
    in_view_NW = torch.cat([pack_bits(_in_view(code_NC, codes)), hand_N2], 1)
    return torch.cat([digest(in_view_NW, 1), digest(torch.cat([hand_N2, front_N2], 1), 2)], 1)


def _in_view(code_NC: Tensor, codes: int) -> Tensor:
    """Which of `codes` numbers any cell has, the agent's own left out: bool [N, codes]."""
    others_NC = torch.cat([code_NC[:, :_AGENT], code_NC[:, _AGENT + 1 :]], 1)
    seen_NK = torch.zeros(len(code_NC), codes, dtype=torch.bool, device=code_NC.device)
    return seen_NK.scatter_(1, others_NC, value=True)


def _two_bytes(number_N: Tensor) -> Tensor:
    return torch.stack([number_N // 256, number_N % 256], 1).to(torch.uint8)


def _is_object(number_NC: Tensor) -> Tensor:
    _, colours, states = CELL_VALUES
    return number_NC >= (_FLOOR + 1) * colours * states


def objects_code(observation_NHWC: Tensor) -> Tensor:
    """Which objects are in view, wherever they are, and what the agent carries: uint8 [N, 35].

    A bit for each of the 264 (object, colour, state), set if it is in view; walls, floors and what cannot be seen are no objects.
    Two bytes say what is in the agent's own cell, which is what it carries.

    observation_NHWC  uint8 [N, 7, 7, 3]
    """
    token_NC = cell_number(observation_NHWC)
    # One column more, for all that is no object.
    seen_NP = _in_view(torch.where(_is_object(token_NC), token_NC, _TOKENS), _TOKENS + 1)
    return torch.cat([pack_bits(seen_NP[:, :_TOKENS]), _two_bytes(token_NC[:, _AGENT])], 1)
