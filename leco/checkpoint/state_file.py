"""The state of training on disk, or the part of it that acts.

A file is one safetensors file, so it can hold numbers and text, but never code as a pickle can: each tensor of a `TrainingState`
or of `ActingParams` under its path, such as `policy_adam/exp_avg/policy_head.bias`, and one text of JSON in the metadata, under
"leco":

    format    version of all this
    names     paths of all tensors and counters, in the order of the state
    counters  the state's integers, by path
    facts     the caller's metadata: the run, the method, ...
    sha256    of the above and of the tensors, since safetensors itself does not notice a changed bit
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from leco.checkpoint.atomic_file import atomic_write

if TYPE_CHECKING:
    from collections.abc import Iterator

    from leco.checkpoint.snapshot import ActingParams
    from leco.learning.state import Params, TrainingState

    Leaves = dict[str, Tensor | int]  # by path

FORMAT = 1
MAX_HEADER_BYTES = 2**20  # names, shapes, counters and metadata; LECO's state for MiniGrid has 25 KB of them
KEY = "leco"

MetadataValue = str | int | float | bool
State = TypeVar("State", bound="tuple[object, ...]")  # a NamedTuple of tensors, counters and such NamedTuples


class SavedStateError(ValueError):
    """A file that does not hold the state that was asked for. The text says why, and what to do."""


def save(path: str | Path, state: TrainingState | ActingParams, metadata: Mapping[str, MetadataValue]) -> None:
    """Writes a state to a file, all or nothing: after a crash at any moment the old file is there, or the new one.

    Equal states and metadata give equal bytes. One writer at a time: of two at once, one may fail, but neither spoils the file.

    metadata  small values by name, which `load` gives back; floats must be finite
    """
    atomic_write(Path(path), dumps(state, metadata))


def dumps(state: TrainingState | ActingParams, metadata: Mapping[str, MetadataValue]) -> bytes:
    """What `save` writes."""
    for name, value in metadata.items():
        if not (isinstance(name, str) and _is_metadata_value(value)):
            raise ValueError(f"value {name!r} is {value!r}, expected a str, bool, int or finite float")
    leaves = dict(_leaves(state, ""))
    # Copies, because safetensors refuses tensors that share memory or have gaps.
    tensors = {p: x.detach().cpu().contiguous().clone() for p, x in leaves.items() if isinstance(x, Tensor)}
    document = {
        "format": FORMAT,
        "names": list(leaves),
        "counters": {p: x for p, x in leaves.items() if not isinstance(x, Tensor)},
        "facts": dict(metadata),
    }
    document["sha256"] = _digest(document, tensors)
    data = safetensors.torch.save(tensors, {KEY: _text(document)})
    if (size := _header_size(data)) > MAX_HEADER_BYTES:
        raise ValueError(f"names and metadata take {size} bytes, expected at most {MAX_HEADER_BYTES}: save less of it")
    return data


def not_finite(state: TrainingState | ActingParams) -> str:
    """The path of a tensor that holds an infinity or a NaN, such as `policy_adam/exp_avg_sq/policy_head.bias`; or nothing."""
    floats = {p: x for p, x in _leaves(state, "") if isinstance(x, Tensor) and x.is_floating_point() and x.numel()}
    # Much faster than isfinite() of everything, and the same: a NaN is the smallest and the largest of what it is among.
    if torch.stack([end for x in floats.values() for end in x.aminmax()]).isfinite().all():
        return ""
    return next(path for path, x in floats.items() if not x.isfinite().all())


def load(path: str | Path, like: State) -> tuple[State, dict[str, MetadataValue]]:
    """A saved state, bit for bit, and its metadata.

    like  a state of the same networks, for example a fresh one; it gives structure, shapes, types and devices, and so the
          most memory that a file can claim

    Raises SavedStateError if the file does not fit, OSError if it cannot be read.
    """
    with Path(path).open("rb") as file:
        data = file.read(_most(like) + 1)
    try:
        return loads(data, like)
    except SavedStateError as error:
        raise SavedStateError(f"{path} {error}") from error.__cause__


def loads(data: bytes, like: State) -> tuple[State, dict[str, MetadataValue]]:
    """What `load` reads."""
    found, metadata = _decoded(data, dict(_leaves(like, "")), _most(like))
    state: State = _filled(like, "", found)
    return state, metadata


def _most(like: object) -> int:
    """The bytes that such a state can take."""
    return 8 + MAX_HEADER_BYTES + sum(x.nbytes for _, x in _leaves(like, "") if isinstance(x, Tensor))


_DAMAGED = "restore a copy of it, or remove it to begin anew"
_ELSEWHERE = "load it with the networks and method it was saved with, or begin anew with another path"


def _leaves(value: object, path: str) -> Iterator[tuple[str, Tensor | int]]:
    """Tensors and integers of nested NamedTuples and mappings, by path, in order."""
    if isinstance(value, Tensor) or type(value) is int:
        yield path, value
    elif isinstance(value, Mapping):
        for name, item in value.items():
            if "/" in name or not (isinstance(item, Tensor) or type(item) is int):
                raise TypeError(f"{path}/{name} cannot be saved: expected a tensor or an int, and a name without /")
            yield f"{path}/{name}", item
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        for name, item in zip(value._fields, value, strict=True):
            yield from _leaves(item, f"{path}/{name}" if path else name)
    else:
        raise TypeError(f"{path} cannot be saved: it is a {type(value).__name__}, expected tensors or ints by name")


def _filled(like: Any, path: str, leaves: Leaves) -> Any:
    """`like` with other leaves. Mappings take the order of `leaves`, since the order of names is part of a state."""
    if isinstance(like, Tensor):
        leaf = leaves[path]
        assert isinstance(leaf, Tensor)  # noqa: S101 - `_require_fit` has seen to it
        return leaf.to(like.device)
    if isinstance(like, int):
        return leaves[path]
    if isinstance(like, Mapping):
        names = [name.removeprefix(f"{path}/") for name in leaves if name.startswith(f"{path}/")]
        return {name: _filled(like[name], f"{path}/{name}", leaves) for name in names}
    return like._make(
        _filled(item, f"{path}/{name}" if path else name, leaves) for name, item in zip(like._fields, like, strict=True)
    )


def _is_metadata_value(value: object) -> bool:
    return type(value) in (str, int, bool) or (type(value) is float and math.isfinite(value))


def _text(document: Mapping[str, object]) -> str:
    return json.dumps(document, sort_keys=True, separators=(",", ":"))


def _digest(document: Mapping[str, object], tensors: Mapping[str, Tensor]) -> str:
    digest = hashlib.sha256(_text(document).encode())
    for path in sorted(tensors):
        digest.update(tensors[path].flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def _header_size(data: bytes) -> int:
    return int.from_bytes(data[:8], "little")


def _decoded(data: bytes, expected: Leaves, most: int) -> tuple[Leaves, dict[str, MetadataValue]]:
    """The leaves of a file in their order, and its metadata. Whatever is not as expected is refused."""
    if len(data) > most:
        raise SavedStateError(f"is larger than the {most} bytes that this state can take; {_ELSEWHERE}")
    document, tensors = _document(data), _tensors(data)
    found: Leaves = {**tensors, **document["counters"]}
    _require_fit(found, expected)
    names: list[str] = document["names"]
    if document.pop("sha256") != _digest(document, tensors) or sorted(names) != sorted(found):
        raise SavedStateError(f"has changed since it was written: its checksum is wrong; {_DAMAGED}")
    return {name: found[name] for name in names}, document["facts"]


def _document(data: bytes) -> dict[str, Any]:
    """The JSON of a file, its parts known to be of the right type."""
    size = _header_size(data)
    if len(data) < 8 or size > len(data) - 8:
        raise SavedStateError(f"ends too early, or is no saved state; {_DAMAGED}")
    if size > MAX_HEADER_BYTES:
        raise SavedStateError(f"has a header of {size} bytes, expected at most {MAX_HEADER_BYTES}; {_DAMAGED}")
    try:
        document = json.loads(json.loads(data[8 : 8 + size])["__metadata__"][KEY])
        version = document["format"]
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise SavedStateError(f"holds no training state of leco, or is damaged; {_DAMAGED}") from error
    if version != FORMAT:
        raise SavedStateError(
            f"has format {version!r:.40}, but this leco reads format {FORMAT}; use the leco that wrote it, or begin anew"
        )
    if not _well_formed(document):
        raise SavedStateError(f"has a damaged header; {_DAMAGED}")
    return dict(document)


def _well_formed(document: dict[str, Any]) -> bool:
    if document.keys() != {"format", "names", "counters", "facts", "sha256"}:
        return False
    counters, metadata, names = document["counters"], document["facts"], document["names"]
    return (
        isinstance(counters, dict)
        and all(type(counter) is int for counter in counters.values())
        and isinstance(metadata, dict)
        and all(_is_metadata_value(value) for value in metadata.values())
        and isinstance(names, list)
        and all(isinstance(name, str) for name in names)
    )


def _tensors(data: bytes) -> Params:
    try:
        found = safetensors.torch.load(data)
    except (SafetensorError, ValueError, LookupError, TypeError, RuntimeError, AssertionError) as error:
        raise SavedStateError(f"is truncated or damaged ({error}); {_DAMAGED}") from error
    # Into memory that torch aligns, since the last bit of a matrix product may depend on it.
    return {path: tensor.clone() for path, tensor in found.items()}


def _require_fit(found: Leaves, expected: Leaves) -> None:
    if difference := _difference(found.keys(), expected.keys()):
        raise SavedStateError(f"is of other networks: {difference}; {_ELSEWHERE}")
    for path, leaf in expected.items():
        if (kind := _kind(found[path])) != _kind(leaf):
            raise SavedStateError(f"has {kind} as {path}, expected {_kind(leaf)}; {_ELSEWHERE}")


def _kind(leaf: Tensor | int) -> str:
    return f"{leaf.dtype} {list(leaf.shape)}" if isinstance(leaf, Tensor) else "an integer"


def _difference(found: Any, expected: Any) -> str:
    """What is missing and what is not expected, by name; empty if nothing."""
    sides = (("missing", expected - found), ("not expected", found - expected))
    return "; ".join(f"{what}: {_listed(sorted(names))}" for what, names in sides if names)


def _listed(names: list[str], most: int = 5) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
