import numpy as np
import pytest
import torch
from torch import Tensor
from torch.autograd import gradcheck

from leco.algo.quantize import code_bytes, nearest_code, quantize
from support.reference import quantize_numpy


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(0, 1, shape))


# Two observations of 1 x 2 positions, D = 2: (1.5, 0.5) and (0, 3); (4, 0) and (0, 0).
CODEBOOK_KD = torch.tensor([[0.0, 0.0], [0.0, 2.0], [3.0, 0.0]], dtype=torch.float64)
Z_NDHW = torch.tensor([[[[1.5, 0.0]], [[0.5, 3.0]]], [[[4.0, 0.0]], [[0.0, 0.0]]]], dtype=torch.float64)


def test_by_hand() -> None:
    result = quantize(Z_NDHW, CODEBOOK_KD)
    # (1.5, 0.5) is equally far from the first vector and the third; the lower index wins.
    assert result.index_NHW.tolist() == [[[0, 1]], [[2, 0]]]
    assert result.z_q_NDHW.tolist() == [[[[0.0, 0.0]], [[0.0, 2.0]]], [[[3.0, 0.0]], [[0.0, 0.0]]]]
    errors = (1.5**2 + 0.5**2) + 1.0, 1.0 + 0.0
    assert result.codebook_term.item() == result.commitment_term.item() == sum(errors) / 8
    weighted = quantize(Z_NDHW, CODEBOOK_KD, torch.tensor([1, 3]))
    assert weighted.codebook_term.item() == weighted.commitment_term.item() == (errors[0] + 3 * errors[1]) / 16
    assert code_bytes(result.index_NHW).tolist() == [[0, 1], [2, 0]]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equals_the_naive_reference(dtype: torch.dtype) -> None:
    z_NDHW, codebook_KD = normal(5, 6, 3, 2).to(dtype), normal(8, 6, seed=1).to(dtype)
    z, codebook = z_NDHW.double().numpy(), codebook_KD.double().numpy()
    for weight in (None, [2, 0, 1, 5, 1]):
        result = quantize(z_NDHW, codebook_KD, None if weight is None else torch.tensor(weight))
        expected = quantize_numpy.squared_error(z, codebook, np.array(weight or [1] * 5, np.int32))
        index = quantize_numpy.nearest_code(z, codebook)
        assert len(np.unique(index)) > 4
        np.testing.assert_array_equal(result.index_NHW.numpy(), index)
        np.testing.assert_array_equal(result.z_q_NDHW.double().numpy(), codebook[index].transpose(0, 3, 1, 2))
        assert result.codebook_term.item() == pytest.approx(expected, rel=1e-6)
        assert result.commitment_term.item() == pytest.approx(expected, rel=1e-6)
        assert result.z_q_NDHW.dtype == result.codebook_term.dtype == dtype


def test_a_code_vector_is_its_own_nearest() -> None:
    codebook_KD = normal(6, 4)
    z_NDHW = codebook_KD.reshape(1, 2, 3, 4).permute(0, 3, 1, 2)
    result = quantize(z_NDHW, codebook_KD)
    assert result.index_NHW.tolist() == [[[0, 1, 2], [3, 4, 5]]]
    assert result.codebook_term.item() == result.commitment_term.item() == 0


def test_of_equal_vectors_the_lowest_index_is_taken() -> None:
    codebook_KD = normal(4, 64).float().repeat(3, 1)
    assert int(nearest_code(normal(50, 64, 3, 3, seed=1).float(), codebook_KD).max()) < 4
    midway = torch.tensor([[-1.0], [1.0]])
    assert nearest_code(torch.zeros(1, 1, 1, 1), midway).item() == 0
    assert nearest_code(torch.zeros(1, 1, 1, 1), -midway).item() == 0


def test_a_code_does_not_depend_on_what_else_is_in_the_batch() -> None:
    # Every distance of an observation from the codebook is nearly a tie, so that any rounding would show.
    codebook_KD = normal(8, 64).float()
    codebook_KD /= codebook_KD.norm(dim=1, keepdim=True)
    z_NDHW = 1e-7 * normal(200, 64, 3, 3, seed=1).float()
    together_NHW = nearest_code(z_NDHW, codebook_KD)
    for size in (1, 7):
        parts = [nearest_code(z_NDHW[n : n + size], codebook_KD) for n in range(0, len(z_NDHW), size)]
        assert torch.equal(together_NHW, torch.cat(parts))


def test_the_straight_through_gradient_goes_to_the_encoder_unchanged_and_not_to_the_codebook() -> None:
    z_NDHW, codebook_KD = normal(3, 4, 2, 2).requires_grad_(), normal(5, 4, seed=1).requires_grad_()
    from_decoder_NDHW = normal(3, 4, 2, 2, seed=2)
    z_q_NDHW = quantize(z_NDHW, codebook_KD).z_q_NDHW
    to_z, to_codebook = torch.autograd.grad(z_q_NDHW, [z_NDHW, codebook_KD], from_decoder_NDHW, allow_unused=True)
    assert torch.equal(to_z, from_decoder_NDHW)
    assert to_codebook is None


def test_the_decoder_sees_the_code_vectors_to_the_last_bit() -> None:
    z_NDHW, codebook_KD = 1e4 * normal(3, 4, 2, 2).float().requires_grad_(), normal(5, 4, seed=1).float()
    result = quantize(z_NDHW, codebook_KD)
    assert torch.equal(result.z_q_NDHW, codebook_KD[result.index_NHW].permute(0, 3, 1, 2))


def test_each_term_moves_only_its_own_side() -> None:
    z_NDHW, codebook_KD = normal(3, 4, 2, 2).requires_grad_(), normal(5, 4, seed=1).requires_grad_()
    result = quantize(z_NDHW, codebook_KD)
    for term, moves_z in ((result.codebook_term, False), (result.commitment_term, True)):
        to_z, to_codebook = torch.autograd.grad(term, [z_NDHW, codebook_KD], allow_unused=True)
        assert (to_z is not None, to_codebook is not None) == (moves_z, not moves_z)


@pytest.mark.parametrize("weight_N", [None, torch.tensor([3, 0, 2])])
def test_the_gradients_of_the_terms(weight_N: Tensor | None) -> None:
    z_NDHW, codebook_KD = normal(3, 4, 2, 2).requires_grad_(), normal(5, 4, seed=1).requires_grad_()
    assert gradcheck(lambda codebook: quantize(z_NDHW.detach(), codebook, weight_N).codebook_term, [codebook_KD])
    assert gradcheck(lambda z: quantize(z, codebook_KD.detach(), weight_N).commitment_term, [z_NDHW])


def test_the_gradients_by_hand() -> None:
    z_NDHW, codebook_KD = Z_NDHW.clone().requires_grad_(), CODEBOOK_KD.clone().requires_grad_()
    result = quantize(z_NDHW, codebook_KD)
    (to_codebook,) = torch.autograd.grad(result.codebook_term, codebook_KD)
    (to_z,) = torch.autograd.grad(result.commitment_term, z_NDHW)
    # Twice the difference, divided by 8 elements: each vector of the codebook towards what it stood for, and back.
    assert to_codebook.tolist() == [[-0.375, -0.125], [0.0, -0.25], [-0.25, 0.0]]
    assert to_z.tolist() == [[[[0.375, 0.0]], [[0.125, 0.25]]], [[[0.25, 0.0]], [[0.0, 0.0]]]]


def test_weighting_distinct_observations_gives_the_gradients_of_the_expanded_batch() -> None:
    weight_N = torch.tensor([3, 0, 1, 5])
    z_NDHW, codebook_KD = normal(4, 6, 2, 2).requires_grad_(), normal(5, 6, seed=1).requires_grad_()
    distinct = quantize(z_NDHW, codebook_KD, weight_N)
    expanded = quantize(z_NDHW.repeat_interleave(weight_N, dim=0), codebook_KD)
    for one, other in zip(distinct[2:], expanded[2:], strict=True):
        torch.testing.assert_close(one, other)
    gradients = [
        torch.autograd.grad(result.codebook_term + result.commitment_term, [z_NDHW, codebook_KD])
        for result in (distinct, expanded)
    ]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other)


def test_code_bytes_are_row_by_row_and_as_wide_as_there_are_positions() -> None:
    index_NHW = torch.arange(256).reshape(2, 8, 16).transpose(1, 2)
    code = code_bytes(index_NHW)
    assert (code.dtype, code.shape, code.is_contiguous()) == (torch.uint8, (2, 128), True)
    for n in range(2):
        assert code[n].numpy().tobytes() == bytes(int(index) for row in index_NHW[n] for index in row)
    assert code_bytes(torch.zeros(0, 3, 3, dtype=torch.int64)).shape == (0, 9)


@pytest.mark.parametrize("index", [-1, 256])
def test_an_index_that_is_no_byte_is_refused(index: int) -> None:
    with pytest.raises(ValueError, match=r"indices go from .*, expected 0 to 255"):
        code_bytes(torch.tensor([[[1, index]]]))


def test_other_shapes_are_refused() -> None:
    for z, codebook in (((2, 3, 4), (5, 3)), ((2, 3, 4, 4), (5, 4)), ((2, 3, 4, 4), (5, 3, 1))):
        with pytest.raises(ValueError, match=r"z_NDHW has shape .* expected \[N, D, H, W\] and \[K, D\]"):
            quantize(torch.zeros(z), torch.zeros(codebook))
    for vectors in (0, 257):
        with pytest.raises(ValueError, match=rf"the codebook has {vectors} vectors, expected 1 to 256"):
            nearest_code(torch.zeros(1, 3, 2, 2), torch.zeros(vectors, 3))
    with pytest.raises(ValueError, match=r"weight_N has shape \(3,\), expected one weight for each of 2 rows"):
        quantize(torch.zeros(2, 3, 2, 2), torch.zeros(5, 3), torch.ones(3))
    with pytest.raises(ValueError, match=r"index_NHW has shape \(2, 9\), expected \[N, H, W\]"):
        code_bytes(torch.zeros(2, 9, dtype=torch.int64))
