"""The intrinsic reward, one step of one unroll at a time, with the one-hot vector written out."""

import math

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def episodic_bonus(count: npt.NDArray[np.uint32]) -> Array:
    return np.array([1 / math.sqrt(int(n)) for n in count.ravel()]).reshape(count.shape)


def modulation(scores: Array, previous_action: npt.NDArray[np.int32]) -> Array:
    steps, unrolls, actions = scores.shape
    result = np.zeros((steps, unrolls))
    for t in range(steps):
        for b in range(unrolls):
            one_hot = [1.0 if action == previous_action[t, b] else 0.0 for action in range(actions)]
            result[t, b] = math.tanh(sum(one_hot[a] * scores[t, b, a] for a in range(actions)))
    return result


def penalty_on_revisits(r_ta: Array, count: npt.NDArray[np.uint32]) -> Array:
    result = np.zeros(r_ta.shape)
    for i in np.ndindex(*r_ta.shape):
        result[i] = r_ta[i] if int(count[i]) == 1 else min(float(r_ta[i]), 0.0)
    return result


def total_reward(r_e: Array, r_ep: Array, r_ta: Array, lambda_: float, alpha: float) -> Array:
    result = np.zeros(r_e.shape)
    for t, b in np.ndindex(*r_e.shape):
        result[t, b] = r_e[t, b] + alpha * ((1 - lambda_) * r_ep[t, b] + lambda_ * r_ta[t, b])
    return result
