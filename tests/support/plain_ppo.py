"""PPO in plain PyTorch: its own optimiser, every sequence by itself, with all of its observations. Slow and obvious."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import torch

from leco.learning.policy_step import PolicyBatch, shuffled

if TYPE_CHECKING:
    from leco.config.training import TrainingConfig
    from leco.learning.state import Params
    from leco.models.policy import Policy


def plain_steps(
    network: Policy, parameters: Params, batch: PolicyBatch, settings: TrainingConfig, seed: int
) -> tuple[Params, list[float]]:
    """The parameters after all steps, and the norm of each gradient before it was limited."""
    assert settings.clip_range is not None
    assert settings.max_gradient_norm is not None
    net = copy.deepcopy(network)
    net.load_state_dict(parameters)
    optimiser = torch.optim.Adam(
        net.parameters(), settings.policy_learning_rate, betas=settings.policy_betas, eps=settings.eps
    )
    sequences, targets, norms = batch.sequences, batch.targets, []
    length, count = targets.action_SC.shape
    for which in shuffled(count, settings.epochs, settings.minibatches, seed):
        terms = []
        for c in which.tolist():
            only = slice(c, c + 1)
            observation = batch.unique.observation_UO[sequences.index_SC[:, only]]
            others = (sequences.start_SC, sequences.previous_action_SC, sequences.previous_reward_SC)
            output = net(observation, *(each[:, only] for each in others), sequences.core_state[:, :, only])
            log_pi = output.logits_TBA.log_softmax(-1)
            for s in range(length):
                ratio = (log_pi[s, 0, targets.action_SC[s, c]] - targets.log_mu_SC[s, c]).exp()
                advantage, low, high = targets.advantage_SC[s, c], 1 - settings.clip_range, 1 + settings.clip_range
                gain = torch.minimum(ratio * advantage, ratio.clamp(low, high) * advantage)
                error = (output.value_TB[s, 0] - targets.target_SC[s, c]).square() / 2
                certainty = (log_pi[s, 0].exp() * log_pi[s, 0]).sum()
                terms.append(-gain + error + settings.entropy_cost * certainty)
        optimiser.zero_grad()
        torch.stack(terms).mean().backward()  # type: ignore[no-untyped-call]
        gradients = [p.grad for p in net.parameters() if p.grad is not None]
        norms.append(torch.cat([g.flatten() for g in gradients]).norm().item())
        for gradient in gradients:
            gradient.mul_(min(1.0, settings.max_gradient_norm / norms[-1]))
        optimiser.step()
    return {name: p.detach() for name, p in net.named_parameters()}, norms
