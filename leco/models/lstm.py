"""The recurrent core: an LSTM that resets inside an unroll, differentiable backwards and forwards (tangents).

PyTorch's fused LSTM has no forward-mode derivative and cannot reset its state where an episode starts. Here the input
projections of all steps are one matrix product, and the loop covers only what is truly recurrent.

Axes: T time, B batch, I input features, H hidden units, 4H gates in PyTorch's order (input, forget, cell, output),
L layers. The suffix `_in` marks the state that enters a step, after the reset.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.autograd.function import once_differentiable

from leco.algo.meta import tangent

_PIECE = 32  # steps


def unroll(
    gates_x_TB4H: Tensor,
    start_TB: Tensor,
    h_BH: Tensor,
    c_BH: Tensor,
    weight_hh_4HH: Tensor,
    *,
    overwrite: bool = False,
    cached_gates_TB4H: Tensor | None = None,
) -> tuple[Tensor, tuple[Tensor, Tensor], Tensor]:
    """Runs an LSTM over T steps, from what its input adds to the gates (bias included).

    Where `start_TB` is true an episode starts: h and c are zeroed before that step, so nothing flows past it.
    Differentiable once, in reverse mode or in forward mode, in everything but `start_TB`: a gradient of a gradient is
    refused, and tangents carry no graph. With `overwrite` it works in the memory of `gates_x_TB4H`, for a caller that
    needs it no more: the largest buffer is then made only once. `cached_gates_TB4H` are the active gates of an earlier call with
    the same values: only tangents are then computed, and nothing can be differentiated backwards.

    Returns h of every step, the last (h, c), and the active gates.
    """
    if gates_x_TB4H.dim() != 3 or 0 in gates_x_TB4H.shape or gates_x_TB4H.shape[2] % 4:
        raise ValueError(f"gates_x_TB4H has shape {list(gates_x_TB4H.shape)}; expected [T, B, 4 H], none of them 0")
    steps, batch, gates = gates_x_TB4H.shape
    _expect("start_TB", start_TB, (steps, batch))
    _expect("h_BH", h_BH, (batch, gates // 4))
    _expect("c_BH", c_BH, (batch, gates // 4))
    _expect("weight_hh_4HH", weight_hh_4HH, (gates, gates // 4))
    start_TB = start_TB.bool()
    if cached_gates_TB4H is not None:
        _expect("cached_gates_TB4H", cached_gates_TB4H, (steps, batch, gates))
        arguments = (gates_x_TB4H, start_TB, h_BH, c_BH, weight_hh_4HH, cached_gates_TB4H)
        outputs = _Tangents.apply(*arguments)  # type: ignore[no-untyped-call]
    else:
        own_TB4H = gates_x_TB4H if overwrite else gates_x_TB4H.clone(memory_format=torch.contiguous_format)
        outputs = _Unroll.apply(own_TB4H.contiguous(), start_TB, h_BH, c_BH, weight_hh_4HH)  # type: ignore[no-untyped-call]
    h_TBH, last_c_BH, gates_TB4H, *_ = cast("tuple[Tensor, ...]", outputs)
    return h_TBH, (h_TBH[-1], last_c_BH), gates_TB4H.detach()


class _Unroll(torch.autograd.Function):
    """The loop over time, in the memory of its first argument, which becomes the active gates.

    Forward also returns what the derivatives need: those gates, the c that enters each step, and tanh of the c after it.
    """

    @staticmethod
    def forward(gates_TB4H: Tensor, start_TB: Tensor, h_BH: Tensor, c_BH: Tensor, weight_4HH: Tensor) -> Any:
        gates_TB4H = gates_TB4H.detach()
        i_f_TB2H, g_TBH, o_TBH = _parts(gates_TB4H, 2, 1, 1)
        i_TBH, f_TBH = _parts(i_f_TB2H, 1, 1)
        h_TBH, tanh_c_TBH = torch.empty_like(g_TBH), torch.empty_like(g_TBH)
        c_in_TBH, c_BH = torch.empty_like(g_TBH), c_BH.clone()
        weight_H4H = weight_4HH.t()
        views = zip(gates_TB4H, i_f_TB2H, i_TBH, f_TBH, g_TBH, o_TBH, c_in_TBH, tanh_c_TBH, h_TBH, strict=True)
        for reset, (gates, i_f, i, f, g, o, c_in, tanh_c, next_h) in zip(_resets(start_TB), views, strict=True):
            c_in.copy_(c_BH)
            if reset is not None:
                h_BH = h_BH.index_fill(0, reset, 0)
                c_in.index_fill_(0, reset, 0)
            gates.addmm_(h_BH, weight_H4H)
            i_f.sigmoid_()
            g.tanh_()
            o.sigmoid_()
            torch.mul(f, c_in, out=c_BH).addcmul_(i, g)
            h_BH = torch.mul(o, torch.tanh(c_BH, out=tanh_c), out=next_h)
        return h_TBH, c_BH, gates_TB4H, c_in_TBH, tanh_c_TBH

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
        _, start_TB, h_BH, _, weight_4HH, *_ = inputs
        h_TBH, _, gates_TB4H, c_in_TBH, tanh_c_TBH = output
        ctx.mark_non_differentiable(gates_TB4H, c_in_TBH, tanh_c_TBH)
        ctx.set_materialize_grads(False)
        kept = (start_TB, h_BH, weight_4HH, h_TBH, gates_TB4H, c_in_TBH, tanh_c_TBH)
        ctx.save_for_backward(*kept)
        ctx.save_for_forward(*kept)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_h_TBH: Tensor | None, grad_c_BH: Tensor | None, *_: None) -> Any:
        start_TB, h_BH, weight_4HH, h_TBH, gates_TB4H, c_in_TBH, tanh_c_TBH = ctx.saved_tensors
        grad_h_TBH = torch.zeros_like(h_TBH) if grad_h_TBH is None else grad_h_TBH
        dc_BH = torch.zeros_like(h_BH) if grad_c_BH is None else grad_c_BH.clone()
        work_BH, dc_B1H, later = torch.empty_like(h_BH), dc_BH.unsqueeze(1), None
        # The slopes become the gradients of the gates in place: each is multiplied by what flows into it.
        grad_TB4H, slope_c_TBH = _slopes(gates_TB4H, c_in_TBH, tanh_c_TBH)
        grad_TB4_H, f_TBH = grad_TB4H.view(*start_TB.shape, 4, -1), _parts(gates_TB4H, 1, 1, 2)[1]
        to_c_TB3H, to_o_TBH = grad_TB4_H[:, :, :3], grad_TB4_H[:, :, 3]
        views = zip(grad_h_TBH, grad_TB4H, to_c_TB3H, to_o_TBH, slope_c_TBH, f_TBH, strict=True)
        for reset, (grad_h, grad, to_c, to_o, slope_c, f) in reversed([*zip(_resets(start_TB), views, strict=True)]):
            dh_BH = grad_h if later is None else torch.addmm(grad_h, later, weight_4HH, out=work_BH)
            dc_BH.addcmul_(dh_BH, slope_c)
            to_c.mul_(dc_B1H)
            to_o.mul_(dh_BH)
            dc_BH.mul_(f)
            later = grad
            if reset is not None:
                dc_BH.index_fill_(0, reset, 0)
                later = grad.index_fill(0, reset, 0)
        dweight_4HH = grad_TB4H.flatten(0, 1).t() @ _entering(h_BH, h_TBH, start_TB).flatten(0, 1)
        return grad_TB4H, None, later @ weight_4HH, dc_BH, dweight_4HH

    @staticmethod
    @torch.no_grad()
    def jvp(ctx: Any, *tangents: Tensor | None) -> Any:
        start_TB, h_BH, weight_4HH, h_TBH, gates_TB4H, c_in_TBH, tanh_c_TBH = ctx.saved_tensors
        dx_TB4H, _, dh_BH, dc_BH, dweight_4HH, *_ = tangents
        dh_BH = torch.zeros_like(h_BH) if dh_BH is None else dh_BH
        dc_BH = torch.zeros_like(h_BH) if dc_BH is None else dc_BH.clone()
        dh_TBH, weight_H4H, resets = torch.empty_like(h_TBH), weight_4HH.t(), _resets(start_TB)
        # Piece by piece: whole, the slopes and the tangents of the gates would be the largest tensors of a training step.
        for begin in range(0, len(start_TB), _PIECE):
            piece = slice(begin, begin + _PIECE)
            gates_PB4H = gates_TB4H[piece]
            dgates_PB4H = torch.zeros_like(gates_PB4H) if dx_TB4H is None else dx_TB4H[piece].clone()
            if dweight_4HH is not None:
                before_BH = h_BH if begin == 0 else h_TBH[begin - 1]
                entering_PBH = _entering(before_BH, h_TBH[piece], start_TB[piece])
                dgates_PB4H.flatten(0, 1).addmm_(entering_PBH.flatten(0, 1), dweight_4HH.t())
            slope_PB4H, slope_c_PBH = _slopes(gates_PB4H, c_in_TBH[piece], tanh_c_TBH[piece])
            i_f_g_o, f_PBH = _parts(dgates_PB4H, 1, 1, 1, 1), _parts(gates_PB4H, 1, 1, 2)[1]
            views = zip(dgates_PB4H, *i_f_g_o, slope_PB4H, slope_c_PBH, f_PBH, dh_TBH[piece], strict=True)
            for reset, (dgates, di, df, dg, do, slope, slope_c, f, out) in zip(resets[piece], views, strict=True):
                if reset is not None:
                    dh_BH = dh_BH.index_fill(0, reset, 0)
                    dc_BH.index_fill_(0, reset, 0)
                dgates.addmm_(dh_BH, weight_H4H).mul_(slope)
                dc_BH.mul_(f).add_(di).add_(df).add_(dg)
                dh_BH = torch.addcmul(do, dc_BH, slope_c, out=out)
        return dh_TBH, dc_BH, None, None, None


class _Tangents(_Unroll):
    """`_Unroll` where the active gates are known: forward only makes c and h of them, without a matrix product."""

    @staticmethod
    def forward(  # type: ignore[override]
        _gates: Tensor, start_TB: Tensor, _h: Tensor, c_BH: Tensor, _weight: Tensor, cached_gates_TB4H: Tensor
    ) -> Any:
        cached_gates_TB4H = cached_gates_TB4H.detach()
        i_TBH, f_TBH, g_TBH, o_TBH = _parts(cached_gates_TB4H, 1, 1, 1, 1)
        c_in_TBH, c_BH = torch.empty_like(g_TBH), c_BH.clone()
        tanh_c_TBH = i_TBH * g_TBH  # first what enters c, then c, then its tanh
        for reset, c_in, f, c in zip(_resets(start_TB), c_in_TBH, f_TBH, tanh_c_TBH, strict=True):
            c_in.copy_(c_BH)
            if reset is not None:
                c_in.index_fill_(0, reset, 0)
            c_BH = c.addcmul_(f, c_in)
        c_BH = c_BH.clone()
        return o_TBH * tanh_c_TBH.tanh_(), c_BH, cached_gates_TB4H, c_in_TBH, tanh_c_TBH

    @staticmethod
    def backward(_ctx: Any, *_: Tensor | None) -> Any:
        raise RuntimeError(
            "with known gates there are only tangents: run the core without them to differentiate backwards"
        )


def _slopes(gates_TB4H: Tensor, c_in_TBH: Tensor, tanh_c_TBH: Tensor) -> tuple[Tensor, Tensor]:
    """What one unit before each gate's activation is worth: in c for i, f and g, in h for o; and one of c in h."""
    slope_TB4H, slope_c_TBH = torch.empty_like(gates_TB4H), torch.empty_like(tanh_c_TBH)
    i_TBH, f_TBH, g_TBH, o_TBH = _parts(gates_TB4H, 1, 1, 1, 1)
    to_i_TBH, to_f_TBH, to_g_TBH, to_o_TBH = _parts(slope_TB4H, 1, 1, 1, 1)
    for grad_TBH, y_TBH, to_TBH in (
        (g_TBH, i_TBH, to_i_TBH),
        (c_in_TBH, f_TBH, to_f_TBH),
        (tanh_c_TBH, o_TBH, to_o_TBH),
    ):
        torch.mul(grad_TBH, y_TBH, out=to_TBH)
        to_TBH.addcmul_(to_TBH, y_TBH, value=-1)  # the sigmoid's slope is y - y^2
    tanh_backward = torch.ops.aten.tanh_backward.grad_input
    tanh_backward(i_TBH, g_TBH, grad_input=to_g_TBH)  # i * (1 - g^2) in one pass
    tanh_backward(o_TBH, tanh_c_TBH, grad_input=slope_c_TBH)
    return slope_TB4H, slope_c_TBH


def _projected_tangent(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """The tangent of `linear(x, weight, bias)`, alone."""
    dx, dweight, dbias = (tangent(each) for each in (x, weight, bias))
    x, weight = (forward_ad.unpack_dual(each).primal for each in (x, weight))
    return nn.functional.linear(x, dweight, dbias) + nn.functional.linear(dx, weight)


def _parts(gates_TBG: Tensor, *counts: int) -> tuple[Tensor, ...]:
    """Views of the gates, so many at a time: (2, 1, 1) of four are the first two together, then one and one."""
    hidden = gates_TBG.shape[2] // sum(counts)
    return torch.split(gates_TBG, [count * hidden for count in counts], dim=2)


def _entering(first_BH: Tensor, after_TBH: Tensor, start_TB: Tensor) -> Tensor:
    """The state that enters each step: that after the one before, or zero where an episode starts."""
    state_TBH = torch.cat((first_BH.unsqueeze(0), after_TBH[:-1]))
    state_TBH.flatten(0, 1).index_fill_(0, start_TB.flatten().nonzero().squeeze(1), 0)
    return state_TBH


def _resets(start_TB: Tensor) -> list[Tensor | None]:
    """For each step the rows to zero, or None: most steps start no episode and then pay nothing."""
    some = start_TB.any(dim=1).tolist()
    return [row_B.nonzero().squeeze(1) if some[t] else None for t, row_B in enumerate(start_TB)]


def _expect(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} has shape {list(tensor.shape)}; expected {list(shape)}")


class CoreOutput(NamedTuple):
    """The last layer's h of each step [T, B, H], the state after them [L, 2, B, H], and each layer's active gates [T, B, 4H]."""

    h_TBH: Tensor
    state: Tensor
    gates: tuple[Tensor, ...]


class LstmCore(nn.Module):
    """LSTM layers on top of each other that reset where an episode starts.

    Weights are as in `torch.nn.LSTM`, gate order and initial distribution included, but with one bias a layer: the
    sum of PyTorch's two, which only ever act together. A state is one tensor [L, 2, B, H], h before c.
    """

    def __init__(self, input_size: int, hidden_size: int, layers: int = 1) -> None:
        super().__init__()
        self.input_size, self.hidden_size, self.layers = input_size, hidden_size, layers
        sizes = (input_size, *(hidden_size for _ in range(layers - 1)))
        self.weight_ih = nn.ParameterList(torch.empty(4 * hidden_size, size) for size in sizes)
        self.weight_hh = nn.ParameterList(torch.empty(4 * hidden_size, hidden_size) for _ in sizes)
        self.bias = nn.ParameterList(torch.empty(4 * hidden_size) for _ in sizes)
        for parameter in self.parameters():
            nn.init.uniform_(parameter, -1 / math.sqrt(hidden_size), 1 / math.sqrt(hidden_size))

    def initial_state(self, batch: int) -> Tensor:
        """Zeros, [L, 2, B, H], of the parameters' type and device."""
        weight = self.weight_hh[0]
        return torch.zeros(self.layers, 2, batch, self.hidden_size, dtype=weight.dtype, device=weight.device)

    def forward(
        self,
        x: Tensor,
        start_TB: Tensor,
        state: Tensor,
        *,
        index_TB: Tensor | None = None,
        cached_gates: tuple[Tensor, ...] | None = None,
    ) -> CoreOutput:
        """Runs T steps from `state` [L, 2, B, H].

        x: [T, B, I]; or, with index_TB, distinct inputs [U, I], of which index_TB says which one each step gets: the first
        layer's product then has U rows and not T x B. cached_gates: the gates that an earlier call with the same values gave, to
        compute only tangents.
        """
        if x.dim() != (3 if index_TB is None else 2) or x.shape[-1] != self.input_size:
            axes = "T, B" if index_TB is None else "U"
            raise ValueError(f"x has shape {list(x.shape)}; expected [{axes}, {self.input_size}]")
        _expect("state", state, (self.layers, 2, start_TB.shape[-1], self.hidden_size))
        last, gates = [], []
        for layer, (h_BH, c_BH) in enumerate(state):
            cached_gates_TB4H = None if cached_gates is None else cached_gates[layer]
            project = nn.functional.linear if cached_gates_TB4H is None else _projected_tangent
            gates_x = project(x, self.weight_ih[layer], self.bias[layer])
            if layer == 0 and index_TB is not None:
                gates_x = gates_x.index_select(0, index_TB.flatten()).view(*index_TB.shape, -1)
            if (
                cached_gates_TB4H is not None
            ):  # gates_x is only the tangent: the numbers that it belongs to are not needed
                gates_x = forward_ad.make_dual(cached_gates_TB4H, gates_x)
            x, h_c, gates_TB4H = unroll(
                gates_x,
                start_TB,
                h_BH,
                c_BH,
                self.weight_hh[layer],
                overwrite=True,
                cached_gates_TB4H=cached_gates_TB4H,
            )
            last.append(torch.stack(h_c))
            gates.append(gates_TB4H)
        return CoreOutput(x, torch.stack(last), tuple(gates))
