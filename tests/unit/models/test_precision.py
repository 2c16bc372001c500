"""bfloat16 is in the convolutions of an update and nowhere else. Every processor can compute it, so the tests need none that is
fast at it."""

from __future__ import annotations

import contextvars
import platform
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import functional_call

from leco.learning.state import Batch, Networks, init
from leco.learning.update import update
from leco.methods.table import find_method
from leco.models import precision as precision_module
from leco.models.build import build
from leco.models.hash_function import make_hash_function
from leco.models.intrinsic import HashModule
from leco.models.kinds.pixels import PixelPolicy
from leco.models.kinds.table import find_kind
from leco.models.precision import convolution_dtype, multiplies_bfloat16, precision
from support.training_case import awaken, make_batch, paper_config, picture_batch

if TYPE_CHECKING:
    from collections.abc import Mapping

MINIGRID, PICTURE = (7, 7, 3), (24, 32, 3)


@pytest.fixture
def _everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also on processors that have no such products."""
    monkeypatch.setattr(precision_module, "multiplies_bfloat16", lambda _: True)


def single(method: str, shape: tuple[int, int, int]) -> Networks:
    """Networks in float32."""
    torch.manual_seed(0)
    nets = build(find_method(method), shape, 7)
    assert nets.intrinsic is not None
    awaken(nets.intrinsic)
    return nets


def batch_of(shape: tuple[int, int, int]) -> Batch:
    """In float32."""
    batch = make_batch() if shape == MINIGRID else picture_batch(shape)
    return Batch(**{name: _single(each) for name, each in batch._asdict().items()})


def _single(tensor: Tensor | None) -> Any:
    return tensor.float() if tensor is not None and tensor.is_floating_point() else tensor


def alike(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> float:
    """The cosine between two lists of tensors."""
    a, b = (torch.cat([each.double().flatten() for each in tensors.values()]) for tensors in (first, second))
    return float(a @ b / (a.norm() * b.norm()))


@pytest.mark.skipif(platform.system() != "Linux", reason="processors say what they have in /proc/cpuinfo")
def test_a_processor_is_asked_what_it_has() -> None:
    flags = Path("/proc/cpuinfo").read_text().split()
    assert multiplies_bfloat16("cpu") == ("avx512_bf16" in flags or "amx_bf16" in flags)


@pytest.mark.usefixtures("_everywhere")
def test_it_is_for_float32_inside_the_context_and_in_threads_that_take_a_copy_of_it() -> None:
    seen: list[torch.dtype] = []
    single_, double = torch.zeros(1), torch.zeros(1, dtype=torch.float64)
    with precision("auto"):
        assert (convolution_dtype(single_), convolution_dtype(double)) == (torch.bfloat16, torch.float64)
        with precision("float32"):
            assert convolution_dtype(single_) == torch.float32
        copy = contextvars.copy_context()
        thread = threading.Thread(target=lambda: seen.append(copy.run(convolution_dtype, single_)))
        thread.start()
        thread.join()
    assert seen == [torch.bfloat16]
    assert convolution_dtype(single_) == torch.float32


def test_a_machine_without_it_computes_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(precision_module, "multiplies_bfloat16", lambda _: False)
    with precision("auto"):
        assert convolution_dtype(torch.zeros(1)) == torch.float32


@pytest.mark.usefixtures("_everywhere")
@pytest.mark.parametrize("shape", [MINIGRID, PICTURE], ids=["minigrid", "picture"])
@pytest.mark.parametrize("method", ["leco", "leco-ae-lsh"])
def test_an_update_learns_nearly_the_same_and_keeps_float32(method: str, shape: tuple[int, int, int]) -> None:
    nets, batch, row = single(method, shape), batch_of(shape), find_method(method)
    state = init(nets)
    plain, said = update(nets, state, batch, row, paper_config(precision="float32"))
    ours, saying = update(nets, state, batch, row, paper_config(precision="auto"))
    for name in ("intrinsic", "running", "policy", "policy_adam", "intrinsic_adam"):
        tensors = getattr(ours, name)
        every = [*tensors.values()] if isinstance(tensors, dict) else [*tensors.exp_avg.values()]
        assert {each.dtype for each in every} <= {torch.float32, torch.int64}, name
    assert saying["hash_loss"] != said["hash_loss"], "the hash is computed in bfloat16"
    assert saying["hash_loss"] == pytest.approx(said["hash_loss"], rel=0.02)
    # Of so few pictures, one place whose z is between two vectors of the codebook turns much of VQ's gradient.
    least = 0.8 if method == "leco" else 0.98
    assert alike(ours.intrinsic_adam.exp_avg, plain.intrinsic_adam.exp_avg) > least
    assert alike(ours.policy_adam.exp_avg, plain.policy_adam.exp_avg) > 0.99


@pytest.mark.usefixtures("_everywhere")
@pytest.mark.parametrize("shape", [MINIGRID, PICTURE], ids=["minigrid", "picture"])
@pytest.mark.parametrize("method", ["leco", "leco-ae-lsh"])
def test_codes_are_of_float32_everywhere(method: str, shape: tuple[int, int, int]) -> None:
    """Those of an actor, of a learner's process, and inside an update are the same."""
    nets, batch, row = single(method, shape), batch_of(shape), find_method(method)
    state, _ = update(nets, init(nets), batch, row, paper_config(precision="auto"))
    assert isinstance(nets.intrinsic, HashModule)
    hash_function = make_hash_function(row, find_kind(shape), nets.intrinsic)
    assert hash_function is not None
    hash_function.load({**state.intrinsic, **state.running})
    observation_N = batch.observation_TBO.flatten(0, 1).numpy()
    outside, z = hash_function.codes(observation_N), nets.intrinsic.encode(batch.observation_TBO[0])
    with precision("auto"):
        assert (hash_function.codes(observation_N) == outside).all()
        assert torch.equal(nets.intrinsic.encode(batch.observation_TBO[0]), z)


@pytest.mark.usefixtures("_everywhere")
def test_float64_is_left_alone() -> None:
    nets = Networks(*(net and net.double() for net in single("leco", PICTURE)))  # type: ignore[arg-type]
    batch, row = picture_batch(PICTURE), find_method("leco")
    plain, _ = update(nets, init(nets), batch, row, paper_config(precision="float32"))
    ours, _ = update(nets, init(nets), batch, row, paper_config(precision="auto"))
    for one, other in ((plain.policy, ours.policy), (plain.intrinsic, ours.intrinsic)):
        assert all(torch.equal(tensor, other[name]) for name, tensor in one.items())


@pytest.mark.usefixtures("_everywhere")
def test_tangents_of_a_policys_encoder_are_nearly_those_of_float32() -> None:
    torch.manual_seed(0)
    encoder = PixelPolicy(7, 16, shape=PICTURE).encoder
    picture = torch.randint(256, (9, 3, 24, 32)).float()
    directions = {name: 0.01 * torch.randn_like(each) for name, each in encoder.named_parameters()}
    tangents = []
    for setting in ("float32", "auto"):
        with precision(setting), torch.no_grad(), forward_ad.dual_level():
            duals = {n: forward_ad.make_dual(p.detach(), directions[n]) for n, p in encoder.named_parameters()}
            dual = functional_call(encoder, duals, picture)
            assert dual.dtype == torch.float32
            tangents.append(forward_ad.unpack_dual(dual).tangent)
    assert not torch.equal(*tangents)
    assert alike({"": tangents[0]}, {"": tangents[1]}) > 0.99
