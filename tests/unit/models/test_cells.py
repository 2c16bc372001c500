"""A learned hash of cells tells apart what it is shown, and keeps what it has learned."""

from __future__ import annotations

import torch
from torch import Tensor

from leco.models.cells import CellCodebook

VALUES = (11, 6, 4)
SHOWN = (0, 24, 49, 60, 96, 97, 98, 120, 121, 125, 130, 144, 150, 168, 170, 171)  # of 264 cells


def often() -> Tensor:
    """Two cells are most of what is seen, as walls and floors are; most cells never are."""
    times_M = torch.zeros(264)
    times_M[list(SHOWN)] = 1.0
    times_M[[24, 49]] = 2000.0
    return times_M


def learned(codes: int = 32, updates: int = 300) -> CellCodebook:
    torch.manual_seed(3)
    codebook, random = CellCodebook(VALUES, codes), torch.Generator().manual_seed(5)
    adam = torch.optim.Adam(codebook.parameters(), 1e-3)
    for _ in range(updates):
        adam.zero_grad()
        codebook.loss(often(), random).backward()  # type: ignore[no-untyped-call]
        adam.step()
    return codebook


def test_every_cell_that_is_shown_gets_a_code_of_its_own_however_rare() -> None:
    codebook = learned()
    code_X = codebook.code()[list(SHOWN)]
    assert len(set(code_X.tolist())) == len(SHOWN)
    assert codebook.loss(often(), torch.Generator().manual_seed(1)).item() < 0.05


def test_before_learning_it_does_not() -> None:
    assert len(set(CellCodebook(VALUES, 32).code().tolist())) == 1


def test_codes_stay_while_it_goes_on_learning() -> None:
    codebook = learned()
    before = codebook.code()[list(SHOWN)]
    random, adam = torch.Generator().manual_seed(9), torch.optim.Adam(codebook.parameters(), 1e-3)
    for _ in range(20):
        adam.zero_grad()
        codebook.loss(often(), random).backward()  # type: ignore[no-untyped-call]
        adam.step()
    assert int((codebook.code()[list(SHOWN)] != before).sum()) <= 2


def test_with_fewer_vectors_than_cells_some_share_one() -> None:
    assert 2 <= len(set(learned(codes=4).code()[list(SHOWN)].tolist())) <= 4


def test_the_same_draws_give_the_same_codebook() -> None:
    one, other = learned(updates=40), learned(updates=40)
    assert all(torch.equal(a, b) for a, b in zip(one.buffers(), other.buffers(), strict=True))


def test_the_gradient_of_the_loss_goes_to_encoder_and_decoder_alone() -> None:
    codebook = CellCodebook(VALUES, 8)
    codebook.loss(often(), torch.Generator().manual_seed(0)).backward()  # type: ignore[no-untyped-call]
    assert all(parameter.grad is not None for parameter in codebook.parameters())
    assert not any("KD" in name for name, _ in codebook.named_parameters())


def test_what_nearly_all_views_have_is_no_code() -> None:
    codebook = learned()
    number_NC = torch.tensor([[24, 49, 97], [24, 49, 96], [24, 49, 24], [24, 60, 49]])
    for _ in range(100):
        codebook.note_views(number_NC, torch.tensor([1.0, 1.0, 1.0, 1.0]))
    code_M = codebook.code()
    assert code_M[[24, 49]].tolist() == [0, 0]
    assert len({0, *code_M[[60, 96, 97]].tolist()}) == 4
    for _ in range(100):
        codebook.note_views(number_NC[:1], torch.tensor([2.0]))
    assert codebook.code()[97] == 0, "what all views have by now"


def test_a_common_cell_keeps_its_number_while_others_begin_anew() -> None:
    """Cells 49 and 60 share the vector of 24, which all views have; vectors 5 and 8 have been unused for longest."""
    torch.manual_seed(3)
    codebook = CellCodebook(VALUES, 10)
    with torch.no_grad():
        z_MD = codebook.encode()
    codebook.vectors_KD.fill_(100.0)
    codebook.vectors_KD[3] = z_MD[24]
    codebook.used_K.fill_(0.04)
    codebook.used_K[[3, 5, 8]] = torch.tensor([1.0, 0.01, 0.02])
    codebook.in_views_K.fill_(0.9)
    before = codebook.vectors_KD.clone()
    weight_M = torch.zeros(264).index_put((torch.tensor([24, 49, 60]),), torch.tensor([100.0, 1.0, 1.0]))
    codebook._begin_anew(z_MD, weight_M, torch.Generator().manual_seed(1))
    number_X = torch.cdist(z_MD[[24, 49, 60]], codebook.vectors_KD).argmin(1).tolist()
    assert number_X[0] == 3
    assert sorted(number_X[1:]) == [5, 8]
    assert (codebook.vectors_KD != before).any(1).nonzero().squeeze(1).tolist() == [5, 8]
    expected = torch.full((10,), 0.9)
    expected[[5, 8]] = 0.0
    assert torch.equal(codebook.in_views_K, expected)


def test_one_batch_tells_what_views_have() -> None:
    codebook = learned(updates=40)
    codebook.in_views_K.zero_()
    codebook.note_views(torch.tensor([[24, 60], [24, 97]]), torch.tensor([3.0, 1.0]))
    code_X = codebook.code()[[24, 60, 97]]
    assert (code_X == 0).tolist() == [True, False, False]
    assert sorted(codebook.in_views_K[codebook.in_views_K > 0].tolist()) == [0.25, 0.75, 1.0]
