"""Vector quantisation, one position at a time."""

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]


def nearest_code(z: Array, codebook: Array) -> npt.NDArray[np.int64]:
    rows, _, height, width = z.shape
    index = np.zeros((rows, height, width), np.int64)
    for n, h, w in np.ndindex(rows, height, width):
        best = np.inf
        for k, code in enumerate(codebook):
            distance = sum((z[n, d, h, w] - code[d]) ** 2 for d in range(len(code)))
            if distance < best:
                best, index[n, h, w] = distance, k
    return index


def squared_error(z: Array, codebook: Array, weight: npt.NDArray[np.int32]) -> float:
    """The mean over every element of every observation, each row there as often as its weight says."""
    index = nearest_code(z, codebook)
    total, elements = 0.0, 0
    for n, d, h, w in np.ndindex(*z.shape):
        for _ in range(weight[n]):
            total += float(z[n, d, h, w] - codebook[index[n, h, w], d]) ** 2
            elements += 1
    return total / elements
