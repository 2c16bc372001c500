"""The intrinsic module over a batch: z_e and the hash's loss (eq. 2), V^e and f_ta, and the gradients of all of it.

The encoder and the hash need nothing of the policy: `IntrinsicPass` computes them in a thread of their own, beside the policy.
The graph is cut at z_e, so that the hash's gradients can be found before those of modulator and V^e are known; the encoder then
goes backward once, for all of them, with the processor of that thread as one more.

T     actions in an unroll          B  unrolls in a batch       A  number of actions
U     distinct observations         N  (T + 1) B, all of them   S  those the decoder learns from
F     z_e of one observation in a row; Z... its shape
"""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call

from leco.algo.dedup import Distinct, expand
from leco.algo.losses import reconstruction_loss
from leco.algo.sampling import systematic_sample
from leco.methods.table import Method, Modulation
from leco.models.intrinsic import CodebookModule, HashModule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from leco.learning.state import Batch, Params
    from leco.models.intrinsic import Intrinsic
    from leco.models.vq import BottleneckOutput

_GOLDEN = 0.6180339887498949  # its multiples fill the interval from 0 to 1 evenly, however many there are
_HEADS = ("modulator_", "value_head.")  # the parameters of what follows z_e beside the hash
_HASH_THREAD = ThreadPoolExecutor(1, thread_name_prefix="leco-hash")  # begins its thread when it is first used


class Encoded(NamedTuple):
    """z_e of each distinct observation: with the encoder's graph behind it, and the same numbers as a leaf for what follows."""

    z_UZ: Tensor
    leaf_UZ: Tensor


class HashGradients(NamedTuple):
    """The hash's loss, the reconstruction's and the bottleneck's together; and its gradients, of z_e and of what follows it."""

    loss: Tensor
    grad_UZ: Tensor
    gradients: Params


class IntrinsicOutput(NamedTuple):
    """What the heads say: V^e of all T+1 observations, and f_ta(z_e[t], a[t])."""

    value_TB: Tensor
    scores_TBA: Tensor


class DecoderSampling(NamedTuple):
    """What is left to chance: which observations are decoded, and the noise of AE-LSH.

    samples  how many observations the decoder learns from, drawn by how often each occurs; None for all
    turn     which update it is; everything random depends on this number alone
    """

    samples: int | None
    turn: int


class IntrinsicPass:
    """The intrinsic module on each distinct observation of a batch, which goes on in another thread.

    Args:
        net: What is computed.
        tensors: Its parameters, and its running statistics, which are updated.
        unique: The distinct observations.
        sampling: What is drawn at random, and how.
    """

    def __init__(self, net: Intrinsic, tensors: Params, unique: Distinct, sampling: DecoderSampling) -> None:
        self._net, self._unique = net, unique
        self._heads = {name: tensor for name, tensor in tensors.items() if name.startswith(_HEADS)}
        # Two threads may call one module only with parameters that are not the other's: a call puts them into it.
        self._others = {name: tensor for name, tensor in tensors.items() if name not in self._heads}
        self._encoded: Future[Encoded] = _HASH_THREAD.submit(self._encode)
        self._hashed: Future[HashGradients] = _HASH_THREAD.submit(self._hash, sampling)

    def then(self, act: Callable[[], object]) -> None:
        """Has this called when the other thread is done, in that thread or, if it is done already, here."""
        self._hashed.add_done_callback(lambda _: act())

    def heads(self, batch: Batch, method: Method, r_ep_TB: Tensor) -> IntrinsicOutput:
        """V^e and f_ta of the batch."""
        leaf_UZ = self._encoded.result().leaf_UZ
        output: IntrinsicOutput = _call(_Heads(self._net), self._heads, leaf_UZ, batch, self._unique, method, r_ep_TB)
        return output

    def gradients(self, loss: Tensor | None) -> tuple[Tensor, Params]:
        """The hash's loss, and each parameter's gradient of it and of `loss`, a function of `heads`; zeros if there is none."""
        encoded, hashed = self._encoded.result(), self._hashed.result()
        grad_UZ, gradients = hashed.grad_UZ, dict(hashed.gradients)
        with _one_thread_more() if isinstance(self._net, HashModule) else contextlib.nullcontext():
            if loss is not None:
                from_heads_UZ, more = _gradients(loss, encoded.leaf_UZ, self._heads)
                grad_UZ, gradients = grad_UZ + from_heads_UZ, gradients | more
            encoder = {name: tensor for name, tensor in _learned(self._others).items() if name not in gradients}
            found = torch.autograd.grad(encoded.z_UZ, list(encoder.values()), grad_UZ)
        without = {name: torch.zeros_like(tensor) for name, tensor in self._heads.items() if name not in gradients}
        return hashed.loss, gradients | without | dict(zip(encoder, found, strict=True))

    def _encode(self) -> Encoded:
        z_UZ = _call(_Encoder(self._net), self._others, self._unique)
        return Encoded(z_UZ, z_UZ.detach().requires_grad_())

    def _hash(self, sampling: DecoderSampling) -> HashGradients:
        leaf_UZ = self._encoded.result().leaf_UZ
        if isinstance(self._net, HashModule):
            loss = _call(_Hash(self._net), self._others, leaf_UZ, self._unique, sampling)
        elif isinstance(self._net, CodebookModule):
            loss = _call(_Codebook(self._net), self._others, self._unique, sampling)
        else:  # nothing to learn: equal observations, or equal sets of objects
            return HashGradients(leaf_UZ.new_zeros(()), torch.zeros_like(leaf_UZ), {})
        if not loss.requires_grad:  # learned by running means alone
            return HashGradients(loss, torch.zeros_like(leaf_UZ), {})
        return HashGradients(loss.detach(), *_gradients(loss, leaf_UZ, self._others))


@contextlib.contextmanager
def _one_thread_more() -> Iterator[None]:
    """Lets torch compute with one thread more than it was told, if there are processors for it."""
    threads = torch.get_num_threads()
    torch.set_num_threads(max(min(threads + 1, os.cpu_count() or 1), threads))
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _learned(tensors: Params) -> Params:
    return {name: tensor for name, tensor in tensors.items() if tensor.requires_grad}


def _gradients(loss: Tensor, leaf_UZ: Tensor, tensors: Params) -> tuple[Tensor, Params]:
    """Of z_e, and of the parameters that the loss depends on."""
    learned = _learned(tensors)
    grad_UZ, *found = torch.autograd.grad(loss, [leaf_UZ, *learned.values()], allow_unused=True)
    grad_UZ = torch.zeros_like(leaf_UZ) if grad_UZ is None else grad_UZ
    return grad_UZ, {name: grad for name, grad in zip(learned, found, strict=True) if grad is not None}


def _call(part: _Part, tensors: Params, *arguments: object) -> Any:
    return functional_call(part.train(), {f"net.{name}": tensor for name, tensor in tensors.items()}, arguments)


class _Part(nn.Module):
    """A part of the intrinsic module as one function, since `functional_call` calls `forward` alone."""

    def __init__(self, net: Intrinsic) -> None:
        super().__init__()
        self.net = net


class _Encoder(_Part):
    """z_e of each distinct observation."""

    def forward(self, unique: Distinct) -> Tensor:
        return self.net.encode(unique.observation_UO, unique.multiplicity_U)


class _Heads(_Part):
    """V^e and the modulator."""

    def forward(self, z_UZ: Tensor, batch: Batch, unique: Distinct, method: Method, r_ep_TB: Tensor) -> IntrinsicOutput:
        z_UF = z_UZ.flatten(1)
        value_TB = expand(self.net.value(z_UF), unique.index_N).view(batch.start_TB.shape)
        r_ep_N = None
        if method.modulation is Modulation.REPLACING:
            z_UF, r_ep_N = z_UF.detach(), r_ep_TB.flatten()
        acting_N = unique.index_N[: batch.action_TB.numel()]  # the last observations only bootstrap
        scores_NA = self.net.modulate(z_UF, batch.action_TB.flatten(), acting_N, r_ep_N)
        return IntrinsicOutput(value_TB, scores_NA.view(*batch.action_TB.shape, -1))


class _Hash(_Part):
    """Bottleneck and decoder: the hash's loss."""

    net: HashModule

    def forward(self, z_UDHW: Tensor, unique: Distinct, sampling: DecoderSampling) -> Tensor:
        times_U = unique.multiplicity_U
        noise = torch.Generator(z_UDHW.device).manual_seed(sampling.turn)
        squeezed: BottleneckOutput = self.net.bottleneck(z_UDHW, times_U, noise)
        z_SDHW, observation_SO, times_S = squeezed.z_NDHW, unique.observation_UO, times_U
        if sampling.samples is not None:
            index_S, times_S = systematic_sample(times_U, sampling.samples, sampling.turn * _GOLDEN % 1)
            z_SDHW, observation_SO = z_SDHW.index_select(0, index_S), observation_SO.index_select(0, index_S)
        picture_S = self.net.decode(z_SDHW, times_S)
        return reconstruction_loss(picture_S, self.net.target(observation_SO), times_S) + squeezed.loss


class _Codebook(_Part):
    """A codebook of cells or patches: its loss, which needs nothing of z_e."""

    net: CodebookModule

    def forward(self, unique: Distinct, sampling: DecoderSampling) -> Tensor:
        draws = torch.Generator().manual_seed(sampling.turn)
        return self.net.hash_loss(unique.observation_UO, unique.multiplicity_U, draws)
