import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from leco.algo.rewards import episodic_bonus, intrinsic_reward, modulation, penalty_on_revisits, total_reward
from support.reference import bonus_numpy


def double(*numbers: float) -> torch.Tensor:
    return torch.tensor([numbers], dtype=torch.float64)


def test_the_bonus_by_hand() -> None:
    count = torch.tensor([[1, 4], [16, 25]], dtype=torch.uint32)
    assert episodic_bonus(count, torch.float64).tolist() == [[1.0, 0.5], [0.25, 0.2]]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-6), (torch.float64, 1e-12)])
def test_the_bonus_equals_the_naive_reference_up_to_the_largest_count(dtype: torch.dtype, tolerance: float) -> None:
    count = np.random.default_rng(0).integers(1, 2**32, (7, 3), np.uint32)
    count[0, 0] = 2**32 - 1
    bonus = episodic_bonus(torch.from_numpy(count), dtype)
    assert bonus.dtype == dtype
    np.testing.assert_allclose(bonus.numpy(), bonus_numpy.episodic_bonus(count), rtol=tolerance)


def test_the_bonus_is_single_precision_unless_told_otherwise() -> None:
    assert episodic_bonus(torch.tensor([3], dtype=torch.uint32)).dtype == torch.float32


def test_a_bonus_is_not_taken_for_a_count() -> None:
    with pytest.raises(ValueError, match=r"count has type torch.float32, expected an integer type"):
        episodic_bonus(torch.ones(3, 2))


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_modulation_equals_the_naive_reference(dtype: torch.dtype) -> None:
    rng = np.random.default_rng(0)
    scores, previous = rng.normal(0, 1.5, (9, 4, 5)), rng.integers(-1, 5, (9, 4), np.int32)
    result = modulation(torch.from_numpy(scores), torch.from_numpy(previous).to(dtype))
    np.testing.assert_allclose(result.numpy(), bonus_numpy.modulation(scores, previous), rtol=1e-12)


def test_modulation_by_hand() -> None:
    half = float(np.arctanh(0.5))
    scores_TBA = torch.tensor([[[half, -half, 9.0]], [[half, -half, 9.0]], [[-9.0, 9.0, 0.0]]], dtype=torch.float64)
    result = modulation(scores_TBA, torch.tensor([[0], [1], [2]]))
    torch.testing.assert_close(result, torch.tensor([[0.5], [-0.5], [0.0]], dtype=torch.float64))


def test_modulation_at_the_start_of_an_episode_is_zero_and_teaches_nothing() -> None:
    scores_TBA = torch.randn(4, 2, 3, dtype=torch.float64, requires_grad=True)
    previous_action_TB = torch.tensor([[-1, 0], [2, -1], [0, 1], [-1, -1]])
    result = modulation(scores_TBA, previous_action_TB)
    (gradient_TBA,) = torch.autograd.grad(result.sum(), scores_TBA)
    start_TB = previous_action_TB == -1
    assert not result[start_TB].any()
    assert not gradient_TBA[start_TB].any()
    assert gradient_TBA[~start_TB].count_nonzero(dim=-1).tolist() == [1, 1, 1, 1]


def test_the_gradient_of_the_total_reward_with_respect_to_the_scores() -> None:
    generator = torch.Generator().manual_seed(0)
    scores_TBA = torch.randn(5, 3, 4, dtype=torch.float64, generator=generator, requires_grad=True)
    previous_action_TB = torch.randint(-1, 4, (5, 3), generator=generator)

    def reward(scores_TBA: torch.Tensor) -> torch.Tensor:
        r_ta = modulation(scores_TBA, previous_action_TB)
        return total_reward(torch.ones_like(r_ta), intrinsic_reward(torch.ones_like(r_ta), r_ta, 0.25), 0.5)

    assert gradcheck(reward, [scores_TBA], check_forward_ad=True)


@pytest.mark.parametrize("action", [-2, 3])
def test_an_action_that_does_not_exist_is_not_taken_for_another(action: int) -> None:
    with pytest.raises(RuntimeError, match="out of bounds"):
        modulation(torch.zeros(1, 1, 3), torch.tensor([[action]]))


@pytest.mark.parametrize(
    ("scores", "actions"), [((4, 2, 3), (4, 1)), ((4, 2, 3), (4, 2, 1)), ((4, 2), (4, 2)), ((4, 2, 3), (2, 4))]
)
def test_modulation_refuses_other_shapes(scores: tuple[int, ...], actions: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"scores_TBA has shape .* expected \[T, B, A\] and \[T, B\]"):
        modulation(torch.zeros(scores), torch.zeros(actions, dtype=torch.int64))


def test_the_penalty_on_revisits_by_hand() -> None:
    r_ta, count = double(0.5, 0.5, -0.5, -0.5, 0.0), torch.tensor([[1, 2, 1, 9, 3]])
    assert penalty_on_revisits(r_ta, count).tolist() == [[0.5, 0.0, -0.5, -0.5, 0.0]]


@pytest.mark.parametrize("dtype", [torch.uint32, torch.int32, torch.int64])
def test_the_penalty_on_revisits_equals_the_naive_reference(dtype: torch.dtype) -> None:
    rng = np.random.default_rng(0)
    r_ta, count = rng.uniform(-1, 1, (9, 4)), rng.integers(1, 4, (9, 4), np.uint32)
    result = penalty_on_revisits(torch.from_numpy(r_ta), torch.from_numpy(count).to(dtype))
    assert result.tolist() == bonus_numpy.penalty_on_revisits(r_ta, count).tolist()


def test_the_penalty_on_revisits_at_its_limits() -> None:
    """Where all is new it changes nothing, and where nothing is, nothing gains; what takes away always stays."""
    r_ta = torch.linspace(-1, 1, 21, dtype=torch.float64).view(7, 3)
    new = torch.ones(7, 3, dtype=torch.int64)
    assert torch.equal(penalty_on_revisits(r_ta, new), r_ta)
    assert torch.equal(penalty_on_revisits(r_ta, 2 * new), r_ta.clamp(max=0))
    assert torch.equal(penalty_on_revisits(-r_ta.abs(), 2 * new), -r_ta.abs())


def test_the_penalty_on_revisits_teaches_where_it_leaves_the_score_and_nowhere_else() -> None:
    r_ta = double(0.5, 0.5, -0.5, -0.5).requires_grad_()
    count = torch.tensor([[1, 2, 1, 2]])
    (gradient,) = torch.autograd.grad(penalty_on_revisits(r_ta, count).sum(), r_ta)
    assert gradient.tolist() == [[1.0, 0.0, 1.0, 1.0]]
    assert gradcheck(lambda r: penalty_on_revisits(r, count), [r_ta], check_forward_ad=True)


def test_rewards_by_hand() -> None:
    r_i = intrinsic_reward(double(1.0, 0.5), double(-0.5, 0.25), 0.25)
    assert r_i.tolist() == [[0.625, 0.4375]]
    assert total_reward(double(1.0, -2.0), r_i, 0.5).tolist() == [[1.3125, -1.78125]]


def test_rewards_equal_the_naive_reference() -> None:
    r_e, r_ep, r_ta = np.random.default_rng(0).normal(0, 1, (3, 6, 4))
    r_i = intrinsic_reward(torch.from_numpy(r_ep), torch.from_numpy(r_ta), 0.3)
    result = total_reward(torch.from_numpy(r_e), r_i, 0.01)
    np.testing.assert_allclose(result.numpy(), bonus_numpy.total_reward(r_e, r_ep, r_ta, 0.3, 0.01), rtol=1e-12)


def test_rewards_at_the_limits_of_lambda_and_alpha() -> None:
    one, other = double(0.3, 0.7), double(-0.2, 0.9)
    assert torch.equal(intrinsic_reward(one, other, 0), one)
    assert torch.equal(intrinsic_reward(one, other, 1), other)
    assert torch.equal(total_reward(one, other, 0), one)


@pytest.mark.parametrize("lambda_", [-0.1, 1.1, float("nan")])
def test_lambda_is_a_fraction(lambda_: float) -> None:
    with pytest.raises(ValueError, match=r"lambda_ is .*, expected 0 to 1"):
        intrinsic_reward(double(1.0), double(1.0), lambda_)


def test_rewards_that_would_be_broadcast_are_refused() -> None:
    with pytest.raises(ValueError, match=r"one shape, got r_ep \(4, 2\), r_ta \(4, 1\)"):
        intrinsic_reward(torch.zeros(4, 2), torch.zeros(4, 1), 0.5)
    with pytest.raises(ValueError, match=r"one shape, got r_ta \(4, 2\), count \(4, 1\)"):
        penalty_on_revisits(torch.zeros(4, 2), torch.ones(4, 1, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"one shape, got r_e \(2,\), r_i \(4, 2\)"):
        total_reward(torch.zeros(2), torch.zeros(4, 2), 0.5)
