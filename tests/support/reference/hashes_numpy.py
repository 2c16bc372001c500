"""Hashes of one observation at a time, in Python's own integers and sets."""

import numpy as np
import numpy.typing as npt

Observation = npt.NDArray[np.uint8]

_64_BITS = 2**64 - 1
_GOLDEN = 0x9E3779B97F4A7C15
_UNSEEN, _EMPTY, _WALL, _FLOOR = range(4)  # of MiniGrid's objects, those that are none


def finalised(word: int) -> int:
    """The finaliser of MurmurHash3 for 64 bits, as its author writes it."""
    word ^= word >> 33
    word = word * 0xFF51AFD7ED558CCD & _64_BITS
    word ^= word >> 33
    word = word * 0xC4CEB9FE1A85EC53 & _64_BITS
    return word ^ word >> 33


def words(observation: Observation) -> list[int]:
    """Eight bytes to a word, the first one lowest, as if zeros followed."""
    data = observation.tobytes()
    return [int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 8)]


def hash_key(place: int, salt: int) -> int:
    return finalised((place * _GOLDEN + salt) & _64_BITS)


def hash_words(row: list[int], salt: int) -> int:
    keys = (hash_key(place, salt) for place in range(len(row)))
    return sum(finalised((word + key) & _64_BITS) for word, key in zip(row, keys, strict=True)) & _64_BITS


def exact_code(observation: Observation) -> bytes:
    return b"".join(hash_words(words(observation), salt).to_bytes(8, "little") for salt in (0, 1))


def objects(observation: Observation) -> tuple[frozenset[tuple[int, int, int]], tuple[int, int, int]]:
    """What is in view, apart from the agent's own cell, and what is in that, as (object, colour, state)."""
    view = {(x, y): tuple(int(n) for n in observation[x, y]) for x in range(7) for y in range(7)}
    carried = view.pop((3, 6))
    seen = {cell for cell in view.values() if cell[0] not in (_UNSEEN, _EMPTY, _WALL, _FLOOR)}
    return frozenset(seen), carried  # type: ignore[arg-type, return-value]


def objects_code(observation: Observation) -> bytes:
    seen, carried = objects(observation)
    kinds = [(kind, colour, state) for kind in range(11) for colour in range(6) for state in range(4)]
    bits = sum(1 << place for place, each in enumerate(kinds) if each in seen)
    return bits.to_bytes(33, "little") + kinds.index(carried).to_bytes(2, "big")
