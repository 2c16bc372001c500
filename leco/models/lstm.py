"""The recurrent core: PyTorch's LSTM with resets inside an unroll, and its tangents.

PyTorch's LSTM is one call for all steps (oneDNN on processors, cuDNN on GPUs), but cannot begin anew where an episode starts, and
has no forward-mode derivative. So unrolls are cut where episodes start (`leco.models.cuts`). Tangents, which need no gradient,
are a loop over what is truly recurrent.

Axes: T time, B batch, N = T x B, S steps of a call, R its rows, I input features, H hidden units, 4H gates in PyTorch's order
(input, forget, cell, output), L layers. A state [2, B, H] is h before c.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.nn import functional

from leco.algo.meta import primal, tangent
from leco.models.cuts import cut_unrolls

if TYPE_CHECKING:
    from leco.models.cuts import Cuts

_SHUT = -1e4  # before its sigmoid, of a gate that lets nothing through


class Layer(NamedTuple):
    """One layer's parameters."""

    weight_ih_4HI: Tensor
    weight_hh_4HH: Tensor
    bias_4H: Tensor


class LayerOutput(NamedTuple):
    """What a layer says: h of each step, and the state after them."""

    h_TBH: Tensor
    state_2BH: Tensor


def run_layer(x_NI: Tensor, index_TB: Tensor, state_2BH: Tensor, layer: Layer, cuts: Cuts) -> LayerOutput:
    """Runs a layer over T steps. Differentiable backwards in everything but `index_TB`.

    x_NI: inputs, of which index_TB says which one each step gets. cuts: where h and c are zeroed, so that nothing flows past.
    """
    if not cuts.calls:
        return _fused(x_NI.index_select(0, index_TB.flatten()).view(*index_TB.shape, -1), state_2BH, layer)
    # One input more says that there is nothing: such a step leaves h = c = 0, and no gradient.
    blank_N = functional.pad(index_TB.flatten(), (0, 1), value=len(x_NI))
    x_ZJ = functional.pad(functional.pad(x_NI, (0, 0, 0, 1)), (0, 1))
    x_ZJ[-1, -1] = 1
    shut_4H1 = layer.bias_4H.new_tensor([_SHUT, _SHUT, 0, 0]).repeat_interleave(state_2BH.shape[2]).unsqueeze(1)
    widened = layer._replace(weight_ih_4HI=torch.cat([layer.weight_ih_4HI, shut_4H1], 1))
    outputs = []
    for source_SR, column_R, first_R in cuts.calls:
        x_SRJ = x_ZJ.index_select(0, blank_N[source_SR.flatten()]).view(*source_SR.shape, -1)
        begin_2RH = state_2BH.index_select(1, column_R).masked_fill(~first_R.unsqueeze(1), 0)
        outputs.append(_fused(x_SRJ, begin_2RH, widened))
    h_NH = torch.cat([each.h_TBH.flatten(0, 1) for each in outputs]).index_select(0, cuts.place_N)
    after_2BH = torch.cat([each.state_2BH for each in outputs], 1).index_select(1, cuts.last_B)
    return LayerOutput(h_NH.view(*index_TB.shape, -1), after_2BH)


def layer_tangents(
    gates_x_TB4H: Tensor, start_TB: Tensor, state_2BH: Tensor, weight_hh_4HH: Tensor, h_TBH: Tensor
) -> Tensor:
    """h of each step as a dual number, from what the input adds to the gates (bias included) and the h that is known already.

    With it the gates of all steps are one product; only c, and the tangents of h and c, follow each other. There is no gradient.
    """
    (h_BH, c_BH), (dh_BH, dc_BH) = primal(state_2BH), tangent(state_2BH)
    weight_4HH, dweight_4HH = primal(weight_hh_4HH), tangent(weight_hh_4HH)
    before_TBH = torch.cat([h_BH.unsqueeze(0), h_TBH[:-1]]).masked_fill(start_TB.unsqueeze(2), 0)
    gates_TB4H = functional.linear(before_TBH, weight_4HH).add_(primal(gates_x_TB4H))
    dgates_TB4H = functional.linear(before_TBH, dweight_4HH).add_(tangent(gates_x_TB4H))
    i_TBH, f_TBH, g_TBH, o_TBH = gates_TB4H.chunk(4, 2)
    i_TBH, f_TBH, g_TBH, o_TBH = i_TBH.sigmoid(), f_TBH.sigmoid(), g_TBH.tanh(), o_TBH.sigmoid()
    alive_TB1 = (~start_TB).to(c_BH.dtype).unsqueeze(2)
    c_in_TBH, c_TBH = torch.empty_like(g_TBH), i_TBH * g_TBH
    for alive_B1, c_in_BH, f_BH, next_c_BH in zip(alive_TB1, c_in_TBH, f_TBH, c_TBH, strict=True):
        torch.mul(c_BH, alive_B1, out=c_in_BH)
        c_BH = next_c_BH.addcmul_(f_BH, c_in_BH)
    tanh_TBH = c_TBH.tanh_()
    # What one unit before each gate's activation is worth: in c for i, f and g, in h for o.
    slope_TB4H = torch.cat(
        [
            g_TBH * i_TBH * (1 - i_TBH),
            c_in_TBH * f_TBH * (1 - f_TBH),
            i_TBH * (1 - g_TBH.square()),
            tanh_TBH * o_TBH * (1 - o_TBH),
        ],
        2,
    )
    slope_c_TBH = o_TBH * (1 - tanh_TBH.square())
    dh_TBH, weight_H4H, resets = torch.empty_like(h_TBH), weight_4HH.t(), start_TB.any(1).tolist()
    to_c_TB3H, to_h_TBH = dgates_TB4H.view(*start_TB.shape, 4, -1)[:, :, :3], dgates_TB4H.chunk(4, 2)[3]
    views = zip(
        resets, alive_TB1, dgates_TB4H, to_c_TB3H, to_h_TBH, slope_TB4H, slope_c_TBH, f_TBH, dh_TBH, strict=True
    )
    for reset, alive_B1, dgates_B4H, to_c_B3H, to_h_BH, slope_B4H, slope_c_BH, f_BH, next_dh_BH in views:
        if reset:
            dh_BH, dc_BH = dh_BH * alive_B1, dc_BH * alive_B1
        dgates_B4H.addmm_(dh_BH, weight_H4H).mul_(slope_B4H)
        dc_BH = torch.addcmul(to_c_B3H.sum(1), dc_BH, f_BH)
        dh_BH = torch.addcmul(to_h_BH, dc_BH, slope_c_BH, out=next_dh_BH)
    dual_TBH: Tensor = forward_ad.make_dual(h_TBH, dh_TBH)
    return dual_TBH


def _fused(x_TBI: Tensor, state_2BH: Tensor, layer: Layer) -> LayerOutput:
    """PyTorch's LSTM, without resets. Of its two biases one is zero: they only ever act together."""
    weights = [layer.weight_ih_4HI, layer.weight_hh_4HH, layer.bias_4H, torch.zeros_like(layer.bias_4H)]
    state_21BH = state_2BH.unsqueeze(1)  # of one layer
    h_TBH, h_1BH, c_1BH = torch.lstm(
        x_TBI,
        (state_21BH[0], state_21BH[1]),
        weights,
        has_biases=True,
        num_layers=1,
        dropout=0.0,
        train=torch.is_grad_enabled(),
        bidirectional=False,
        batch_first=False,
    )
    return LayerOutput(h_TBH, torch.cat([h_1BH, c_1BH]))


def _expect(name: str, tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tuple(tensor.shape) != shape:
        raise ValueError(f"{name} has shape {list(tensor.shape)}; expected {list(shape)}")


class CoreOutput(NamedTuple):
    """The last layer's h of each step [T, B, H], the state after them [L, 2, B, H], and each layer's h [T, B, H]."""

    h_TBH: Tensor
    state: Tensor
    hidden: tuple[Tensor, ...]


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
        hidden: tuple[Tensor, ...] | None = None,
    ) -> CoreOutput:
        """Runs T steps from `state` [L, 2, B, H].

        x: [T, B, I]; or, with index_TB, distinct inputs [U, I], of which index_TB says which one each step gets. start_TB: where
        an episode starts, h and c are zeroed before that step. hidden: each layer's h, from an earlier call with the same
        values: only tangents are then computed, and there is no state after the steps.
        """
        if x.dim() != (3 if index_TB is None else 2) or x.shape[-1] != self.input_size:
            axes = "T, B" if index_TB is None else "U"
            raise ValueError(f"x has shape {list(x.shape)}; expected [{axes}, {self.input_size}]")
        shape = x.shape[:2] if index_TB is None else index_TB.shape
        if len(shape) != 2 or 0 in shape:
            raise ValueError(f"there are {list(shape)} steps; expected [T, B], none of them 0")
        _expect("start_TB", start_TB, tuple(shape))
        _expect("state", state, (self.layers, 2, shape[1], self.hidden_size))
        start_TB, own_TB, outputs = start_TB.bool(), torch.arange(start_TB.numel(), device=x.device).view(shape), []
        x_NI, index_TB = x if index_TB is not None else x.flatten(0, 1), own_TB if index_TB is None else index_TB
        cuts = cut_unrolls(start_TB) if hidden is None else None
        for number, state_2BH in enumerate(state.masked_fill(start_TB[0].unsqueeze(1), 0)):
            layer = Layer(self.weight_ih[number], self.weight_hh[number], self.bias[number])
            if cuts is not None:
                outputs.append(run_layer(x_NI, index_TB, state_2BH, layer, cuts))
            elif hidden is not None:
                gates_NG = functional.linear(x_NI, layer.weight_ih_4HI, layer.bias_4H)
                gates_TBG = gates_NG.index_select(0, index_TB.flatten()).view(*shape, -1)
                _expect("hidden", hidden[number], (*shape, self.hidden_size))
                dual_TBH = layer_tangents(gates_TBG, start_TB, state_2BH, layer.weight_hh_4HH, hidden[number])
                outputs.append(LayerOutput(dual_TBH, state_2BH))
            x_NI, index_TB = outputs[-1].h_TBH.flatten(0, 1), own_TB
        last = torch.stack([each.state_2BH for each in outputs])
        return CoreOutput(outputs[-1].h_TBH, last, tuple(each.h_TBH.detach() for each in outputs))
