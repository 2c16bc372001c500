"""Named starting points of an experiment: `preset = "laptop"` in its TOML, or `leco train --preset laptop`.

A preset is what an experiment's TOML could say itself; whatever the experiment says wins over it.
"""

from __future__ import annotations

import difflib
import tomllib
from typing import Any

# For 0.5 to 20 million frames on a few processors, where the paper has 200 million on two GPUs. Rewards are scaled up, and an
# episode that its time limit cuts off goes on in its value, so that the value is learned at all in this time; advantages vary
# less; steps are larger and have no momentum, so that delay does not make them unstable; the modulator learns slowly, so that the
# first few successes make it no superstition; and the decoder learns from a sample, which saves a fifth of an update. Entropy is
# the paper's in the scale of the rewards. docs/results says what was measured.
LAPTOP = """\
[training]
policy_learning_rate = 5e-4
policy_betas = [0.0, 0.99]
trace_decay = 0.95
reward_scale = 20
go_on_after_cuts = true
entropy = 0.01
modulator_learning_rate = 3e-5
inner_loss = "whole"
decoded = 96
"""

# The defaults of the settings themselves.
PAPER = ""

PRESETS = {"laptop": LAPTOP, "paper": PAPER}


def with_preset(table: dict[str, Any], name: object) -> dict[str, Any]:
    """An experiment's table on top of a preset.

    Raises:
        ValueError: there is no such preset.
    """
    if name not in PRESETS:
        near = difflib.get_close_matches(str(name), PRESETS, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"there are: {', '.join(PRESETS)}"
        raise ValueError(f"preset is {name!r}; {hint}")
    return _merged(tomllib.loads(PRESETS[str(name)]), table)


def _merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    both = {
        key: _merged(below[key], above[key])
        for key in below.keys() & above.keys()
        if isinstance(below[key], dict) and isinstance(above[key], dict)
    }
    return {**below, **above, **both}
