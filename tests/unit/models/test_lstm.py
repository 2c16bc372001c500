from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.func import functional_call

from leco.models import lstm
from leco.models.lstm import LstmCore, unroll

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


def inputs(steps: int = T, batch: int = B, hidden: int = H) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    shapes = ((steps, batch, 4 * hidden), (batch, hidden), (batch, hidden), (4 * hidden, hidden))
    gates_x, h, c, weight = (torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes)
    return gates_x, h, c, weight


def naive(
    gates_x_TB4H: Tensor, start_TB: Tensor, h_BH: Tensor, c_BH: Tensor, weight_4HH: Tensor
) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """The equations, step by step and row by row."""
    steps = []
    for t in range(len(gates_x_TB4H)):
        keep_B1 = torch.tensor([[0.0 if start else 1.0] for start in start_TB[t].tolist()], dtype=h_BH.dtype)
        h_BH, c_BH = h_BH * keep_B1, c_BH * keep_B1
        i, f, g, o = (gates_x_TB4H[t] + h_BH @ weight_4HH.T).chunk(4, dim=1)
        c_BH = torch.sigmoid(f) * c_BH + torch.sigmoid(i) * torch.tanh(g)
        h_BH = torch.sigmoid(o) * torch.tanh(c_BH)
        steps.append(h_BH)
    return torch.stack(steps), (h_BH, c_BH)


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


def tensors(result: tuple[Any, ...]) -> tuple[Tensor, Tensor, Tensor]:
    h_TBH, (h_BH, c_BH), *_ = result
    return h_TBH, h_BH, c_BH


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


@pytest.mark.parametrize("start_TB", [starts(), ~starts(), torch.ones(T, B).bool(), starts().to(torch.uint8)])
@pytest.mark.parametrize("overwrite", [False, True])
def test_is_the_naive_loop_with_resets_inside_the_unroll(start_TB: Tensor, overwrite: bool) -> None:
    given = inputs()
    gates_x, h, c, weight = given
    ours = tensors(unroll(gates_x * 1, start_TB, h, c, weight, overwrite=overwrite))
    theirs = tensors(naive(gates_x, start_TB, h, c, weight))
    torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-14)
    weigh = [torch.randn_like(out) for out in theirs]
    torch.testing.assert_close(
        torch.autograd.grad(ours, given, weigh), torch.autograd.grad(theirs, given, weigh), rtol=1e-11, atol=1e-13
    )


@pytest.mark.parametrize("which", [0, 1, 2])
def test_each_output_alone_has_its_gradient(which: int) -> None:
    given = inputs()
    gates_x, h, c, weight = given
    ours = tensors(unroll(gates_x, starts(), h, c, weight))[which].square().sum()
    theirs = tensors(naive(gates_x, starts(), h, c, weight))[which].square().sum()
    torch.testing.assert_close(torch.autograd.grad(ours, given), torch.autograd.grad(theirs, given))


def test_one_step_by_hand() -> None:
    # All pre-activations 0: i = f = o = 1/2, g = 0, so c = 1/2 of the old c, and h = tanh(c) / 2.
    zero = torch.zeros(1, 2, 4)
    c_BH = torch.tensor([[2.0], [2.0]])
    h_TBH, (_, last_c_BH), _ = unroll(zero, torch.tensor([[False, True]]), torch.ones(2, 1), c_BH, torch.zeros(4, 1))
    torch.testing.assert_close(last_c_BH, torch.tensor([[1.0], [0.0]]))
    torch.testing.assert_close(h_TBH, torch.tensor([[[0.3807970780], [0.0]]]))


@pytest.mark.parametrize("alone", [None, 0, 1, 2, 3])
def test_derivatives_backwards_and_forwards_match_finite_differences(alone: int | None) -> None:
    given = inputs(steps=4, batch=2, hidden=2)
    start_TB = starts()[:4, :2]
    for n, tensor in enumerate(given):  # with one alone the tangents of the others are absent, not zero
        tensor.requires_grad_(alone in (None, n))

    def function(gates_x: Tensor, h: Tensor, c: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return tensors(unroll(gates_x, start_TB, h, c, weight))

    assert torch.autograd.gradcheck(function, given, check_forward_ad=True)


@pytest.mark.parametrize("piece", [1, 3, 7])
@pytest.mark.parametrize("known", [False, True])
def test_tangents_in_pieces_and_with_known_gates_are_those_of_the_naive_loop(
    monkeypatch: pytest.MonkeyPatch, piece: int, known: bool
) -> None:
    monkeypatch.setattr(lstm, "_PIECE", piece)
    given = tuple(tensor.detach() for tensor in inputs())
    along = tuple(torch.randn_like(tensor) for tensor in given)
    gates_TB4H = unroll(given[0], starts(), *given[1:])[2] if known else None

    def ours(gates_x: Tensor, h: Tensor, c: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return tensors(unroll(gates_x, starts(), h, c, weight, cached_gates_TB4H=gates_TB4H))

    def theirs(gates_x: Tensor, h: Tensor, c: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return tensors(naive(gates_x, starts(), h, c, weight))

    found, expected = torch.func.jvp(ours, given, along), torch.func.jvp(theirs, given, along)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)


def test_with_known_gates_nothing_goes_backwards() -> None:
    gates_x, h, c, weight = inputs()
    gates_TB4H = unroll(gates_x, starts(), h, c, weight)[2]
    with pytest.raises(RuntimeError, match="with known gates there are only tangents"):
        torch.autograd.backward(unroll(gates_x, starts(), h, c, weight, cached_gates_TB4H=gates_TB4H)[0].sum())
    with pytest.raises(ValueError, match=r"cached_gates_TB4H has shape \[6, 3, "):
        unroll(gates_x, starts(), h, c, weight, cached_gates_TB4H=gates_TB4H[1:])


def test_functional_transforms_work_too() -> None:
    gates_x, h, c, weight = (tensor.detach() for tensor in inputs())

    def h_of(run: object, weight: Tensor) -> Tensor:
        assert callable(run)
        return tensors(run(gates_x, starts(), h, c, weight))[0]

    tangent = torch.randn_like(weight)
    ours = torch.func.jvp(lambda w: h_of(unroll, w), (weight,), (tangent,))
    theirs = torch.func.jvp(lambda w: h_of(naive, w), (weight,), (tangent,))
    torch.testing.assert_close(ours, theirs)
    gradient = torch.func.grad(lambda w: h_of(unroll, w).square().sum())(weight)
    torch.testing.assert_close(gradient, torch.func.grad(lambda w: h_of(naive, w).square().sum())(weight))


def test_inputs_and_incoming_gradients_are_left_alone() -> None:
    given = inputs()
    before = [tensor.detach().clone() for tensor in given]
    gates_x, h, c, weight = given
    h_TBH, (_, last_c), _ = unroll(gates_x, starts(), h, c, weight)
    weigh = (torch.randn_like(h_TBH), torch.randn_like(last_c))
    kept = [tensor.clone() for tensor in weigh]
    first = torch.autograd.grad((h_TBH, last_c), given, weigh, retain_graph=True)
    torch.testing.assert_close(torch.autograd.grad((h_TBH, last_c), given, weigh), first, rtol=0, atol=0)
    torch.testing.assert_close([tensor.detach() for tensor in given], before, rtol=0, atol=0)
    torch.testing.assert_close(list(weigh), kept, rtol=0, atol=0)


def test_a_second_derivative_is_refused_not_wrong() -> None:
    gates_x, h, c, weight = inputs()
    loss = unroll(gates_x, starts(), h, c, weight)[0].square().sum()
    (gradient,) = torch.autograd.grad(loss, weight, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        torch.autograd.backward(gradient.sum())


def test_nothing_flows_past_the_start_of_an_episode() -> None:
    gates_x, h, c, weight = inputs()
    start_TB = torch.zeros(T, B, dtype=torch.bool)
    start_TB[3] = True
    h_TBH, *_ = unroll(gates_x, start_TB, h, c, weight)
    with torch.no_grad():
        broken = gates_x.clone()
        broken[:3] = torch.nan  # not even that
        other_TBH, *_ = unroll(broken, start_TB, h + 1, c * torch.nan, weight)
    assert torch.equal(other_TBH[3:], h_TBH[3:])
    grad_x, grad_h, grad_c = torch.autograd.grad(h_TBH[3:].sum(), (gates_x, h, c))
    assert not grad_x[:3].any()
    assert not grad_h.any()
    assert not grad_c.any()
    assert grad_x[4:].all()


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


@pytest.mark.parametrize(
    ("which", "shape", "message"),
    [
        (0, (T, B, 4 * H + 1), r"gates_x_TB4H has shape \[7, 3, 17\]; expected \[T, B, 4 H\]"),
        (0, (B, 4 * H), r"gates_x_TB4H has shape \[3, 16\]; expected \[T, B, 4 H\]"),
        (0, (0, B, 4 * H), r"gates_x_TB4H has shape \[0, 3, 16\]; expected .* none of them 0"),
        (1, (B, T), r"start_TB has shape \[3, 7\]; expected \[7, 3\]"),
        (2, (1, H), r"h_BH has shape \[1, 4\]; expected \[3, 4\]"),
        (3, (B, 1), r"c_BH has shape \[3, 1\]; expected \[3, 4\]"),
        (4, (H, 4 * H), r"weight_hh_4HH has shape \[4, 16\]; expected \[16, 4\]"),
    ],
)
def test_wrong_shapes_are_refused(which: int, shape: tuple[int, ...], message: str) -> None:
    gates_x, h, c, weight = inputs()
    given = [gates_x, starts(), h, c, weight]
    given[which] = torch.zeros(shape)
    with pytest.raises(ValueError, match=message):
        unroll(*given)


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


@pytest.mark.parametrize("indexed", [True, False])
@pytest.mark.parametrize("moved", [("x", "weight_ih.0", "weight_hh.1"), ("bias.0", "weight_ih.1"), ("weight_hh.0",)])
def test_the_tangents_of_layers_with_known_gates_are_those_of_the_whole(
    moved: tuple[str, ...], *, indexed: bool
) -> None:
    core = LstmCore(3, 4, layers=2).double()
    index_TB = torch.randint(5, (T, B)) if indexed else None
    numbers = {"x": torch.randn(*((5,) if indexed else (T, B)), 3, dtype=torch.float64), **core.state_dict()}
    state = torch.randn(2, 2, B, 4, dtype=torch.float64)
    known = core(numbers["x"], starts(), state, index_TB=index_TB).gates

    def tangent(known: tuple[Tensor, ...] | None) -> Tensor:
        with torch.no_grad(), forward_ad.dual_level():
            along = torch.Generator().manual_seed(3)
            duals = {
                name: forward_ad.make_dual(p, torch.randn(p.shape, generator=along, dtype=p.dtype))
                if name in moved
                else p
                for name, p in numbers.items()
            }
            x = duals.pop("x")
            out = functional_call(core, duals, (x, starts(), state), {"index_TB": index_TB, "cached_gates": known})
            found: Tensor | None = forward_ad.unpack_dual(out.h_TBH).tangent
            assert found is not None
            return found

    torch.testing.assert_close(tangent(known), tangent(None), rtol=1e-12, atol=1e-12)
