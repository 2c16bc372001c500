import math
import struct
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import zstandard
from google.protobuf.message import DecodeError
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from leco.rpc.tensors import CodecError, layout, pack, tensors_from_message, tensors_to_message, unpack
from leco.v1.tensor_pb2 import COMPRESSION_ZSTD, DataType, Tensors, TensorSpec
from support.peak import peak_bytes

Array = npt.NDArray[Any]

BOOL, UINT8, INT32, FLOAT32 = (
    DataType.DATA_TYPE_BOOL,
    DataType.DATA_TYPE_UINT8,
    DataType.DATA_TYPE_INT32,
    DataType.DATA_TYPE_FLOAT32,
)
# The number on the wire and the letter of `struct`, written down here a second time on purpose.
WIRE_TYPES = {
    "bool": (1, "?"),
    "uint8": (2, "B"),
    "uint32": (3, "I"),
    "int32": (4, "i"),
    "int64": (5, "q"),
    "float16": (6, "e"),
    "float32": (7, "f"),
    "float64": (8, "d"),
}
TYPE_LIST = "1 (bool), 2 (uint8), 3 (uint32), 4 (int32), 5 (int64), 6 (float16), 7 (float32), 8 (float64)"

MEMORY_LAYOUTS: list[Callable[[Array], Array]] = [
    lambda array: array,
    lambda array: array.astype(array.dtype.newbyteorder(">")),
    np.asfortranarray,
    lambda array: array.T,
    lambda array: array[::-1] if array.ndim else array,
    lambda array: np.repeat(array, 2, axis=-1)[..., ::2] if array.ndim else array,
]


def naive_payload(arrays: Mapping[str, Array]) -> bytes:
    """tensor.proto, one element at a time."""
    payload = bytearray()
    for array in arrays.values():
        while len(payload) % 8:
            payload.append(0)
        for index in np.ndindex(array.shape):
            payload += struct.pack("<" + WIRE_TYPES[array.dtype.name][1], array[index].item())
    return bytes(payload)


def naive_values(specs: Sequence[TensorSpec], payload: bytes) -> list[list[Any]]:
    """The elements of each tensor, one at a time; fails unless the payload ends with the last one."""
    letters = dict(WIRE_TYPES.values())
    values, offset = [], 0
    for spec in specs:
        while offset % 8:
            assert payload[offset] == 0
            offset += 1
        form = "<" + letters[spec.dtype]
        elements = []
        for _ in range(math.prod(spec.shape)):
            elements.append(struct.unpack_from(form, payload, offset)[0])
            offset += struct.calcsize(form)
        values.append(elements)
    assert offset == len(payload)
    return values


def assert_same(one: Mapping[str, Array], other: Mapping[str, Array]) -> None:
    """Same names in the same order, same types and shapes, and the same bits: also of NaN and of minus zero."""
    assert list(one) == list(other)
    for name, array in one.items():
        assert array.dtype.name == other[name].dtype.name
        assert array.shape == other[name].shape
        native = array.dtype.newbyteorder("=")
        assert array.astype(native).tobytes() == other[name].astype(native).tobytes()


def arrays_of_every_kind(*, allow_nan: bool) -> st.SearchStrategy[dict[str, Array]]:
    arrays = st.sampled_from(sorted(WIRE_TYPES)).flatmap(
        lambda name: hnp.arrays(
            np.dtype(name),
            hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=3),
            elements={"allow_nan": allow_nan} if name.startswith("float") else None,
        )
    )
    laid_out = st.builds(lambda layout, array: layout(array), st.sampled_from(MEMORY_LAYOUTS), arrays)
    return st.dictionaries(st.text(min_size=1, max_size=8), laid_out, max_size=4)


@settings(max_examples=150, deadline=None)
@given(arrays_of_every_kind(allow_nan=True))
def test_what_goes_in_comes_out(arrays: dict[str, Array]) -> None:
    wire = tensors_to_message(arrays).SerializeToString()
    assert_same(tensors_from_message(Tensors.FromString(wire)), arrays)


@settings(max_examples=150, deadline=None)
@given(arrays_of_every_kind(allow_nan=False))
def test_layout_is_that_of_a_naive_encoder_and_decoder(arrays: dict[str, Array]) -> None:
    message = tensors_to_message(arrays)
    assert [(s.name, s.dtype, tuple(s.shape)) for s in message.specs] == [
        (name, WIRE_TYPES[array.dtype.name][0], array.shape) for name, array in arrays.items()
    ]
    assert message.payload == naive_payload(arrays)
    decoded = tensors_from_message(message)
    assert naive_values(message.specs, message.payload) == [array.ravel().tolist() for array in decoded.values()]


def test_a_small_message_by_hand() -> None:
    message = tensors_to_message(
        {
            "flag": np.array([True, False, True]),
            "one": np.array(1.0, np.float32),
            "none": np.zeros((2, 0), np.int64),
            "pair": np.array([[1], [-2]], np.int32),
        }
    )
    assert message.payload == bytes.fromhex(
        "0100010000000000"  # three flags and a gap
        "0000803f00000000"  # 1.0 and a gap; "none" begins and ends after it
        "01000000feffffff"
    )


def test_no_padding_follows_the_last_element() -> None:
    assert len(tensors_to_message({"x": np.zeros(3, np.uint8)}).payload) == 3


def test_an_empty_tensor_at_the_end_still_begins_at_a_multiple_of_8() -> None:
    arrays: dict[str, Array] = {"x": np.ones(3, np.uint8), "nothing": np.zeros((0, 2), np.float32)}
    message = tensors_to_message(arrays)
    assert message.payload == b"\1\1\1\0\0\0\0\0"
    assert_same(tensors_from_message(message), arrays)


def test_no_tensors_at_all() -> None:
    assert tensors_from_message(Tensors()) == {}
    assert tensors_to_message({}) == Tensors()


@pytest.mark.parametrize(
    "dtype", ["uint64", "int8", "uint16", "complex64", "object", "U3", "S2", "M8[s]", "longdouble"]
)
def test_a_type_that_the_wire_does_not_have_is_refused_by_name(dtype: str) -> None:
    array = np.zeros(2, dtype)
    with pytest.raises(CodecError) as caught:
        tensors_to_message({"x": array})
    assert str(caught.value) == f"array 'x' has dtype {array.dtype}, expected one of {TYPE_LIST}"


@pytest.mark.parametrize(
    ("arrays", "text"),
    [
        ({"": np.zeros(1)}, "the name of tensor 0 has 0 bytes, expected 1 to 128"),
        ({"x": np.zeros((1,) * 9)}, "tensor 'x' has 9 axes, expected at most 8"),
        (
            {"x": np.broadcast_to(np.uint8(0), 2**32)},
            "array 'x' has shape (4294967296,), expected axes of at most 4294967295",
        ),
        ({str(n): np.zeros(0) for n in range(4097)}, "there are 4097 tensors, expected at most 4096"),
    ],
)
def test_arrays_that_no_message_may_hold_are_refused(arrays: dict[str, Array], text: str) -> None:
    with pytest.raises(CodecError) as caught:
        tensors_to_message(arrays)
    assert str(caught.value) == text


def spec_of(name: str = "x", dtype: int = UINT8, shape: Sequence[int] = (2,)) -> TensorSpec:
    return TensorSpec(name=name, dtype=DataType.ValueType(dtype), shape=shape)


MOST = 2**32 - 1
MALFORMED = {
    "no type": ([spec_of(dtype=0)], b"ab", f"tensor 'x' has data type 0, expected one of {TYPE_LIST}"),
    "unknown type": ([spec_of(dtype=9)], b"ab", f"tensor 'x' has data type 9, expected one of {TYPE_LIST}"),
    "negative type": ([spec_of(dtype=-1)], b"ab", f"tensor 'x' has data type -1, expected one of {TYPE_LIST}"),
    "no name": ([spec_of(), spec_of("")], b"ab", "the name of tensor 1 has 0 bytes, expected 1 to 128"),
    "long name": ([spec_of("é" * 65)], b"ab", "the name of tensor 0 has 130 bytes, expected 1 to 128"),
    "same name": ([spec_of(), spec_of()], b"ab", "tensor 'x' appears twice, expected unique names"),
    "9 axes": ([spec_of(shape=[1] * 9)], b"a", "tensor 'x' has 9 axes, expected at most 8"),
    "4097 tensors": (
        [spec_of(str(n), shape=[0]) for n in range(4097)],
        b"",
        "there are 4097 tensors, expected at most 4096",
    ),
    "shape that overflows 64 bits to 0": (
        [spec_of(shape=[2**31, 2**31, 4])],
        b"",
        "tensor 'x' has shape (2147483648, 2147483648, 4), expected at most 9223372036854775807 bytes",
    ),
    "empty, yet too large for numpy": (
        [spec_of(shape=[MOST, MOST, MOST, 0])],
        b"",
        f"tensor 'x' has shape ({MOST}, {MOST}, {MOST}, 0), expected at most 9223372036854775807 bytes",
    ),
    "large shape": ([spec_of(shape=[MOST, 2**30])], b"ab", f"the payload has 2 bytes, expected {MOST * 2**30}"),
    "payload too short": ([spec_of(dtype=FLOAT32)], bytes(7), "the payload has 7 bytes, expected 8"),
    "payload too long": ([spec_of(dtype=FLOAT32)], bytes(9), "the payload has 9 bytes, expected 8"),
    "payload without specs": ([], b"a", "the payload has 1 bytes, expected 0"),
    "padding after the end": ([spec_of()], bytes(8), "the payload has 8 bytes, expected 2"),
    "gap not zero": (
        [spec_of("x"), spec_of("y")],
        b"ab\0\0\0\0\0\1ab",
        "the gap before tensor 'y' is not zero, expected only zero bytes there",
    ),
    "bool that is no bool": ([spec_of(dtype=BOOL)], b"\1\2", "tensor 'x' has a byte 2, expected 0 or 1 in a bool"),
    "scalar that is no bool": (
        [spec_of(dtype=BOOL, shape=[])],
        b"\xff",
        "tensor 'x' has a byte 255, expected 0 or 1 in a bool",
    ),
}


@pytest.mark.parametrize(("specs", "payload", "text"), MALFORMED.values(), ids=MALFORMED)
def test_a_malformed_message_is_refused_with_the_reason(specs: list[TensorSpec], payload: bytes, text: str) -> None:
    wire = Tensors(specs=specs, payload=payload).SerializeToString()
    with pytest.raises(CodecError) as caught:
        tensors_from_message(Tensors.FromString(wire))
    assert str(caught.value) == text


def test_the_limits_themselves_are_allowed() -> None:
    arrays: dict[str, Array] = {"é" * 64: np.zeros((1,) * 8)} | {str(n): np.zeros(0) for n in range(4095)}
    assert_same(tensors_from_message(tensors_to_message(arrays)), arrays)


random_specs = st.builds(
    spec_of,
    st.sampled_from(["", "x", "y", "z", "é" * 65]),
    st.integers(-1, 9),
    st.lists(st.sampled_from([0, 1, 2, 3, 2**31, MOST]), max_size=9),
)


def decoded_or_refused(wire: bytes) -> None:
    """Whatever the bytes are: either they are refused, or the result is what a naive decoder makes of them."""
    try:
        message = Tensors.FromString(wire)
        arrays = tensors_from_message(message)
    except (CodecError, DecodeError):
        return
    assert [array.shape for array in arrays.values()] == [tuple(spec.shape) for spec in message.specs]
    # NaN is not equal to itself, but its text is.
    assert str([array.ravel().tolist() for array in arrays.values()]) == str(
        naive_values(message.specs, message.payload)
    )


@settings(max_examples=300, deadline=None)
@given(st.lists(random_specs, max_size=3), st.sampled_from([0, 0, 1, 255]), st.integers(0, 40))
def test_random_specs_never_break_the_decoder(specs: list[TensorSpec], filling: int, length: int) -> None:
    decoded_or_refused(Tensors(specs=specs, payload=bytes([filling]) * length).SerializeToString())


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_flipped_and_missing_bytes_never_break_the_decoder(data: st.DataObject) -> None:
    wire = bytearray(
        tensors_to_message(
            {
                "flag": np.array([[True], [False]]),
                "empty": np.zeros((0, 3), np.uint8),
                "half": np.array([1, -2, 3], np.float16),
                "scalar": np.array(7, np.int64),
            }
        ).SerializeToString()
    )
    for position in data.draw(st.lists(st.integers(0, len(wire) - 1), max_size=3)):
        wire[position] = data.draw(st.integers(0, 255))
    decoded_or_refused(bytes(wire[: data.draw(st.integers(0, len(wire)) | st.just(len(wire)))]))


def test_decoded_arrays_are_read_only_views_over_one_buffer() -> None:
    specs, payload = pack({"x": np.arange(5, dtype=np.uint8), "y": np.ones((2, 3)), "s": np.array(4, np.int32)})
    buffer = np.frombuffer(payload, np.uint8)
    for array in unpack(layout(specs), payload).values():
        assert np.shares_memory(array, buffer)
        assert array.flags.aligned
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.flags.writeable = True


def test_views_of_a_message_lie_where_the_layout_puts_them_in_one_buffer() -> None:
    message = tensors_to_message({"x": np.zeros(5, np.uint8), "y": np.ones((2, 3)), "s": np.array(4, np.int32)})
    x, y, s = (array.__array_interface__["data"][0] for array in tensors_from_message(message).values())
    assert (y - x, s - x) == (8, 56)


def test_packing_and_unpacking_hold_one_copy_of_the_payload() -> None:
    arrays = {"x": np.zeros((1000, 1000), np.float32), "y": np.ones(1_000_001, np.bool_), "z": np.zeros(10**6)}
    message = tensors_to_message(arrays)
    size = len(message.payload)
    assert size <= peak_bytes(lambda: pack(arrays)) < 1.02 * size
    assert size <= peak_bytes(lambda: tensors_from_message(message)) < 1.02 * size
    payload = message.payload
    assert peak_bytes(lambda: unpack(layout(message.specs), payload)) < 0.02 * size


def test_a_claimed_size_costs_no_memory() -> None:
    message = Tensors(specs=[spec_of(shape=[MOST, 2**20])], payload=b"ab")

    def refused() -> None:
        with pytest.raises(CodecError):
            tensors_from_message(message)

    assert peak_bytes(refused) < 2**20


# Compressed.

SMALL: dict[str, Array] = {
    "flag": np.array([[True], [False]]),
    "empty": np.zeros((0, 3), np.uint8),
    "half": np.array([1, -2, 3], np.float16),
    "picture": np.tile(np.arange(60, dtype=np.uint8), (5, 1)),
}


def compressed(arrays: Mapping[str, Array]) -> Tensors:
    return tensors_to_message(arrays, compression="zstd")


def frame(content: bytes, *, checksum: bool = True, size: bool = True) -> bytes:
    """Another sender's, who may have left something out."""
    return zstandard.ZstdCompressor(level=5, write_checksum=checksum, write_content_size=size).compress(content)


def claiming(size: int, content: bytes) -> bytes:
    """A frame whose header lies about how much it holds: RFC 8878 by hand, with blocks of one repeated byte."""
    header = struct.pack(
        "<IBBI", 0xFD2FB528, 0b10000100, 7 << 3, size
    )  # 4 bytes of size, checksum, a window of 128 KiB
    cut = [content[start : start + 2**17] for start in range(0, len(content), 2**17)]
    blocks = [
        struct.pack("<I", len(piece) << 3 | 0b10 | (i == len(cut) - 1))[:3] + piece[:1] for i, piece in enumerate(cut)
    ]
    return header + b"".join(blocks) + frame(content)[-4:]


@settings(max_examples=150, deadline=None)
@given(arrays_of_every_kind(allow_nan=True))
def test_what_goes_in_compressed_comes_out_and_is_a_frame_that_others_can_read(arrays: dict[str, Array]) -> None:
    message = Tensors.FromString(compressed(arrays).SerializeToString())
    assert_same(tensors_from_message(message), arrays)
    plain = tensors_to_message(arrays)
    assert message.specs == plain.specs
    if plain.payload:
        assert message.compression == COMPRESSION_ZSTD
        assert zstandard.ZstdDecompressor().decompressobj().decompress(message.payload) == plain.payload
    else:
        assert message == plain


def test_a_compressed_picture_is_smaller() -> None:
    assert len(compressed(SMALL).payload) < len(tensors_to_message(SMALL).payload) / 2


def test_what_is_not_compressed_is_the_message_that_it_always_was() -> None:
    wire = bytes.fromhex("0a080a01781002 1a0103 1203 010203".replace(" ", ""))  # before there was a compression
    arrays: dict[str, Array] = {"x": np.array([1, 2, 3], np.uint8)}
    assert tensors_to_message(arrays).SerializeToString() == wire
    assert_same(tensors_from_message(Tensors.FromString(wire)), arrays)


def test_the_number_of_the_compression_on_the_wire() -> None:
    assert compressed(SMALL).SerializeToString().endswith(b"\x18\x01")


def test_decompressed_arrays_are_read_only_views_over_one_buffer() -> None:
    arrays = tensors_from_message(compressed(SMALL))
    assert len({id(array.base) for array in arrays.values()}) == 1
    for array in arrays.values():
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0


CONTENT = bytes([7]) * 300
BROKEN = "the compressed payload is broken, expected one whole zstd frame ("
MALFORMED_COMPRESSED: dict[str, tuple[Tensors, str]] = {
    name: (Tensors(specs=[spec_of(shape=shape)], payload=payload, compression=compression), text)  # type: ignore[arg-type]
    for name, shape, payload, compression, text in [
        ("unknown compression", [300], CONTENT, 2, "compression is 2, expected 0 (none) or 1 (zstd)"),
        ("negative compression", [300], CONTENT, -1, "compression is -1, expected 0 (none) or 1 (zstd)"),
        ("says it is, and is not", [300], CONTENT, 1, BROKEN),
        (
            "is, and says it is not",
            [300],
            frame(CONTENT),
            0,
            f"the payload has {len(frame(CONTENT))} bytes, expected 300",
        ),
        ("nothing", [300], b"", 1, BROKEN),
        (
            "specs want more",
            [301],
            frame(CONTENT),
            1,
            "the size of the compressed payload is 300, expected 301 by the specs",
        ),
        (
            "specs want less",
            [299],
            frame(CONTENT),
            1,
            "the size of the compressed payload is 300, expected 299 by the specs",
        ),
        (
            "specs want nothing",
            [0],
            frame(b""),
            1,
            "the tensors have 0 bytes, expected 1 to 4194304 in a compressed payload",
        ),
        (
            "no size",
            [300],
            frame(CONTENT, size=False),
            1,
            "the size of the compressed payload is unknown, expected 300 by the specs",
        ),
        (
            "no checksum",
            [300],
            frame(CONTENT, checksum=False),
            1,
            "the compressed payload has no checksum, expected one",
        ),
        ("a wrong checksum", [300], frame(CONTENT)[:-4] + bytes(4), 1, BROKEN),
        ("one byte more", [300], frame(CONTENT) + b"x", 1, BROKEN),
        ("two frames", [300], frame(CONTENT) * 2, 1, BROKEN),
        (
            "a frame to be skipped",
            [300],
            struct.pack("<II", 0x184D2A50, 300) + CONTENT,
            1,
            "the compressed payload has no",
        ),
        ("expands to less than it claims", [300], claiming(300, CONTENT[1:]), 1, BROKEN),
        ("expands to more than it claims", [300], claiming(300, CONTENT + b"\7"), 1, BROKEN),
        ("a bomb that claims to be small", [300], claiming(300, bytes(2**26)), 1, BROKEN),
        (
            "a bomb that says what it is",
            [300],
            frame(bytes(2**26)),
            1,
            "the size of the compressed payload is 67108864, expected 300 by the specs",
        ),
        (
            "a bomb whose specs agree",
            [2**26],
            frame(bytes(2**26)),
            1,
            "the tensors have 67108864 bytes, expected 1 to 4194304 in a compressed payload",
        ),
        (
            "specs of 2 to the 62",
            [2**31, 2**31],
            frame(CONTENT),
            1,
            "the tensors have 4611686018427387904 bytes, expected 1 to 4194304 in a compressed payload",
        ),
    ]
}


@pytest.mark.parametrize(("message", "text"), MALFORMED_COMPRESSED.values(), ids=MALFORMED_COMPRESSED)
def test_a_malformed_compressed_payload_is_refused_before_it_costs_memory(message: Tensors, text: str) -> None:
    wire = message.SerializeToString()

    def refused() -> None:
        with pytest.raises(CodecError) as caught:
            tensors_from_message(Tensors.FromString(wire))
        assert str(caught.value).startswith(text)

    refused()  # what is imported on the way is not its cost
    assert peak_bytes(refused) < 2**17


def test_the_claiming_frame_is_otherwise_a_good_one() -> None:
    message = Tensors(specs=[spec_of(shape=[300])], payload=claiming(300, CONTENT), compression=COMPRESSION_ZSTD)
    assert tensors_from_message(message)["x"].tobytes() == CONTENT


def test_the_limit_is_the_callers_and_is_allowed_itself() -> None:
    message = compressed({"x": np.zeros(1000, np.uint8)})
    assert tensors_from_message(message, max_bytes=1000)["x"].shape == (1000,)
    with pytest.raises(CodecError, match=r"^the tensors have 1000 bytes, expected 1 to 999 in a compressed payload$"):
        tensors_from_message(message, max_bytes=999)


def test_a_compressed_payload_cut_at_any_byte_is_refused() -> None:
    message = compressed(SMALL)
    for length in range(len(message.payload)):
        cut = Tensors(specs=message.specs, payload=message.payload[:length], compression=COMPRESSION_ZSTD)
        with pytest.raises(CodecError, match="compressed payload"):
            tensors_from_message(cut)


def test_a_flipped_bit_anywhere_in_a_compressed_payload_is_refused_or_changes_nothing() -> None:
    message = compressed(SMALL)
    survived = 0
    for bit in range(8 * len(message.payload)):
        payload = bytearray(message.payload)
        payload[bit // 8] ^= 1 << bit % 8
        try:
            arrays = tensors_from_message(
                Tensors(specs=message.specs, payload=bytes(payload), compression=COMPRESSION_ZSTD)
            )
        except CodecError:
            continue
        assert_same(arrays, SMALL)
        survived += 1
    assert survived < 8  # bits without a meaning


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_changed_and_missing_bytes_never_break_the_decoder_of_compressed_messages(data: st.DataObject) -> None:
    wire = bytearray(compressed(SMALL).SerializeToString())
    for position in data.draw(st.lists(st.integers(0, len(wire) - 1), max_size=3)):
        wire[position] = data.draw(st.integers(0, 255))
    del wire[data.draw(st.integers(0, len(wire)) | st.just(len(wire))) :]
    try:
        arrays = tensors_from_message(Tensors.FromString(bytes(wire)))
    except (CodecError, DecodeError):
        return
    assert sum(array.nbytes for array in arrays.values()) <= 4 * 2**20


def test_decompressing_holds_two_copies_one_of_them_compressed() -> None:
    arrays: dict[str, Array] = {"x": np.random.default_rng(0).integers(0, 4, 3_000_000, np.uint8)}
    message = compressed(arrays)
    tensors_from_message(message)
    peak = peak_bytes(lambda: tensors_from_message(message))
    assert 3_000_000 <= peak < 1.02 * (3_000_000 + len(message.payload))


def test_zstandard_is_imported_only_by_those_who_compress() -> None:
    program = (
        "import sys, numpy as np, leco.rpc.codec, services.hashcount.__main__ as _\n"
        "from leco.rpc.tensors import *\n"
        "arrays = {'x': np.ones(3)}\n"
        "tensors_from_message(tensors_to_message(arrays))\n"
        "assert 'zstandard' not in sys.modules\n"
        "tensors_to_message(arrays, compression='zstd')\n"
        "assert 'zstandard' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
