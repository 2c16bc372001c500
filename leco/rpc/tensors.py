"""Named numpy arrays to and from the packed layout of proto/leco/v1/tensor.proto.

Packing copies every element once, into the payload. Unpacking copies nothing: the arrays are read-only views over the
payload. In between stands `layout`: where each tensor lies follows from the specs alone, so everything that a sender
claims about sizes is checked before a byte of memory is spent on it. A payload may travel compressed: then it is expanded
first, which copies once more, and to exactly the size that the layout says or not at all.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import numpy.typing as npt

from leco.v1 import tensor_pb2

MAX_TENSORS = 4096
MAX_NAME_BYTES = 128
MAX_AXES = 8
MAX_AXIS_SIZE = 2**32 - 1
MAX_TENSOR_BYTES = 2**63 - 1
# What a compressed payload may expand to unless a receiver says otherwise: what gRPC lets through uncompressed here.
MAX_EXPANDED_BYTES = 4 * 1024 * 1024
ALIGNMENT = 8

Compression = Literal["none", "zstd"]
COMPRESSIONS: tuple[Compression, ...] = get_args(Compression)
ZSTD_LEVEL = 1  # measured: benchmarks/payload.py

_DTYPE_OF: Mapping[int, np.dtype[Any]] = {
    tensor_pb2.DATA_TYPE_BOOL: np.dtype("?"),
    tensor_pb2.DATA_TYPE_UINT8: np.dtype("u1"),
    tensor_pb2.DATA_TYPE_UINT32: np.dtype("<u4"),
    tensor_pb2.DATA_TYPE_INT32: np.dtype("<i4"),
    tensor_pb2.DATA_TYPE_INT64: np.dtype("<i8"),
    tensor_pb2.DATA_TYPE_FLOAT16: np.dtype("<f2"),
    tensor_pb2.DATA_TYPE_FLOAT32: np.dtype("<f4"),
    tensor_pb2.DATA_TYPE_FLOAT64: np.dtype("<f8"),
}
# Keyed by kind and size, so that byte order and C's several names for one integer type make no difference.
_DATA_TYPE_OF: Mapping[tuple[str, int], tensor_pb2.DataType.ValueType] = {
    (dtype.kind, dtype.itemsize): tensor_pb2.DataType.ValueType(data_type) for data_type, dtype in _DTYPE_OF.items()
}


class CodecError(ValueError):
    """A message that breaks its contract. The text says what was wrong and what was expected."""


@dataclass(frozen=True, slots=True)
class Place:
    """One tensor and the bytes of the payload, `start` up to `stop`, that hold its elements."""

    name: str
    dtype: np.dtype[Any]
    shape: tuple[int, ...]
    start: int
    stop: int


def layout(specs: Sequence[tensor_pb2.TensorSpec]) -> list[Place]:
    """Where each tensor lies. Refuses specs that break tensor.proto; allocates nothing of the sizes they claim.

    An empty tensor also starts at a multiple of 8, and ends there.
    """
    if len(specs) > MAX_TENSORS:
        raise CodecError(f"there are {len(specs)} tensors, expected at most {MAX_TENSORS}")
    places: dict[str, Place] = {}
    stop = 0
    for index, spec in enumerate(specs):
        name = spec.name
        name_bytes = len(name.encode())
        if not 1 <= name_bytes <= MAX_NAME_BYTES:
            raise CodecError(f"the name of tensor {index} has {name_bytes} bytes, expected 1 to {MAX_NAME_BYTES}")
        if name in places:
            raise CodecError(f"tensor {name!r} appears twice, expected unique names")
        dtype = _DTYPE_OF.get(spec.dtype)
        if dtype is None:
            raise CodecError(f"tensor {name!r} has data type {spec.dtype}, expected one of {_names_of_data_types()}")
        start = -(-stop // ALIGNMENT) * ALIGNMENT
        stop = start + _size(name, dtype, spec.shape)
        places[name] = Place(name, dtype, tuple(spec.shape), start, stop)
    return list(places.values())


def payload_size(places: Sequence[Place]) -> int:
    """The exact number of bytes of a payload with this layout."""
    return places[-1].stop if places else 0


def pack(arrays: Mapping[str, npt.NDArray[Any]]) -> tuple[list[tensor_pb2.TensorSpec], bytes]:
    """The specs and the payload of these arrays, in their order. Any byte order and memory layout is accepted."""
    specs = [_spec(name, array) for name, array in arrays.items()]
    pieces: list[bytes | memoryview] = []
    stop = 0
    for place, array in zip(layout(specs), arrays.values(), strict=True):
        pieces += bytes(place.start - stop), np.asarray(array, dtype=place.dtype, order="C").data
        stop = place.stop
    return specs, b"".join(pieces)


def unpack(places: Sequence[Place], payload: bytes | bytearray) -> dict[str, npt.NDArray[Any]]:
    """Read-only views over the payload, by name. Refuses a payload that does not fit its layout exactly."""
    if len(payload) != payload_size(places):
        raise CodecError(f"the payload has {len(payload)} bytes, expected {payload_size(places)}")
    buffer = memoryview(payload).toreadonly()
    arrays: dict[str, npt.NDArray[Any]] = {}
    stop = 0
    for place in places:
        if any(buffer[stop : place.start]):
            raise CodecError(f"the gap before tensor {place.name!r} is not zero, expected only zero bytes there")
        stop = place.stop
        array: npt.NDArray[Any] = np.ndarray(place.shape, place.dtype, buffer=buffer, offset=place.start)
        if place.dtype.kind == "b" and (largest := array.view(np.uint8).max(initial=0)) > 1:
            raise CodecError(f"tensor {place.name!r} has a byte {largest}, expected 0 or 1 in a bool")
        arrays[place.name] = array
    return arrays


def tensors_to_message(
    arrays: Mapping[str, npt.NDArray[Any]], *, compression: Compression = "none"
) -> tensor_pb2.Tensors:
    """These arrays as one message."""
    specs, payload = pack(arrays)
    if compression == "none" or not payload:
        return tensor_pb2.Tensors(specs=specs, payload=payload)
    return tensor_pb2.Tensors(specs=specs, payload=_compressed(payload), compression=tensor_pb2.COMPRESSION_ZSTD)


def tensors_from_message(
    message: tensor_pb2.Tensors, *, max_bytes: int = MAX_EXPANDED_BYTES
) -> dict[str, npt.NDArray[Any]]:
    """The arrays of a message, as read-only views over one copy of its payload. For `max_bytes` see `expanded`."""
    places = layout(message.specs)
    return unpack(places, expanded(message, places, max_bytes=max_bytes))


def expanded(message: tensor_pb2.Tensors, places: Sequence[Place], *, max_bytes: int) -> bytes:
    """The payload of a message with this layout, as it was before it was compressed, if it was.

    Nothing is expanded that would have more than `max_bytes`, or other than the layout says. A payload that is not compressed is
    returned as it came: it has cost its memory already, and `unpack` looks at its length.
    """
    if message.compression == tensor_pb2.COMPRESSION_UNSPECIFIED:
        return message.payload
    if message.compression != tensor_pb2.COMPRESSION_ZSTD:
        raise CodecError(f"compression is {message.compression}, expected 0 (none) or 1 (zstd)")
    size = payload_size(places)
    if not 1 <= size <= max_bytes:
        raise CodecError(f"the tensors have {size} bytes, expected 1 to {max_bytes} in a compressed payload")
    return _expanded(message.payload, size)


def _compressed(payload: bytes) -> bytes:
    import zstandard  # noqa: PLC0415  # the image of a service that packs nothing shall not need it

    # One for each call: it may not be shared by threads, and costs little beside what it does.
    return zstandard.ZstdCompressor(level=ZSTD_LEVEL, write_checksum=True, write_content_size=True).compress(payload)


def _expanded(payload: bytes, size: int) -> bytes:
    """What a zstd frame holds, if that has this size."""
    import zstandard  # noqa: PLC0415  # as above

    try:
        frame = zstandard.get_frame_parameters(payload)
        # The library reserves what the frame claims, whatever limit it is given.
        if frame.content_size != size:
            claim = "unknown" if frame.content_size == zstandard.CONTENTSIZE_UNKNOWN else frame.content_size
            raise CodecError(f"the size of the compressed payload is {claim}, expected {size} by the specs")
        if not frame.has_checksum:
            raise CodecError("the compressed payload has no checksum, expected one")
        return zstandard.ZstdDecompressor().decompress(payload, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise CodecError(f"the compressed payload is broken, expected one whole zstd frame ({error})") from error


def _spec(name: str, array: npt.NDArray[Any]) -> tensor_pb2.TensorSpec:
    """What the message says about an array. A type that the wire does not have is refused, never converted."""
    data_type = _DATA_TYPE_OF.get((array.dtype.kind, array.dtype.itemsize))
    if data_type is None:
        raise CodecError(f"array {name!r} has dtype {array.dtype}, expected one of {_names_of_data_types()}")
    if max(array.shape, default=0) > MAX_AXIS_SIZE:
        raise CodecError(f"array {name!r} has shape {array.shape}, expected axes of at most {MAX_AXIS_SIZE}")
    return tensor_pb2.TensorSpec(name=name, dtype=data_type, shape=array.shape)


def _size(name: str, dtype: np.dtype[Any], shape: Sequence[int]) -> int:
    """Bytes of a tensor's elements.

    Axes of size 0 count as 1 in the limit: numpy cannot describe an empty array whose other axes overflow either.
    """
    if len(shape) > MAX_AXES:
        raise CodecError(f"tensor {name!r} has {len(shape)} axes, expected at most {MAX_AXES}")
    if math.prod(max(axis, 1) for axis in shape) * dtype.itemsize > MAX_TENSOR_BYTES:
        raise CodecError(f"tensor {name!r} has shape {tuple(shape)}, expected at most {MAX_TENSOR_BYTES} bytes")
    return math.prod(shape) * dtype.itemsize


def _names_of_data_types() -> str:
    return ", ".join(f"{data_type} ({dtype.name})" for data_type, dtype in _DTYPE_OF.items())
