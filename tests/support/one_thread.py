"""Small tensors are faster on one thread, and threads that wait for each other on a busy machine are very slow."""

from __future__ import annotations

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # where two are used all the same, they sleep while they wait

import torch  # OpenMP reads it when torch is imported

torch.set_num_threads(1)
