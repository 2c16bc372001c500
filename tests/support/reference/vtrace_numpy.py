"""V-trace as the IMPALA paper writes it in eq. 1: a sum over all later steps for each step. Slow and obvious."""

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def vtrace(
    *,
    log_rho: Array,
    reward: Array,
    discount: Array,
    value: Array,
    bootstrap: Array,
    rho_bar: float,
    c_bar: float,
    decay: float,
) -> tuple[Array, Array, Array]:
    steps, unrolls = reward.shape
    target, advantage = np.zeros((steps, unrolls)), np.zeros((steps, unrolls))
    rho = np.zeros((steps, unrolls))
    for b in range(unrolls):
        v = [*value[:, b], bootstrap[b]]
        ratio = [np.exp(log_rho[t, b]) for t in range(steps)]
        for s in range(steps):
            rho[s, b] = min(rho_bar, ratio[s])
            target[s, b] = v[s]
            for t in range(s, steps):
                weight = 1.0
                for i in range(s, t):
                    weight *= discount[i, b] * decay * min(c_bar, ratio[i])
                delta = min(rho_bar, ratio[t]) * (reward[t, b] + discount[t, b] * v[t + 1] - v[t])
                target[s, b] += weight * delta
        for s in range(steps):
            following = decay * target[s + 1, b] + (1 - decay) * v[s + 1] if s + 1 < steps else bootstrap[b]
            advantage[s, b] = reward[s, b] + discount[s, b] * following - v[s]
    return target, advantage, rho
