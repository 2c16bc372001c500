"""The modulator's gradient by one forward-mode pass, against plain double back-propagation through a hand-written optimiser."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor

from leco.algo.meta import meta_gradient_weights, outer_loss
from leco.algo.optim import AdamState, adam, adam_jacobian_diag

if TYPE_CHECKING:
    from collections.abc import Mapping

T, B, A, F, H = 7, 3, 4, 5, 6
SGD_RATE = 0.1


class Problem:
    """A recurrent policy, a modulator, and a batch with episodes that begin inside the unroll. All in float64."""

    def __init__(self, seed: int = 0) -> None:
        self.generator = torch.Generator().manual_seed(seed)
        self.policy = {
            "x": self.normal(4 * H, F),
            "h": self.normal(4 * H, H),
            "pi": self.normal(A, H),
            "v": self.normal(1, H),
        }
        self.modulator = self.normal(A, F).requires_grad_()
        self.observation_TBF = self.normal(T + 1, B, F)
        self.start_TB = torch.rand(T + 1, B, generator=self.generator) < 0.3
        self.action_TB = torch.randint(A, (T, B), generator=self.generator)
        self.reward_e_TB = self.normal(T, B)
        self.value_e_TB = self.normal(T + 1, B)
        self.behaviour_TBA = self.normal(T, B, A)
        self.discount_TB = 0.9 * (~self.start_TB[1:]).double()
        names = list(self.policy)
        self.adam = AdamState(
            {name: 0.1 * self.normal(*self.policy[name].shape) for name in names},
            {name: 0.01 * self.normal(*self.policy[name].shape).square() for name in names},
            steps=3,
        )

    def normal(self, *shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=self.generator)

    def unroll(self, policy: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """logits of T steps, and values of T + 1."""
        h = c = torch.zeros(B, H, dtype=torch.float64)
        outputs = []
        for x, start in zip(self.observation_TBF, self.start_TB, strict=True):
            alive = (~start).double()[:, None]
            i, f, g, o = (x @ policy["x"].T + (h * alive) @ policy["h"].T).chunk(4, 1)
            c = f.sigmoid() * c * alive + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
            outputs.append(h)
        h_TBH = torch.stack(outputs)
        return h_TBH[:-1] @ policy["pi"].T, (h_TBH @ policy["v"].T)[..., 0]

    def forward(self, policy: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        logits_TBA, value_TB = self.unroll(policy)
        return logits_TBA, value_TB[:-1]

    def log_pi(self, logits_TBA: Tensor) -> Tensor:
        return logits_TBA.log_softmax(-1).gather(-1, self.action_TB[..., None])[..., 0]

    def vtrace(self, reward_TB: Tensor, value_TB: Tensor, rho_TB: Tensor) -> tuple[Tensor, Tensor]:
        """Targets and advantages, written down step by step."""
        value_TB = value_TB.detach()
        targets = [value_TB[-1]]
        for t in reversed(range(T)):
            delta = rho_TB[t] * (reward_TB[t] + self.discount_TB[t] * value_TB[t + 1] - value_TB[t])
            targets.insert(0, value_TB[t] + delta + self.discount_TB[t] * rho_TB[t] * (targets[0] - value_TB[t + 1]))
        target_TB = torch.stack(targets)
        return target_TB[:-1], reward_TB + self.discount_TB * target_TB[1:] - value_TB[:-1]

    def rho(self, logits_TBA: Tensor) -> Tensor:
        return (self.log_pi(logits_TBA) - self.log_pi(self.behaviour_TBA)).exp().clamp(max=1).detach()

    def reward(self) -> Tensor:
        """With what the modulator adds, as tanh of a score."""
        scores_TBA = self.observation_TBF[:-1] @ self.modulator.T
        return self.reward_e_TB + scores_TBA.tanh().gather(-1, self.action_TB[..., None])[..., 0]

    def inner_loss(self, policy: Mapping[str, Tensor], *, whole: bool) -> tuple[Tensor, Tensor, Tensor]:
        logits_TBA, value_TB = self.unroll(policy)
        target_TB, advantage_TB = self.vtrace(self.reward(), value_TB, self.rho(logits_TBA))
        loss = -(self.rho(logits_TBA) * self.log_pi(logits_TBA) * advantage_TB).mean()
        if whole:
            entropy = -(logits_TBA.softmax(-1) * logits_TBA.log_softmax(-1)).sum(-1).mean()
            loss = loss + 0.5 * (target_TB - value_TB[:-1]).square().mean() - 0.01 * entropy
        return loss, target_TB, advantage_TB

    def advantage_e(self, logits_TBA: Tensor) -> Tensor:
        return self.vtrace(self.reward_e_TB, self.value_e_TB, self.rho(logits_TBA))[1]


def by_double_backpropagation(problem: Problem, optimiser: str, *, whole: bool) -> Tensor:
    policy = {name: p.clone().requires_grad_() for name, p in problem.policy.items()}
    loss, _, _ = problem.inner_loss(policy, whole=whole)
    gradients = torch.autograd.grad(loss, list(policy.values()), create_graph=True, allow_unused=True)
    moved = {}
    for (name, p), gradient in zip(policy.items(), gradients, strict=True):
        g = torch.zeros_like(p) if gradient is None else gradient
        if optimiser == "sgd":
            moved[name] = p - SGD_RATE * g
        else:
            steps = problem.adam.steps + 1
            m = (0.9 * problem.adam.exp_avg[name] + 0.1 * g) / (1 - 0.9**steps)
            v = (0.999 * problem.adam.exp_avg_sq[name] + 0.001 * g * g) / (1 - 0.999**steps)
            moved[name] = p - 0.01 * m / (v.sqrt() + 1e-6)
    before, after = problem.forward(policy)[0], problem.forward(moved)[0]
    outer = outer_loss(after, problem.log_pi(before).detach(), problem.action_TB, problem.advantage_e(before))
    [gradient] = torch.autograd.grad(outer, problem.modulator)
    return gradient


def by_forward_mode(problem: Problem, optimiser: str, *, whole: bool) -> Tensor:
    policy = {name: p.clone().requires_grad_() for name, p in problem.policy.items()}
    loss, target_TB, advantage_TB = problem.inner_loss(policy, whole=whole)
    found = torch.autograd.grad(loss, list(policy.values()), retain_graph=True, allow_unused=True)
    gradients = {
        name: torch.zeros_like(p) if g is None else g for (name, p), g in zip(policy.items(), found, strict=True)
    }
    if optimiser == "sgd":
        after = {name: p.detach() - SGD_RATE * gradients[name] for name, p in policy.items()}
        jacobian_diag = {name: torch.full_like(p, -SGD_RATE) for name, p in after.items()}
    else:
        after, state = adam(policy, gradients, problem.adam, learning_rate=0.01, betas=(0.9, 0.999), eps=1e-6)
        jacobian_diag = adam_jacobian_diag(gradients, state, learning_rate=0.01, betas=(0.9, 0.999), eps=1e-6)
    logits_TBA = problem.forward(policy)[0].detach()
    weights = meta_gradient_weights(
        problem.forward,
        policy,
        after,
        jacobian_diag,
        action_TB=problem.action_TB,
        log_pi_TB=problem.log_pi(logits_TBA),
        rho_TB=problem.rho(logits_TBA),
        advantage_e_TB=problem.advantage_e(logits_TBA),
    )
    surrogate = (weights.advantage_TB * advantage_TB).sum()
    if whole:
        surrogate = surrogate + (weights.target_TB * target_TB).sum()
    [gradient] = torch.autograd.grad(surrogate, problem.modulator)
    return gradient


@pytest.mark.parametrize("whole", [False, True], ids=["policy gradient", "whole loss"])
@pytest.mark.parametrize("optimiser", ["sgd", "adam"])
@pytest.mark.parametrize("seed", range(4))
def test_it_equals_double_backpropagation(seed: int, optimiser: str, whole: bool) -> None:
    problem = Problem(seed)
    assert problem.start_TB[1:-1].any(), "an episode begins inside the unroll"
    expected = by_double_backpropagation(problem, optimiser, whole=whole)
    assert expected.abs().max() > 1e-6
    found = by_forward_mode(problem, optimiser, whole=whole)
    assert (found - expected).norm() <= 1e-9 * expected.norm()


def test_the_outer_loss_by_hand() -> None:
    """One step, two actions: pi' = (0.8, 0.2), pi = (0.5, 0.5)."""
    logits_TBA = torch.tensor([[[0.8, 0.2]]]).double().log().requires_grad_()
    log_pi_TB = torch.tensor([[0.5]]).double().log()
    raised = outer_loss(logits_TBA, log_pi_TB, torch.tensor([[0]]), torch.tensor([[2.0]]).double())
    assert raised.item() == pytest.approx(-1.0 * torch.tensor(0.8).log().item() * 2)
    lowered = outer_loss(logits_TBA, log_pi_TB, torch.tensor([[1]]), torch.tensor([[2.0]]).double())
    assert lowered.item() == pytest.approx(-0.4 * torch.tensor(0.2).log().item() * 2)
    [gradient] = torch.autograd.grad(lowered, logits_TBA)
    torch.testing.assert_close(gradient[0, 0], torch.tensor([0.8, -0.8]).double() * 0.4 * 2)
