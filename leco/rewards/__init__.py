"""The intrinsic reward by itself, for training loops that are not leco's.

`EpisodicCount` wraps a vector environment of Gymnasium and adds to its rewards what is new in an episode. It is made of the
learner's own parts: the hashes, the counts, the log-odds of a first visit and their running mean and deviation.
"""

from leco.rewards.wrapper import EpisodicCount

__all__ = ["EpisodicCount"]
