"""The learner: receives trajectories, trains, publishes parameters, checkpoints."""

import os

# Torch's threads sleep when they have nothing to do, instead of spinning for some milliseconds on processors that the rest of
# the learner and the actors of the same machine have use for. OpenMP reads it when torch is loaded: nothing may load it before.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
