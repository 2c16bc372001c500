"""NovelD, RIDE, RND's running numbers and AGAC's divergence, one number at a time."""

import math

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Counts = npt.NDArray[np.int64]


def noveld_bonus(after: Array, before: Array, count: Counts, share: float) -> Array:
    result = np.zeros(after.shape)
    for place in np.ndindex(*after.shape):
        if count[place] == 1 and after[place] > share * before[place]:
            result[place] = after[place] - share * before[place]
    return result


def ride_bonus(after: Array, before: Array, count: Counts) -> Array:
    result = np.zeros(count.shape)
    for place in np.ndindex(*count.shape):
        squares = sum((a - b) ** 2 for a, b in zip(after[place], before[place], strict=True))
        result[place] = math.sqrt(squares) / math.sqrt(count[place])
    return result


def categorical_kl(logits: Array, other: Array) -> Array:
    result = np.zeros(logits.shape[:2])
    for place in np.ndindex(*logits.shape[:2]):
        p = [math.exp(x) for x in logits[place]]
        q = [math.exp(x) for x in other[place]]
        p, q = [x / sum(p) for x in p], [x / sum(q) for x in q]
        result[place] = sum(x * math.log(x / y) for x, y in zip(p, q, strict=True))
    return result


def running_discounted_sum(reward: Array, gamma: float) -> Array:
    result = np.zeros(reward.shape)
    for b in range(reward.shape[1]):
        total = 0.0
        for t in range(reward.shape[0]):
            total = gamma * total + reward[t, b]
            result[t, b] = total
    return result
