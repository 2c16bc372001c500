from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call

from leco.models import cuts
from leco.models.lstm import LstmCore

if TYPE_CHECKING:
    from collections.abc import Mapping

T, B, X, H = 7, 3, 5, 4
STARTS = [(0, 1), (2, 0), (3, 0), (3, 2), (6, 1)]  # (step, row): at the first step, twice in a row, at the last


@pytest.fixture(autouse=True)
def _seed() -> None:
    torch.manual_seed(0)


def starts() -> Tensor:
    start_TB = torch.zeros(T, B, dtype=torch.bool)
    for t, b in STARTS:
        start_TB[t, b] = True
    return start_TB


def random_starts(steps: int, batch: int, share: float) -> Tensor:
    return torch.rand(steps, batch, generator=torch.Generator().manual_seed(1)) < share


def numbers(layers: int = 2) -> dict[str, Tensor]:
    """Weights of a core, by name."""
    return {name: p.detach().double().requires_grad_() for name, p in LstmCore(X, H, layers).named_parameters()}


def ours(
    x_TBI: Tensor,
    start_TB: Tensor,
    state: Tensor,
    weights: Mapping[str, Tensor],
    hidden: tuple[Tensor, ...] | None = None,
) -> tuple[Tensor, Tensor]:
    core = LstmCore(X, H, len(state)).double()
    h_TBH, last, _ = functional_call(core, dict(weights), (x_TBI, start_TB, state), {"hidden": hidden})
    return h_TBH, last


def naive(x_TBI: Tensor, start_TB: Tensor, state: Tensor, weights: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The equations, layer by layer and step by step."""
    last = []
    for layer, (first_h_BH, first_c_BH) in enumerate(state):
        h_BH, c_BH = first_h_BH, first_c_BH
        weight_ih, weight_hh, bias = (weights[f"{name}.{layer}"] for name in ("weight_ih", "weight_hh", "bias"))
        steps = []
        for x_BI, start_B in zip(x_TBI, start_TB, strict=True):
            keep_B1 = torch.tensor([[0.0 if start else 1.0] for start in start_B.tolist()], dtype=h_BH.dtype)
            i, f, g, o = (x_BI @ weight_ih.T + (h_BH * keep_B1) @ weight_hh.T + bias).chunk(4, dim=1)
            c_BH = torch.sigmoid(f) * c_BH * keep_B1 + torch.sigmoid(i) * torch.tanh(g)
            h_BH = torch.sigmoid(o) * torch.tanh(c_BH)
            steps.append(h_BH)
        x_TBI = torch.stack(steps)
        last.append(torch.stack([h_BH, c_BH]))
    return x_TBI, torch.stack(last)


def copy_from(lstm: nn.LSTM) -> LstmCore:
    """Our core with PyTorch's weights; its two biases act only as their sum."""
    core = LstmCore(lstm.input_size, lstm.hidden_size, lstm.num_layers).double()
    with torch.no_grad():
        for layer in range(lstm.num_layers):
            weight_ih, weight_hh, bias_ih, bias_hh = (
                getattr(lstm, f"{name}_l{layer}") for name in ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
            )
            core.weight_ih[layer].copy_(weight_ih)
            core.weight_hh[layer].copy_(weight_hh)
            core.bias[layer].copy_(bias_ih + bias_hh)
    return core


@pytest.mark.parametrize("layers", [1, 2])
def test_is_pytorchs_lstm_where_no_episode_starts(layers: int) -> None:
    lstm = nn.LSTM(X, H, layers).double()
    core = copy_from(lstm)
    x_TBI = torch.randn(T, B, X, dtype=torch.float64, requires_grad=True)
    h_LBH, c_LBH = (torch.randn(layers, B, H, dtype=torch.float64, requires_grad=True) for _ in range(2))
    weigh_TBH, weigh_L2BH = torch.randn(T, B, H).double(), torch.randn(layers, 2, B, H).double()

    theirs_TBH, (last_h_LBH, last_c_LBH) = lstm(x_TBI, (h_LBH, c_LBH))
    theirs_state = torch.stack((last_h_LBH, last_c_LBH), dim=1)
    no_start_TB = torch.zeros(T, B, dtype=torch.bool)
    ours_TBH, ours_state, _ = core(x_TBI, no_start_TB, torch.stack((h_LBH, c_LBH), dim=1))
    torch.testing.assert_close(ours_TBH, theirs_TBH)
    torch.testing.assert_close(ours_state, theirs_state)

    def grads(module: nn.Module, out: Tensor, state: Tensor) -> list[Tensor]:
        loss = (out * weigh_TBH).sum() + (state * weigh_L2BH).sum()
        return list(torch.autograd.grad(loss, [x_TBI, h_LBH, c_LBH, *module.parameters()]))

    ours, theirs = grads(core, ours_TBH, ours_state), grads(lstm, theirs_TBH, theirs_state)
    torch.testing.assert_close(ours[:3], theirs[:3])
    for layer in range(layers):
        weight_ih, weight_hh, bias, _ = theirs[3 + 4 * layer : 7 + 4 * layer]
        mine = ours[3:]  # all weights of the inputs, then all of the state, then all biases
        torch.testing.assert_close([mine[layer], mine[layers + layer]], [weight_ih, weight_hh])
        torch.testing.assert_close(mine[2 * layers + layer], bias)


def test_step_by_step_equals_the_unroll() -> None:
    core = LstmCore(X, H, 2).double()
    x_TBI = torch.randn(T, B, X, dtype=torch.float64)
    whole_TBH, last, _ = core(x_TBI, starts(), core.initial_state(B))
    state = core.initial_state(B)
    for t in range(T):
        out, state, _ = core(x_TBI[t : t + 1], starts()[t : t + 1], state)
        torch.testing.assert_close(out[0], whole_TBH[t], rtol=1e-13, atol=1e-15)
    torch.testing.assert_close(state, last, rtol=1e-13, atol=1e-15)


def test_the_initial_state_and_the_weights() -> None:
    core = LstmCore(X, H, 2)
    assert core.initial_state(B).shape == (2, 2, B, H)
    assert not core.initial_state(B).any()
    assert core.double().initial_state(1).dtype == torch.float64
    assert sum(p.numel() for p in core.parameters()) == 4 * H * (X + H + 1) + 4 * H * (H + H + 1)
    assert all(0 < p.abs().max() <= H**-0.5 for p in core.parameters())


def test_distinct_inputs_give_what_all_of_them_give() -> None:
    torch.manual_seed(2)
    core = LstmCore(X, H, 2).double()
    x_UI = torch.randn(4, X, dtype=torch.float64, requires_grad=True)
    index_TB = torch.randint(3, (T, B))  # the last is padding
    results = []
    for x, index in ((x_UI[index_TB], None), (x_UI, index_TB)):
        out_TBH, last, _ = core(x, starts(), core.initial_state(B), index_TB=index)
        loss = out_TBH.square().sum() + last.sum()
        results.append((out_TBH, last, *torch.autograd.grad(loss, [x_UI, *core.parameters()])))
    for expected, found in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-11, atol=1e-11)


def test_the_core_refuses_wrong_shapes() -> None:
    core = LstmCore(X, H, 2)
    with pytest.raises(ValueError, match=r"x has shape \[7, 3, 5\]; expected \[U, 5\]"):
        core(torch.zeros(7, 3, X), starts(), core.initial_state(B), index_TB=torch.zeros(T, B, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"x has shape \[7, 3, 4\]; expected \[T, B, 5\]"):
        core(torch.zeros(T, B, 4), starts(), core.initial_state(B))
    with pytest.raises(ValueError, match=r"state has shape \[2, 2, 1, 4\]; expected \[2, 2, 3, 4\]"):
        core(torch.zeros(T, B, X), starts(), core.initial_state(1))


PATTERNS = {
    "some": starts(),
    "all others": ~starts(),
    "all": torch.ones(T, B).bool(),
    "bytes": starts().to(torch.uint8),
    "one step": starts()[:1],
    "two steps": starts()[2:4],
    "few of many": random_starts(40, 6, 0.02),
    "many of many": random_starts(40, 6, 0.2),
    "most of many": random_starts(37, 5, 0.8),
}


@pytest.mark.parametrize("start_TB", PATTERNS.values(), ids=PATTERNS)
@pytest.mark.parametrize("call", [0, 10, 256])
def test_is_the_naive_loop_with_resets_inside_the_unroll(
    monkeypatch: pytest.MonkeyPatch, start_TB: Tensor, call: int
) -> None:
    monkeypatch.setattr(cuts, "_CALL", call)
    weights, shape = numbers(), start_TB.shape
    x_TBI = torch.randn(*shape, X, dtype=torch.float64, requires_grad=True)
    state = torch.randn(2, 2, shape[1], H, dtype=torch.float64, requires_grad=True)
    given = [x_TBI, state, *weights.values()]
    found, expected = (run(x_TBI, start_TB, state, weights) for run in (ours, naive))
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-14)
    weigh = [torch.randn_like(out) for out in expected]
    torch.testing.assert_close(
        torch.autograd.grad(found, given, weigh), torch.autograd.grad(expected, given, weigh), rtol=1e-10, atol=1e-12
    )


@pytest.mark.parametrize("which", [0, 1])
def test_each_output_alone_has_its_gradient(which: int) -> None:
    weights = numbers()
    x_TBI, state = torch.randn(T, B, X).double(), torch.randn(2, 2, B, H).double()
    found, expected = (
        torch.autograd.grad(run(x_TBI, starts(), state, weights)[which].square().sum(), list(weights.values()))
        for run in (ours, naive)
    )
    torch.testing.assert_close(found, expected)


def test_one_step_by_hand() -> None:
    # All pre-activations 0: i = f = o = 1/2, g = 0, so c = 1/2 of the old c, and h = tanh(c) / 2.
    core = LstmCore(1, 1)
    for parameter in core.parameters():
        nn.init.zeros_(parameter)
    state = torch.tensor([[[[1.0], [1.0]], [[2.0], [2.0]]]])
    h_TBH, last, _ = core(torch.zeros(1, 2, 1), torch.tensor([[False, True]]), state)
    torch.testing.assert_close(last[0, 1], torch.tensor([[1.0], [0.0]]))
    torch.testing.assert_close(h_TBH, torch.tensor([[[0.3807970780], [0.0]]]))


def test_derivatives_match_finite_differences() -> None:
    weights = numbers(1)
    x_TBI = torch.randn(4, 2, X, dtype=torch.float64, requires_grad=True)
    state = torch.randn(1, 2, 2, H, dtype=torch.float64, requires_grad=True)

    def function(x: Tensor, state: Tensor, *given: Tensor) -> tuple[Tensor, Tensor]:
        return ours(x, starts()[:4, :2], state, dict(zip(weights, given, strict=True)))

    assert torch.autograd.gradcheck(function, (x_TBI, state, *weights.values()))


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize(
    "moved", [("x", "weight_ih.0", "weight_hh.1"), ("bias.0", "weight_ih.1"), ("weight_hh.0",), ("state",)]
)
@pytest.mark.parametrize("pattern", PATTERNS)
def test_tangents_are_those_of_the_naive_loop(moved: tuple[str, ...], pattern: str, *, indexed: bool) -> None:
    start_TB, core = PATTERNS[pattern].bool(), LstmCore(X, H, 2).double()
    index_TB = torch.randint(5, start_TB.shape) if indexed else None
    shape = (5,) if indexed else start_TB.shape
    given = {name: p.detach() for name, p in numbers().items()}
    given["x"], given["state"] = torch.randn(*shape, X).double(), torch.randn(2, 2, start_TB.shape[1], H).double()
    known = functional_call(core, given, (given["x"], start_TB, given["state"]), {"index_TB": index_TB}, strict=False)
    along = {name: torch.randn_like(given[name]) for name in moved}

    def of_all(moving: Mapping[str, Tensor]) -> Tensor:
        whole = {**given, **moving}
        x_TBI = whole.pop("x")
        return naive(x_TBI if index_TB is None else x_TBI[index_TB], start_TB, whole.pop("state"), whole)[0]

    expected = torch.func.jvp(of_all, ({name: given[name] for name in moved},), (along,))[1]
    with torch.no_grad(), forward_ad.dual_level():
        duals = {name: forward_ad.make_dual(p, along[name]) if name in moved else p for name, p in given.items()}
        x, state = duals.pop("x"), duals.pop("state")
        out = functional_call(core, duals, (x, start_TB, state), {"index_TB": index_TB, "hidden": known.hidden})
        value, found = forward_ad.unpack_dual(out.h_TBH)
    torch.testing.assert_close(value, known.h_TBH, rtol=0, atol=0)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_inputs_and_what_is_known_are_left_alone() -> None:
    weights = {name: p.detach() for name, p in numbers().items()}
    core, x_TBI, state = LstmCore(X, H, 2).double(), torch.randn(T, B, X).double(), torch.randn(2, 2, B, H).double()
    known = functional_call(core, weights, (x_TBI, starts(), state)).hidden
    given = [x_TBI, state, *weights.values(), *known]
    before = [each.clone() for each in given]
    with torch.no_grad(), forward_ad.dual_level():
        ours(forward_ad.make_dual(x_TBI, torch.ones_like(x_TBI)), starts(), state, weights, known)
    ours(x_TBI, starts(), state, weights)
    torch.testing.assert_close(given, before, rtol=0, atol=0)


def test_nothing_flows_past_the_start_of_an_episode() -> None:
    weights = numbers()
    x_TBI = torch.randn(T, B, X, dtype=torch.float64, requires_grad=True)
    state = torch.randn(2, 2, B, H, dtype=torch.float64, requires_grad=True)
    start_TB = torch.zeros(T, B, dtype=torch.bool)
    start_TB[3] = True
    h_TBH, _ = ours(x_TBI, start_TB, state, weights)
    with torch.no_grad():
        broken = x_TBI.clone()
        broken[:3] = torch.nan  # not even that
        other_TBH, _ = ours(broken, start_TB, state * torch.nan, weights)
    assert torch.equal(other_TBH[3:], h_TBH[3:])
    grad_x, grad_state = torch.autograd.grad(h_TBH[3:].sum(), (x_TBI, state))
    assert not grad_x[:3].any()
    assert not grad_state.any()
    assert grad_x[4:].all()


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_step_has_one_place_in_one_call(pattern: str) -> None:
    start_TB = PATTERNS[pattern].bool()
    found = cuts.cut_unrolls(start_TB)
    if not start_TB[1:].any():
        assert not found.calls
        return
    source = torch.cat([call.source_SR.flatten() for call in found.calls])
    torch.testing.assert_close(source[found.place_N], torch.arange(start_TB.numel()))
    assert (source < start_TB.numel()).sum() == start_TB.numel()
    assert all(len(call.column_R) % 4 == 0 for call in found.calls)


@pytest.mark.parametrize(
    ("which", "shape", "message"),
    [
        (0, (0, B, X), r"there are \[0, 3\] steps; expected \[T, B\], none of them 0"),
        (1, (B, T), r"start_TB has shape \[3, 7\]; expected \[7, 3\]"),
        (3, (T, B, H + 1), r"hidden has shape \[7, 3, 5\]; expected \[7, 3, 4\]"),
    ],
)
def test_wrong_shapes_are_refused(which: int, shape: tuple[int, ...], message: str) -> None:
    core = LstmCore(X, H)
    given = [torch.zeros(T, B, X), starts(), core.initial_state(B), torch.zeros(T, B, H)]
    given[which] = torch.zeros(shape)
    x_TBI, start_TB, state, h_TBH = given
    with pytest.raises(ValueError, match=message):
        core(x_TBI, start_TB, state, hidden=(h_TBH,))
