"""Named starting points of an experiment: `preset = "laptop"` in its TOML, or `leco train --preset laptop`.

A preset is what an experiment's TOML could say itself; whatever the experiment says wins over it.
"""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, Any

from leco.words import did_you_mean

if TYPE_CHECKING:
    from leco.methods.table import Method
    from leco.models.kinds.table import Kind

# For 0.1 to 20 million frames on a few processors, where the paper has 200 million on two GPUs. A batch is learned
# from in epochs of minibatches (PPO), by a policy a quarter as wide; actors wait for the update that their unrolls serve, so that
# nothing is off policy. The learning rate falls with the updates, and all tasks have one discount. Rewards are scaled up so that
# the value is learned at all; an episode that its time limit cuts off goes on in its value; a first visit is paid and no other,
# less the mean of that, so that going on is not worth more than the goal. How numbers were chosen is in docs/results. A kind of
# observation may have another one (leco/models/kinds/table.py), and a method what is its own (leco/methods/table.py).
LAPTOP = """\
[actors]
num_envs = 32
unroll_length = 128

[learner]
batch_size = 32
queue_capacity = 32
synchronous = true
checkpoint_every = 100
log_every = 2

[network]
encoder = "one-hot"
width = 64

[training]
gamma = 0.97
epochs = 4
minibatches = 8
sequence_length = 32
clip_range = 0.2
normalize_advantages = true
max_gradient_norm = 5.0
policy_learning_rate = 1e-3
learning_rate_timescale = 100
eps = 1e-5
entropy_cost = 0.02
vtrace_lambda = 0.9
reward_scale = 10
bootstrap_on_truncation = true
alpha = 0.005
lambda = 0.1
episodic_bonus = "information"
center_bonus = true
normalize_bonus = true
penalty_on_revisits = true
earned_trust = true
inner_loss = "policy-gradient"
intrinsic_learning_rate = 1e-3
modulator_learning_rate = 1e-3
decoder_samples = 96
"""

PRESETS = ("laptop", "paper")  # paper: the defaults of the settings themselves


def with_preset(table: dict[str, Any], name: object, *, method: Method, kind: Kind) -> dict[str, Any]:
    """An experiment's table on top of a preset.

    Args:
        table: The experiment, as far as it says something.
        name: Of the preset.
        method: The experiment's.
        kind: Of its observations.

    Raises:
        ValueError: there is no such preset.
    """
    if name not in PRESETS:
        hint = did_you_mean(str(name), PRESETS, f"there are: {', '.join(PRESETS)}")
        raise ValueError(f"preset is {name!r}; {hint}")
    if name == "paper":
        return table
    below = tomllib.loads(LAPTOP if kind.laptop is None else kind.laptop)
    if kind.laptop is None:
        below = _merged(_merged(below, tomllib.loads(kind.laptop_changes)), tomllib.loads(method.laptop))
        if "hash" in below:
            below["hash"]["kind"] = kind.laptop_hash
    return _merged(below, table)


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    both = {
        key: _merged(below[key], above[key])
        for key in below.keys() & above.keys()
        if isinstance(below[key], dict) and isinstance(above[key], dict)
    }
    return {**below, **above, **both}
