"""Small tensors are faster on one thread, and threads that wait for each other on a busy machine are very slow."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
