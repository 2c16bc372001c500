from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad

from leco.models.kinds.minigrid import MiniGridPolicy, OneHotCells
from leco.models.kinds.pixels import PixelPolicy
from leco.models.policy import PolicyOutput

if TYPE_CHECKING:
    from collections.abc import Mapping

Policy = MiniGridPolicy | PixelPolicy
Batch = tuple[Tensor, Tensor, Tensor, Tensor]

POLICIES = [(MiniGridPolicy, 7), (PixelPolicy, 9)]
T, B = 5, 2


def make(policy: type[Policy], actions: int, dtype: torch.dtype = torch.float64) -> Policy:
    torch.manual_seed(1)
    return policy(actions).to(dtype)


def batch(policy: Policy, seed: int = 0) -> Batch:
    """Observations, starts (inside the unroll too), previous actions and rewards."""
    generator = torch.Generator().manual_seed(seed)
    if isinstance(policy, MiniGridPolicy):
        top = torch.tensor([11, 6, 3])  # ids up to and with 10, 5, 2
        observation = (torch.rand(T, B, 7, 7, 3, generator=generator) * top).to(torch.uint8)
    else:
        observation = torch.randint(0, 256, (T, B, 72, 96, 3), generator=generator, dtype=torch.uint8)
    start_TB = torch.tensor([[0, 1], [0, 0], [1, 0], [0, 0], [0, 1]], dtype=torch.bool)
    action_TB = torch.randint(0, policy.num_actions, (T, B), generator=generator).masked_fill(start_TB, -1)
    reward_TB = torch.randn(T, B, generator=generator, dtype=torch.float64)
    return observation, start_TB, action_TB, reward_TB


def state_of(policy: Policy) -> Tensor:
    state = policy.initial_state(B)
    random = torch.randn(state.shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    return 0.3 * random.to(state.dtype)


def run(policy: Policy, parameters: Mapping[str, Tensor], given: Batch) -> tuple[Tensor, Tensor, Tensor]:
    output = torch.func.functional_call(policy, dict(parameters), (*given, state_of(policy)))
    assert isinstance(output, PolicyOutput)
    return output[:3]


def tangents(policy: nn.Module, dtype: torch.dtype) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(3)
    return {
        name: torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(dtype)
        for name, parameter in policy.named_parameters()
    }


def forward_mode(policy: Policy, along: Mapping[str, Tensor], given: Batch) -> list[Tensor]:
    """The tangents of logits and value where the parameters are dual numbers."""
    known = policy(*given, state_of(policy)).hidden
    with forward_ad.dual_level():
        dual = {n: forward_ad.make_dual(p.detach(), along[n]) for n, p in policy.named_parameters()}
        output = torch.func.functional_call(policy, dual, (*given, state_of(policy)), {"hidden": known})
        return [forward_ad.unpack_dual(out).tangent.clone() for out in (output.logits_TBA, output.value_TB)]


@pytest.mark.parametrize(("kind", "actions"), POLICIES)
def test_shapes_types_and_repeatability(kind: type[Policy], actions: int) -> None:
    policy = make(kind, actions, torch.float32)
    given = batch(policy)
    logits_TBA, value_TB, state, _ = policy(*given, policy.initial_state(B))
    layers, width = (1, 256) if kind is MiniGridPolicy else (2, 256 + actions + 1)
    assert logits_TBA.shape == (T, B, actions)
    assert value_TB.shape == (T, B)
    assert state.shape == policy.initial_state(B).shape == (layers, 2, B, width)
    assert logits_TBA.dtype == value_TB.dtype == state.dtype == torch.float32
    same = make(kind, actions, torch.float32)(*given, policy.initial_state(B))
    assert torch.equal(same.logits_TBA, logits_TBA)


def test_parameter_counts() -> None:
    def count(module: nn.Module) -> int:
        return sum(parameter.numel() for parameter in module.parameters())

    actions, width = 7, 256
    convolutions = (3 * 9 + 1) * 32 + 2 * (32 * 9 + 1) * 32
    core = 4 * width * (width + width + 1)
    heads = (width + 1) * (actions + 1)
    assert count(MiniGridPolicy(actions)) == convolutions + 33 * 256 + core + heads == 555_208

    actions, width = 9, 266
    stages = [(a * 9 + 1) * b + 4 * (b * 9 + 1) * b for a, b in ((3, 16), (16, 32), (32, 32))]
    core = 2 * 4 * width * (width + width + 1)
    heads = (width + 1) * (actions + 1)
    assert count(PixelPolicy(actions)) == sum(stages) + (3456 + 1) * 256 + core + heads == 2_119_486


@pytest.mark.parametrize(("kind", "actions"), POLICIES)
def test_step_by_step_equals_the_unroll(kind: type[Policy], actions: int) -> None:
    policy = make(kind, actions)
    given = batch(policy)
    with torch.no_grad():
        whole = policy(*given, state_of(policy))
        state = state_of(policy)
        for t in range(T):
            step = policy(*(tensor[t : t + 1] for tensor in given), state)
            state = step.state
            torch.testing.assert_close(step.logits_TBA[0], whole.logits_TBA[t], rtol=1e-10, atol=1e-12)
            torch.testing.assert_close(step.value_TB[0], whole.value_TB[t], rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(state, whole.state, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize(("kind", "actions"), POLICIES)
def test_an_episode_knows_nothing_of_the_one_before(kind: type[Policy], actions: int) -> None:
    policy = make(kind, actions)
    given, other = batch(policy), batch(policy, seed=9)
    start_TB = torch.zeros(T, B, dtype=torch.bool)
    start_TB[2, 0] = True
    with torch.no_grad():
        before = policy(given[0], start_TB, given[2], given[3], state_of(policy))
        mixed = [torch.cat((theirs[:2], ours[2:])) for theirs, ours in zip(other, given, strict=True)]
        after = policy(mixed[0], start_TB, mixed[2], mixed[3], state_of(policy) + 1)
    torch.testing.assert_close(after.logits_TBA[2:, 0], before.logits_TBA[2:, 0], rtol=1e-12, atol=1e-14)
    torch.testing.assert_close(after.value_TB[2:, 0], before.value_TB[2:, 0], rtol=1e-12, atol=1e-14)
    assert not torch.allclose(after.logits_TBA[:2, 0], before.logits_TBA[:2, 0])
    assert not torch.allclose(after.logits_TBA[2:, 1], before.logits_TBA[2:, 1])  # no start: it remembers


def test_minigrid_shows_its_integers_as_they_are() -> None:
    policy = make(MiniGridPolicy, 7)
    seen: list[Tensor] = []
    first = policy.encoder.get_submodule("0")
    first.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    observation = torch.tensor([10, 5, 2], dtype=torch.uint8).expand(T, B, 7, 7, 3).clone()
    observation[..., 6, 0] = 5  # the object at the last column
    _, *rest = batch(policy)
    policy(observation, *rest, state_of(policy))
    image_NCHW = seen[0]
    assert image_NCHW.shape == (T * B, 3, 7, 7)
    assert image_NCHW[0, :, 0, 0].tolist() == [10.0, 5.0, 2.0]
    assert image_NCHW[0, :, 0, 6].tolist() == [5.0, 5.0, 2.0]


def test_minigrid_begins_orthogonal_so_that_what_is_seen_reaches_the_core() -> None:
    policy = make(MiniGridPolicy, 7)
    gains = {"encoder.0": 2.0, "encoder.7": 2.0, "policy_head": 1e-4, "value_head": 1.0}
    for name, square in gains.items():
        weight_OI = policy.get_submodule(name).get_parameter("weight").flatten(1)
        narrow = weight_OI if len(weight_OI) <= weight_OI.shape[1] else weight_OI.t()
        torch.testing.assert_close(narrow @ narrow.t(), square * torch.eye(len(narrow)).double(), rtol=1e-6, atol=1e-6)
    assert all((parameter == 0).all() for name, parameter in policy.named_parameters() if "bias" in name)
    view_NO = (torch.rand(1, 50, 7, 7, 3) * torch.tensor([11, 6, 3])).to(torch.uint8)
    feature_NF = policy.encoder(view_NO[0].permute(0, 3, 1, 2).double()).detach()
    assert float(feature_NF.std(0).mean()) > 0.1


def test_dmlab_scales_pixels_and_feeds_back_action_and_reward() -> None:
    policy = make(PixelPolicy, 9)
    images: list[Tensor] = []
    inputs: list[Tensor] = []
    policy.encoder.get_submodule("1").register_forward_pre_hook(lambda _, arguments: images.append(arguments[0]))
    policy.core.register_forward_pre_hook(lambda _, arguments: inputs.append(arguments[0]))
    _, start_TB, action_TB, reward_TB = batch(policy)
    observation = torch.zeros(T, B, 72, 96, 3, dtype=torch.uint8)
    observation[..., 1] = 255
    policy(observation, start_TB, action_TB, reward_TB, state_of(policy))
    assert images[0][0, :, 0, 0].tolist() == [-1.0, 1.0, -1.0]
    for t in range(T):
        for b in range(B):
            one_hot = [1.0 if a == action_TB[t, b] else 0.0 for a in range(9)]
            assert inputs[0][t, b, 256:].tolist() == [*one_hot, reward_TB[t, b]]
    assert sum(inputs[0][0, 1, 256:265]) == 0  # an episode starts: there was no action


@pytest.mark.parametrize(("kind", "actions"), POLICIES)
def test_forward_mode_equals_reverse_mode(kind: type[Policy], actions: int) -> None:
    policy = make(kind, actions)
    given = batch(policy)
    along = tangents(policy, torch.float64)
    forwards = forward_mode(policy, along, given)
    outputs = run(policy, dict(policy.named_parameters()), given)[:2]
    generator = torch.Generator().manual_seed(4)
    weigh = [torch.randn(output.shape, generator=generator, dtype=torch.float64) for output in outputs]
    by_forward = torch.stack([(t * w).sum() for t, w in zip(forwards, weigh, strict=True)]).sum()
    grads = torch.autograd.grad(outputs, [*policy.parameters()], weigh)
    by_reverse = torch.stack([(g * t).sum() for g, t in zip(grads, along.values(), strict=True)]).sum()
    torch.testing.assert_close(by_forward, by_reverse, rtol=1e-9, atol=0)


@pytest.mark.parametrize(("kind", "actions"), POLICIES)
def test_forward_mode_equals_a_finite_difference(kind: type[Policy], actions: int) -> None:
    policy = make(kind, actions)
    given = batch(policy)
    along = tangents(policy, torch.float64)

    def moved(by: float) -> tuple[Tensor, ...]:
        with torch.no_grad():
            return run(policy, {n: p + by * along[n] for n, p in policy.named_parameters()}, given)[:2]

    step = 1e-7 if kind is MiniGridPolicy else 1e-9  # ReLU and max-pooling have kinks: stay on one side of most
    for tangent, ahead, behind in zip(forward_mode(policy, along, given), moved(step), moved(-step), strict=True):
        difference = (ahead - behind) / (2 * step)
        assert (difference - tangent).norm() < 1e-4 * tangent.norm()


@pytest.mark.parametrize(("kind", "actions"), POLICIES)
def test_forward_mode_in_single_precision(kind: type[Policy], actions: int) -> None:
    double, single = make(kind, actions), make(kind, actions, torch.float32)
    exact = forward_mode(double, tangents(double, torch.float64), batch(double))
    rough = forward_mode(single, tangents(single, torch.float32), batch(single))
    for a, b in zip(exact, rough, strict=True):
        assert b.dtype == torch.float32
        assert (b - a).norm() < 1e-3 * a.norm()


@pytest.mark.parametrize(("kind", "actions"), POLICIES)
def test_wrong_shapes_are_refused(kind: type[Policy], actions: int) -> None:
    policy = make(kind, actions, torch.float32)
    given, state = [*batch(policy)], policy.initial_state(B)
    size = "7, 7, 3" if kind is MiniGridPolicy else "72, 96, 3"
    for wrong in (given[0][0], given[0].movedim(4, 2)):
        with pytest.raises(ValueError, match=rf"observation has shape .*; expected \[T, B, {size}\]"):
            policy(wrong, *given[1:], state)
    for at, name in ((1, "start_TB"), (2, "previous_action_TB"), (3, "previous_reward_TB")):
        changed = [tensor.T if n == at else tensor for n, tensor in enumerate(given)]
        with pytest.raises(ValueError, match=rf"{name} has shape \[2, 5\]; expected \[5, 2\]"):
            policy(*changed, state)
    with pytest.raises(ValueError, match=r"state has shape \[., 2, 3, "):
        policy(*given, policy.initial_state(3))


@pytest.mark.parametrize(("kind", "actions"), POLICIES)
def test_distinct_observations_give_what_all_of_them_give(kind: type[Policy], actions: int) -> None:
    """Values, gradients and tangents; the last distinct observation is padding that no step saw."""
    policy = make(kind, actions)
    observation, *rest = batch(policy)
    few_UO = torch.cat([observation[0], observation[1, :1], observation[2, 1:]])
    index_TB = torch.tensor([[0, 1], [2, 0], [0, 0], [1, 2], [2, 2]])
    plain = policy(few_UO[index_TB], *rest, state_of(policy))
    once = policy(few_UO, *rest, state_of(policy), index_TB=index_TB)
    gradients = []
    for output in (plain, once):
        loss = (output.logits_TBA.square().sum() + output.value_TB.sum() + output.state.square().sum()).sqrt()
        gradients.append(torch.autograd.grad(loss, list(policy.parameters())))
    for expected, found in zip((*plain[:3], *gradients[0]), (*once[:3], *gradients[1]), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-10, atol=1e-10 * float(expected.detach().abs().max()))
    along = tangents(policy, torch.float64)
    dual = []
    with forward_ad.dual_level():
        parameters = {n: forward_ad.make_dual(p.detach(), along[n]) for n, p in policy.named_parameters()}
        whole = few_UO[index_TB]
        for given, keywords in ((whole, {}), (few_UO, {"index_TB": index_TB})):
            arguments = (given, *rest, state_of(policy))
            output = torch.func.functional_call(policy, parameters, arguments, {**keywords, "hidden": once.hidden})
            dual.append(forward_ad.unpack_dual(output.logits_TBA).tangent.clone())
    torch.testing.assert_close(dual[1], dual[0], rtol=1e-10, atol=1e-10)


def test_distinct_observations_of_wrong_shape_are_refused() -> None:
    policy = make(MiniGridPolicy, 7, torch.float32)
    observation, *rest = batch(policy)
    index_TB = torch.zeros(T, B, dtype=torch.int64)
    with pytest.raises(ValueError, match=r"observation has shape \[5, 2, 7, 7, 3\]; expected \[U, 7, 7, 3\]"):
        policy(observation, *rest, policy.initial_state(B), index_TB=index_TB)
    with pytest.raises(ValueError, match=r"start_TB has shape \[5, 2\]; expected \[4, 2\], as index_TB"):
        policy(observation[0], *rest, policy.initial_state(B), index_TB=index_TB[1:])


def test_one_hot_cells_are_categories_and_what_minigrid_does_not_have_is_the_largest() -> None:
    random = torch.Generator().manual_seed(3)
    value_N3HW = torch.randint(0, 13, (4, 3, 7, 7), generator=random)
    category_NCHW = OneHotCells()(value_N3HW)
    expected_NCHW = torch.zeros(4, 21, 7, 7, dtype=torch.long)
    for n, channel, h, w in itertools.product(range(4), range(3), range(7), range(7)):
        first, values = ((0, 11), (11, 6), (17, 4))[channel]
        expected_NCHW[n, first + min(int(value_N3HW[n, channel, h, w]), values - 1), h, w] = 1
    assert torch.equal(category_NCHW, expected_NCHW)
    assert OneHotCells()(value_N3HW.double()).dtype == torch.float64


def test_a_policy_of_one_hot_cells_tells_values_apart_that_differ_in_kind_alone() -> None:
    policy = MiniGridPolicy(7, 16, one_hot=True)
    assert sum(p.numel() for p in policy.encoder.parameters()) == (21 * 9 + 1) * 32 + (32 * 9 + 1) * 32 + 129 * 16
    ball, box = (torch.full((1, 3, 7, 7), 0.0).index_fill(1, torch.tensor(0), number) for number in (6.0, 7.0))
    assert not torch.allclose(policy.encoder(ball), policy.encoder(box), atol=1e-3)
