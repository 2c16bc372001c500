from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck, gradgradcheck

from leco.algo.vtrace import VTrace, vtrace
from support.reference import vtrace_numpy

Inputs = dict[str, Any]  # the tensors that `vtrace` takes, by name


def random_inputs(steps: int, unrolls: int, *, seed: int = 0, dtype: torch.dtype = torch.float64) -> Inputs:
    """Ratios on both sides of 1, and about every fourth action ends an episode."""
    rng = np.random.default_rng(seed)
    shape = (steps, unrolls)
    arrays = {
        "log_rho_TB": rng.normal(0, 0.7, shape),
        "reward_TB": rng.normal(0, 1, shape),
        "discount_TB": 0.9 * (rng.random(shape) > 0.25),
        "value_TB": rng.normal(0, 1, shape),
        "bootstrap_B": rng.normal(0, 1, unrolls),
    }
    return {name: torch.as_tensor(array, dtype=dtype) for name, array in arrays.items()}


def column(*numbers: float) -> Tensor:
    return torch.tensor(numbers, dtype=torch.float64).unsqueeze(1)


def reference(inputs: Inputs, rho_bar: float, c_bar: float, decay: float = 1.0) -> VTrace:
    arrays = {name.rsplit("_", 1)[0]: tensor.double().numpy() for name, tensor in inputs.items()}
    results = vtrace_numpy.vtrace(**arrays, rho_bar=rho_bar, c_bar=c_bar, decay=decay)
    return VTrace(*(torch.from_numpy(result) for result in results))


def assert_close(one: VTrace, other: VTrace, tolerance: float = 1e-12) -> None:
    for name, a, b in zip(VTrace._fields, one, other, strict=True):
        torch.testing.assert_close(a, b, rtol=tolerance, atol=tolerance, msg=f"{name}: {a} is not {b}")


@pytest.mark.parametrize("steps", [1, 2, 3, 4, 5, 8, 17])
@pytest.mark.parametrize(
    ("rho_bar", "c_bar", "decay"), [(1.0, 1.0, 1.0), (1.5, 0.7, 1.0), (0.4, 1.2, 1.0), (1.0, 1.0, 0.9), (1.5, 0.7, 0.3)]
)
def test_equals_the_naive_reference(steps: int, rho_bar: float, c_bar: float, decay: float) -> None:
    inputs = random_inputs(steps, 6, seed=steps)
    result = vtrace(**inputs, rho_bar=rho_bar, c_bar=c_bar, decay=decay)
    assert_close(result, reference(inputs, rho_bar, c_bar, decay))


@pytest.mark.parametrize("decay", [0.0, 0.6, 1.0])
def test_with_equal_policies_it_is_the_generalised_advantage(decay: float) -> None:
    inputs = random_inputs(9, 4) | {"log_rho_TB": torch.zeros(9, 4, dtype=torch.float64)}
    ahead_TB = torch.cat([inputs["value_TB"][1:], inputs["bootstrap_B"].unsqueeze(0)])
    delta_TB = inputs["reward_TB"] + inputs["discount_TB"] * ahead_TB - inputs["value_TB"]
    expected_TB, later_B = torch.empty_like(delta_TB), torch.zeros(4, dtype=torch.float64)
    for t in reversed(range(9)):
        expected_TB[t] = later_B = delta_TB[t] + decay * inputs["discount_TB"][t] * later_B
    result = vtrace(**inputs, decay=decay)
    torch.testing.assert_close(result.advantage_TB, expected_TB)
    torch.testing.assert_close(result.target_TB, inputs["value_TB"] + expected_TB)


def test_equals_the_naive_reference_in_float32_over_a_whole_unroll() -> None:
    inputs = random_inputs(96, 1, dtype=torch.float32)
    result = vtrace(**inputs)
    assert {tensor.dtype for tensor in result} == {torch.float32}
    assert_close(VTrace(*(tensor.double() for tensor in result)), reference(inputs, 1.0, 1.0), 1e-5)


def test_three_steps_by_hand() -> None:
    result = vtrace(
        log_rho_TB=column(0.5, 2.0, 1.0).log(),
        reward_TB=column(1.0, 2.0, 3.0),
        discount_TB=column(0.5, 0.5, 0.5),
        value_TB=column(0.5, 1.0, 1.5),
        bootstrap_B=torch.tensor([2.0], dtype=torch.float64),
    )
    # delta = 0.5 * (1 + 0.5 - 0.5), 2 + 0.75 - 1, 3 + 1 - 1.5 = 0.5, 1.75, 2.5
    # v - V = 0.5 + 0.5 * 0.5 * 3, 1.75 + 0.5 * 2.5, 2.5       = 1.25, 3, 2.5
    expected = VTrace(column(1.75, 4.0, 4.0), column(2.5, 3.0, 2.5), column(0.5, 1.0, 1.0))
    assert_close(result, expected)


def test_on_policy_targets_are_the_discounted_returns_to_the_end_or_the_bootstrap() -> None:
    inputs = random_inputs(12, 5)
    inputs["log_rho_TB"] = torch.zeros_like(inputs["log_rho_TB"])
    following, returns = inputs["bootstrap_B"], []
    for reward, discount in zip(inputs["reward_TB"].flip(0), inputs["discount_TB"].flip(0), strict=True):
        following = reward + discount * following
        returns.append(following)
    returns_TB = torch.stack(returns[::-1])
    assert_close(
        vtrace(**inputs), VTrace(returns_TB, returns_TB - inputs["value_TB"], torch.ones_like(returns_TB)), 1e-12
    )


def test_without_discount_only_the_reward_counts() -> None:
    inputs = random_inputs(7, 3)
    inputs["discount_TB"] = torch.zeros_like(inputs["discount_TB"])
    rho_TB = inputs["log_rho_TB"].exp().clamp(max=1)
    surprise_TB = inputs["reward_TB"] - inputs["value_TB"]
    assert_close(vtrace(**inputs), VTrace(inputs["value_TB"] + rho_TB * surprise_TB, surprise_TB, rho_TB))


def test_one_step_is_one_temporal_difference() -> None:
    inputs = random_inputs(1, 8)
    rho_TB = inputs["log_rho_TB"].exp().clamp(max=1)
    difference_TB = inputs["reward_TB"] + inputs["discount_TB"] * inputs["bootstrap_B"] - inputs["value_TB"]
    assert_close(vtrace(**inputs), VTrace(inputs["value_TB"] + rho_TB * difference_TB, difference_TB, rho_TB))


def test_actions_that_the_policy_would_never_take_teach_the_value_nothing() -> None:
    inputs = random_inputs(6, 3)
    inputs["log_rho_TB"] = torch.full_like(inputs["log_rho_TB"], -1e4)
    result = vtrace(**inputs)
    assert torch.equal(result.target_TB, inputs["value_TB"])
    assert not result.rho_TB.any()


def test_a_huge_ratio_is_clipped_and_not_infinite() -> None:
    inputs = random_inputs(6, 3)
    even = inputs | {"log_rho_TB": torch.zeros_like(inputs["log_rho_TB"])}
    huge = inputs | {"log_rho_TB": torch.full_like(inputs["log_rho_TB"], 1e4)}
    assert_close(vtrace(**huge), vtrace(**even))


@pytest.mark.parametrize("end", [0, 3, 6])
def test_nothing_leaks_over_the_end_of_an_episode(end: int) -> None:
    one, other = random_inputs(10, 4, seed=1), random_inputs(10, 4, seed=2)
    mixed: Inputs = {
        name: other[name] if name == "bootstrap_B" else torch.cat([one[name][: end + 1], other[name][end + 1 :]])
        for name in one
    }
    for inputs in (one, mixed):
        inputs["discount_TB"][end] = 0
    before, after = vtrace(**one), vtrace(**mixed)
    alone = vtrace(**{name: x if name == "bootstrap_B" else x[end + 1 :] for name, x in mixed.items()})
    for a, b, c in zip(before, after, alone, strict=True):
        torch.testing.assert_close(a[: end + 1], b[: end + 1], rtol=0, atol=0)
        torch.testing.assert_close(b[end + 1 :], c, rtol=1e-12, atol=1e-12)


def test_unrolls_of_a_batch_do_not_see_each_other() -> None:
    inputs = random_inputs(9, 3)
    alone = vtrace(**{name: x[1:2] if name == "bootstrap_B" else x[:, 1:2] for name, x in inputs.items()})
    assert_close(VTrace(*(tensor[:, 1:2] for tensor in vtrace(**inputs))), alone)


@pytest.mark.parametrize("field", ["target_TB", "advantage_TB"])
def test_the_gradient_with_respect_to_the_rewards(field: str) -> None:
    inputs = random_inputs(7, 2)

    def of_reward(reward_TB: Tensor) -> Tensor:
        result: Tensor = getattr(vtrace(**inputs | {"reward_TB": reward_TB}), field)
        return result

    reward_TB = inputs["reward_TB"].clone().requires_grad_()
    assert gradcheck(of_reward, [reward_TB], check_forward_ad=True)
    assert gradgradcheck(of_reward, [reward_TB])


def test_the_gradient_by_hand() -> None:
    reward_TB = column(1.0, 2.0, 3.0).requires_grad_()
    result = vtrace(
        log_rho_TB=column(0.5, 2.0, 0.25).log(),
        reward_TB=reward_TB,
        discount_TB=column(0.5, 0.5, 0.5),
        value_TB=column(0.5, 1.0, 1.5),
        bootstrap_B=torch.tensor([2.0], dtype=torch.float64),
    )
    (target_gradient,) = torch.autograd.grad(result.target_TB[0, 0], reward_TB, retain_graph=True)
    (advantage_gradient,) = torch.autograd.grad(result.advantage_TB[0, 0], reward_TB)
    # v[0] has rho[0], then discount * c[0] * rho[1], then (discount * c[0]) * (discount * c[1]) * rho[2].
    torch.testing.assert_close(target_gradient, column(0.5, 0.25, 0.03125))
    torch.testing.assert_close(advantage_gradient, column(1.0, 0.5, 0.0625))


def test_only_the_rewards_are_differentiated() -> None:
    inputs = {name: tensor.requires_grad_() for name, tensor in random_inputs(5, 2).items()}
    result = vtrace(**inputs)
    (result.target_TB.sum() + result.advantage_TB.square().sum()).backward()  # type: ignore[no-untyped-call]
    assert {name for name, tensor in inputs.items() if tensor.grad is not None} == {"reward_TB"}
    assert not result.rho_TB.requires_grad


@pytest.mark.parametrize("name", ["log_rho_TB", "reward_TB", "discount_TB", "value_TB"])
def test_a_tensor_that_would_be_broadcast_is_refused(name: str) -> None:
    inputs = random_inputs(5, 2)
    with pytest.raises(ValueError, match=rf"expected tensors of one shape.*{name} \(5, 1\)"):
        vtrace(**inputs | {name: inputs[name][:, :1]})


@pytest.mark.parametrize("shape", [(1,), (2, 1), ()])
def test_a_bootstrap_of_another_shape_is_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"bootstrap_B has shape .* expected \(2,\)"):
        vtrace(**random_inputs(5, 2) | {"bootstrap_B": torch.zeros(shape)})


@pytest.mark.parametrize("shape", [(0, 2), (4,), (4, 2, 1)])
def test_what_is_not_time_by_batch_is_refused(shape: tuple[int, ...]) -> None:
    tensors: Inputs = dict.fromkeys(["log_rho_TB", "reward_TB", "discount_TB", "value_TB"], torch.zeros(shape))
    with pytest.raises(ValueError, match=r"reward_TB has shape .* expected \[T, B\] with T at least 1"):
        vtrace(**tensors, bootstrap_B=torch.zeros(2))
