"""The losses as sums over single steps, with the softmax written out."""

import math

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int32]


def probabilities(logits: Array) -> list[float]:
    return [math.exp(logit) / sum(math.exp(other) for other in logits) for logit in logits]


def log_prob(logits: Array, action: Integers) -> Array:
    result = np.zeros(action.shape)
    for t, b in np.ndindex(*action.shape):
        result[t, b] = math.log(probabilities(logits[t, b])[action[t, b]])
    return result


def entropy(logits: Array) -> float:
    steps = [probabilities(logits[t, b]) for t, b in np.ndindex(*logits.shape[:2])]
    return sum(-p * math.log(p) for step in steps for p in step) / len(steps)


def policy_gradient_loss(log_prob: Array, advantage: Array, rho: Array) -> float:
    return -sum(float(rho[i] * log_prob[i] * advantage[i]) for i in np.ndindex(*rho.shape)) / rho.size


def clipped_surrogate_loss(log_prob: Array, behaviour_log_prob: Array, advantage: Array, clip_range: float) -> float:
    total = 0.0
    for i in np.ndindex(*advantage.shape):
        ratio = math.exp(log_prob[i] - behaviour_log_prob[i])
        clipped = min(max(ratio, 1 - clip_range), 1 + clip_range)
        total += min(ratio * float(advantage[i]), clipped * float(advantage[i]))
    return -total / advantage.size


def standardize(x: Array) -> Array:
    mean = sum(x.ravel()) / x.size
    deviation = math.sqrt(sum((each - mean) ** 2 for each in x.ravel()) / x.size)
    return np.array([(each - mean) / deviation for each in x.ravel()]).reshape(x.shape)


def value_loss(value: Array, target: Array) -> float:
    return float(sum(0.5 * (target[i] - value[i]) ** 2 for i in np.ndindex(*value.shape)) / value.size)


def reconstruction_loss(output: Array, target: Array, weight: Integers) -> float:
    """On the batch in which each row is really there as often as its weight says."""
    total, elements = 0.0, 0
    for row, wanted, multiplicity in zip(output, target, weight, strict=True):
        for _ in range(multiplicity):
            for x, y in zip(row.ravel(), wanted.ravel(), strict=True):
                total += (x - y) ** 2
                elements += 1
    return total / elements
