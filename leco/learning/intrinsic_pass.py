"""The intrinsic module over a batch: z_e and the hash's loss (eq. 2), V^e and f_ta, and the gradients of all of it.

The encoder and the hash need nothing of the policy: `IntrinsicPass` computes them in a thread of their own, beside the policy.
The graph is cut at z_e, so that the hash's gradients can be found before those of modulator and V^e are known; the encoder then
goes backward once, for all of them, with the processor of that thread as one more. Where several ranks (`leco.algo.ranks`) have
each a part of the distinct observations, there is no such thread: all must come to their sums in one order.

T     actions in an unroll          B  unrolls in a batch       A  number of actions
U     distinct observations         N  (T + 1) B, all of them   S  those the decoder learns from
R     this rank's part of U
F     z_e of one observation in a row; Z... its shape
"""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional

from leco.algo.dedup import Distinct, expand, padded
from leco.algo.ranks import all_mean, part, rank, whole, world_size
from leco.algo.sampling import Sample, systematic_sample
from leco.methods.table import Method, Modulation
from leco.models.intrinsic import CodebookModule, HashModule
from leco.models.precision import convolution_dtype

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from leco.learning.state import Batch, Params
    from leco.models.intrinsic import Intrinsic
    from leco.models.vq import BottleneckOutput

_GOLDEN = 0.6180339887498949  # its multiples fill the interval from 0 to 1 evenly, however many there are
_LARGE = 1 << 26  # bytes of observations for each rank: beyond, the encoder's graph is not kept beside the decoder's
_LOSS = ""  # no parameter has that name
_HEADS = ("modulator_", "value_head.")  # the parameters of what follows z_e beside the hash
_HASH_THREAD = ThreadPoolExecutor(1, thread_name_prefix="leco-hash")  # begins its thread when it is first used


class _InTurn:
    """An executor without a thread: what is submitted is done at once."""

    def submit(self, act: Callable[..., Any], *arguments: object) -> Future[Any]:
        done: Future[Any] = Future()
        done.set_result(act(*arguments))
        return done


class Encoded(NamedTuple):
    """z_e of each distinct observation of this rank: with the encoder's graph behind it, unless that is too large to be kept; and
    the same numbers as a leaf for what follows."""

    z_RZ: Tensor
    leaf_RZ: Tensor


class HashGradients(NamedTuple):
    """The hash's loss, the reconstruction's and the bottleneck's together; and its gradients, of z_e and of what follows it."""

    loss: Tensor
    grad_RZ: Tensor
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
        self._encodes_twice = unique.observation_UO.nbytes > _LARGE * world_size()
        self._heads = {name: tensor for name, tensor in tensors.items() if name.startswith(_HEADS)}
        # Two threads may call one module only with parameters that are not the other's: a call puts them into it.
        self._others = {name: tensor for name, tensor in tensors.items() if name not in self._heads}
        executor = _HASH_THREAD if world_size() == 1 else _InTurn()
        run = copy_context().run  # in this context's precision
        self._encoded: Future[Encoded] = executor.submit(run, self._encode)
        self._hashed: Future[HashGradients] = executor.submit(run, self._hash, sampling)

    def then(self, act: Callable[[], object]) -> None:
        """Has this called when the other thread is done, in that thread or, if it is done already, here."""
        self._hashed.add_done_callback(lambda _: act())

    def heads(self, batch: Batch, method: Method, r_ep_TB: Tensor) -> IntrinsicOutput:
        """V^e and f_ta of the batch."""
        leaf_RZ = self._encoded.result().leaf_RZ
        output: IntrinsicOutput = _call(_Heads(self._net), self._heads, leaf_RZ, batch, self._unique, method, r_ep_TB)
        return output

    def gradients(self, loss: Tensor | None) -> tuple[Tensor, Params]:
        """The hash's loss, and each parameter's gradient of it and of `loss`, a function of `heads`; zeros if there is none."""
        encoded, hashed = self._encoded.result(), self._hashed.result()
        grad_RZ, gradients = hashed.grad_RZ, dict(hashed.gradients)
        # Not in bfloat16: what oneDNN does of it spins wherever a thread waits for another one that has no processor.
        own_dtype = hashed.loss.dtype == convolution_dtype(hashed.loss)
        more_to_do = isinstance(self._net, HashModule) and world_size() == 1 and own_dtype
        with _one_thread_more() if more_to_do else contextlib.nullcontext():
            if loss is not None:
                from_heads_RZ, more = _gradients(loss, encoded.leaf_RZ, self._heads)
                grad_RZ, gradients = grad_RZ + from_heads_RZ, gradients | more
            encoder = {name: tensor for name, tensor in _learned(self._others).items() if name not in gradients}
            z_RZ = self._encode_again() if self._encodes_twice else encoded.z_RZ
            found = torch.autograd.grad(z_RZ, list(encoder.values()), grad_RZ)
        mean = all_mean({_LOSS: hashed.loss, **gradients, **dict(zip(encoder, found, strict=True))})
        without = {name: torch.zeros_like(tensor) for name, tensor in self._heads.items() if name not in gradients}
        return mean.pop(_LOSS), mean | without

    def _encode(self) -> Encoded:
        with torch.set_grad_enabled(not self._encodes_twice):
            z_RZ = _call(_Encoder(self._net), self._others, self._unique)
        return Encoded(z_RZ, z_RZ.detach().requires_grad_())

    def _encode_again(self) -> Tensor:
        """z_e with its graph; the running statistics have moved already."""
        tensors = {name: tensor if tensor.requires_grad else tensor.clone() for name, tensor in self._others.items()}
        z_RZ: Tensor = _call(_Encoder(self._net), tensors, self._unique)
        return z_RZ

    def _hash(self, sampling: DecoderSampling) -> HashGradients:
        leaf_RZ = self._encoded.result().leaf_RZ
        if isinstance(self._net, HashModule):
            loss = _call(_Hash(self._net), self._others, leaf_RZ, self._unique, sampling)
        elif isinstance(self._net, CodebookModule):
            loss = _call(_Codebook(self._net), self._others, self._unique, sampling)
        else:  # nothing to learn: equal observations, or equal sets of objects
            return HashGradients(leaf_RZ.new_zeros(()), torch.zeros_like(leaf_RZ), {})
        if not loss.requires_grad:  # learned by running means alone
            return HashGradients(loss, torch.zeros_like(leaf_RZ), {})
        return HashGradients(loss.detach(), *_gradients(loss, leaf_RZ, self._others))


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


def _gradients(loss: Tensor, leaf_RZ: Tensor, tensors: Params) -> tuple[Tensor, Params]:
    """Of z_e, and of the parameters that the loss depends on."""
    learned = _learned(tensors)
    grad_RZ, *found = torch.autograd.grad(loss, [leaf_RZ, *learned.values()], allow_unused=True)
    grad_RZ = torch.zeros_like(leaf_RZ) if grad_RZ is None else grad_RZ
    return grad_RZ, {name: grad for name, grad in zip(learned, found, strict=True) if grad is not None}


def _call(part: _Part, tensors: Params, *arguments: object) -> Any:
    return functional_call(part.train(), {f"net.{name}": tensor for name, tensor in tensors.items()}, arguments)


class _Part(nn.Module):
    """A part of the intrinsic module as one function, since `functional_call` calls `forward` alone."""

    def __init__(self, net: Intrinsic) -> None:
        super().__init__()
        self.net = net


class _Encoder(_Part):
    """z_e of each distinct observation of this rank."""

    def forward(self, unique: Distinct) -> Tensor:
        return self.net.encode(unique.observation_UO[part()], unique.multiplicity_U[part()])


class _Heads(_Part):
    """V^e and the modulator."""

    def forward(self, z_RZ: Tensor, batch: Batch, unique: Distinct, method: Method, r_ep_TB: Tensor) -> IntrinsicOutput:
        z_RF = z_RZ.flatten(1)
        value_U = whole(self.net.value(z_RF), part(), unique.multiplicity_U.shape)
        acting_N = unique.index_N[: batch.action_TB.numel()]  # the last observations only bootstrap
        mine_M = (acting_N % world_size() == rank()).nonzero().squeeze(1)  # rows whose observation is this rank's
        r_ep_M = None
        if method.modulation is Modulation.REPLACING:
            z_RF, r_ep_M = z_RF.detach(), r_ep_TB.flatten()[mine_M]
        scores_MA = self.net.modulate(z_RF, batch.action_TB.flatten()[mine_M], acting_N[mine_M] // world_size(), r_ep_M)
        scores_NA = whole(scores_MA, mine_M, (len(acting_N), scores_MA.shape[1]))
        value_TB = expand(value_U, unique.index_N).view(batch.start_TB.shape)
        return IntrinsicOutput(value_TB, scores_NA.view(*batch.action_TB.shape, -1))


class _Hash(_Part):
    """Bottleneck and decoder: the hash's loss."""

    net: HashModule

    def forward(self, z_RDHW: Tensor, unique: Distinct, sampling: DecoderSampling) -> Tensor:
        observation_RO, times_R = unique.observation_UO[part()], unique.multiplicity_U[part()]
        noise = torch.Generator(z_RDHW.device).manual_seed(sampling.turn)
        squeezed: BottleneckOutput = self.net.bottleneck(z_RDHW, times_R, noise)
        z_SDHW, observation_SO, times_S = squeezed.z_NDHW, observation_RO, times_R
        if sampling.samples is not None:
            drawn = systematic_sample(unique.multiplicity_U, sampling.samples, sampling.turn * _GOLDEN % 1)
            index_S, times_S = _of_this_rank(drawn)
            z_SDHW, observation_SO = z_SDHW.index_select(0, index_S), observation_SO.index_select(0, index_S)
        return self.net.reconstruction_loss(z_SDHW, observation_SO, times_S) + squeezed.loss


class _Codebook(_Part):
    """A codebook of cells or patches: its loss, which needs nothing of z_e. It is small: every rank has all of it."""

    net: CodebookModule

    def forward(self, unique: Distinct, sampling: DecoderSampling) -> Tensor:
        draws = torch.Generator().manual_seed(sampling.turn)
        return self.net.hash_loss(unique.observation_UO, unique.multiplicity_U, draws)


def _of_this_rank(drawn: Sample) -> Sample:
    """Those of a sample of U that are among this rank's, by their places there.

    Padded to a few sizes, as `leco.algo.dedup.padded` says why, with a row that stands for nothing.
    """
    mine_S = drawn.index_S % world_size() == rank()
    index_S, weight_S = drawn.index_S[mine_S] // world_size(), drawn.weight_S[mine_S]
    fill = min(padded(max(len(index_S), 1)), len(drawn.index_S)) - len(index_S)
    return Sample(functional.pad(index_S, (0, fill)), functional.pad(weight_S, (0, fill)))
