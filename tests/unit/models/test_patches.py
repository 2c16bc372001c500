"""The learned hash of pictures: patches, words, and what it comes to see."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from leco.config.training import HashConfig
from leco.envs.minigrid.tiles import draw_views
from leco.evaluation.hash_probe import Play, probe
from leco.methods.table import find_method
from leco.models.build import build
from leco.models.hash_function import make_hash_function
from leco.models.kinds.table import find_kind
from leco.models.patches import PatchCodebook, PatchHashModule, cut, patch_side

SIDE = 8
GREY, RED, BLUE, GREEN = (90, 90, 90), (200, 0, 0), (0, 0, 200), (0, 180, 0)


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def picture(*things: tuple[int, tuple[int, int, int]], places: int = 16) -> Tensor:
    """Grey patches in a row but for these: uint8 [P, S x S x 3]."""
    made = torch.tensor(GREY, dtype=torch.uint8).repeat(places, SIDE * SIDE)
    for place, colour in things:
        made[place] = torch.tensor(colour, dtype=torch.uint8).repeat(SIDE * SIDE)
    return made


def learned(pictures: list[Tensor], times: list[float], updates: int = 3, codes: int = 8) -> PatchCodebook:
    book = PatchCodebook(codes, 3)
    for turn in range(updates):
        book.learn(torch.stack(pictures), torch.tensor(times), generator(turn))
    return book


def same(book: PatchCodebook, one: Tensor, other: Tensor) -> tuple[bool, bool]:
    """Whether two pictures have one code, at each level."""
    code_2L = book.levels(torch.stack([one, other])).view(2, 2, 16)
    return tuple((code_2L[0] == code_2L[1]).all(-1).tolist())


@pytest.mark.parametrize(
    ("size", "side"),
    [((56, 56), 8), ((72, 96), 8), ((16, 16), 4), ((31, 20), 4), ((32, 16), 8), ((97, 40), 16), ((256, 256), 24)],
)
def test_a_picture_has_at_most_twelve_patches_in_a_row(size: tuple[int, int], side: int) -> None:
    assert patch_side(size) == side
    assert -(-max(size) // side) <= 12


def test_patches_are_cut_row_by_row_and_edges_filled_up() -> None:
    seen = torch.arange(16 * 32 * 2, dtype=torch.uint8).view(1, 16, 32, 2)  # side 8
    patch_PX = cut(seen)[0]
    assert patch_PX.shape == (8, 8 * 8 * 2)
    assert torch.equal(patch_PX[5], seen[0, 8:16, 8:16].flatten())
    odd = torch.full((2, 20, 35, 3), 7, dtype=torch.uint8)
    filled = cut(odd)
    assert filled.shape == (2, 3 * 5, 8 * 8 * 3)
    assert int(filled.sum()) == 7 * odd.numel()
    assert filled[0, 0].view(8, 8, 3)[2:, 2:].eq(7).all()


def test_a_patch_is_described_by_the_means_of_its_sixteenths() -> None:
    patch_MX = torch.randint(256, (3, 16 * 16 * 3), dtype=torch.uint8, generator=generator())
    got = PatchCodebook(4, 3)._describe(patch_MX)
    pixel = patch_MX.view(3, 16, 16, 3).double().numpy() / 255
    expected = np.array(
        [
            [
                pixel[m, 4 * i : 4 * i + 4, 4 * j : 4 * j + 4, c].mean()
                for i in range(4)
                for j in range(4)
                for c in range(3)
            ]
            for m in range(3)
        ]
    )
    np.testing.assert_allclose(got.numpy(), expected, atol=1e-6)


def test_every_different_patch_has_a_code_of_its_own_if_there_are_enough() -> None:
    book = learned([picture((0, RED)), picture((1, BLUE)), picture()], [1.0, 1.0, 500.0])
    code_NP = book.code(torch.stack([picture((3, RED), (4, BLUE), (5, GREEN))]))
    grey, red, blue, green = code_NP[0, [0, 3, 4, 5]].tolist()
    assert len({grey, red, blue}) == 3
    assert green == 8, "never seen"
    assert float(book.error) < 1e-6


def test_the_codebook_moves_by_running_means_of_balanced_weights() -> None:
    """Against a loop: two near patches on one vector, of which one occurs sixteen times as often."""
    dark, light = picture((0, (100, 100, 100)), places=1), picture((0, (110, 110, 110)), places=1)
    book = PatchCodebook(2, 3)
    book.vectors_KD.copy_(torch.tensor([[0.4], [10.0]]).expand(2, 48))
    book.used_K.copy_(torch.tensor([1.0, 1.0]))
    book.sum_KD.copy_(book.vectors_KD)
    book.learn(torch.stack([dark, light]), torch.tensor([16.0, 1.0]), generator())
    weight = np.sqrt([16.0, 1.0])
    weight = weight / np.sqrt(weight.sum())
    weight /= weight.sum()
    value = np.array([100, 110]) / 255
    mean = (0.95 * 0.4 + 0.05 * weight @ value) / (0.95 + 0.05)
    torch.testing.assert_close(book.vectors_KD[0], torch.full((48,), mean, dtype=torch.float32))
    torch.testing.assert_close(book.used_K, torch.tensor([1.0, 0.95]))
    torch.testing.assert_close(book.vectors_KD[1], torch.full((48,), 10.0))


def test_patches_of_a_code_weigh_together_as_the_root_of_what_they_do() -> None:
    weight_M, code_M = torch.tensor([1.0, 3.0, 1.0]), torch.tensor([0, 0, 2])
    expected = torch.tensor([0.5, 1.5, 1.0])  # 4 to 1 in sum, then 2 to 1
    torch.testing.assert_close(PatchCodebook(3, 1)._balanced(weight_M, code_M), expected / 3)


def test_padding_is_no_picture() -> None:
    padded = [learned([picture((0, RED)), picture()], [1.0, 9.0])]
    padded.append(learned([picture((0, RED)), picture(), picture((0, RED)), picture((0, GREEN))], [1.0, 9.0, 0.0, 0.0]))
    for name, tensor in padded[0].named_buffers():
        torch.testing.assert_close(padded[1].get_buffer(name), tensor, msg=name)


def test_places_do_not_matter_but_what_is_there_does() -> None:
    pictures = [picture((2, RED)), picture((9, BLUE)), picture((1, RED), (2, BLUE))]
    book = learned([*pictures, picture()], [3.0, 2.0, 1.0, 10.0], updates=5)
    assert same(book, picture((2, RED)), picture((11, RED), (12, RED))) == (True, True)
    assert same(book, picture((2, RED)), picture()) == (False, False)
    assert same(book, picture((2, RED)), picture((2, BLUE))) == (False, False)


def test_the_coarser_code_is_the_rarest_word() -> None:
    pictures = [picture((2, RED)), picture((9, BLUE)), picture((1, RED), (2, BLUE)), picture()]
    book = learned(pictures, [30.0, 2.0, 1.0, 60.0], updates=5)
    assert same(book, picture((2, BLUE)), picture((2, BLUE), (3, RED))) == (False, True)
    assert same(book, picture((2, RED)), picture((2, BLUE), (3, RED))) == (False, False)


def test_what_most_pictures_have_is_no_word() -> None:
    pictures = [picture((2, RED), (3, GREEN)), picture((3, GREEN), (9, BLUE)), picture((3, GREEN))]
    book = learned(pictures, [1.0, 1.0, 8.0], updates=5)
    assert same(book, picture((3, GREEN)), picture()) == (True, True)
    assert int((book.word_K * book.in_views_K > 0).sum()) == 2, "red and blue"


def test_a_picture_has_two_words_on_average() -> None:
    """Where all patches differ the rarest are words, however fine the codebook is."""
    random = np.random.default_rng(0)
    book = PatchCodebook(64, 3)
    for turn in range(30):
        seen = (
            torch.from_numpy(random.integers(0, 256, (40, 16, 1, 3), np.uint8)).repeat(1, 1, SIDE * SIDE, 1).flatten(2)
        )
        book.learn(seen, torch.ones(40), generator(turn))
    assert 0.5 <= float(book.in_views_K[book.words()[:-1]].sum()) <= 3.0
    assert int(book.words().sum()) < 64


def test_a_word_stays_one_for_longer_than_another_becomes_one() -> None:
    """Red is in 55 % of the pictures."""
    pictures, often = [picture((0, RED)), picture()], [55.0, 45.0]
    assert same(learned(pictures, often, updates=5), pictures[0], pictures[1]) == (True, True)
    book = learned(pictures, [40.0, 60.0], updates=5)
    assert same(book, pictures[0], pictures[1]) == (False, False)
    for turn in range(300):
        book.learn(torch.stack(pictures), torch.tensor(often), generator(turn))
    assert same(book, pictures[0], pictures[1]) == (False, False)
    for turn in range(300):
        book.learn(torch.stack(pictures), torch.tensor([80.0, 20.0]), generator(turn))
    assert same(book, pictures[0], pictures[1]) == (True, True)


def test_a_vector_that_nobody_uses_begins_anew_and_one_in_use_stays() -> None:
    book = learned([picture((0, RED)), picture((0, BLUE)), picture()], [5.0, 5.0, 20.0], codes=3)
    before = set(book.code(torch.stack([picture((0, RED), (1, BLUE))]))[0, :3].tolist())
    assert before == {0, 1, 2}
    for turn in range(200):  # blue is seen no more, green is
        book.learn(
            torch.stack([picture((0, RED)), picture((0, GREEN)), picture()]),
            torch.tensor([5.0, 5.0, 20.0]),
            generator(turn),
        )
    code = book.code(torch.stack([picture((0, RED), (1, GREEN), (2, BLUE))]))[0]
    assert len(set(code[[0, 1, 3]].tolist())) == 3
    assert code[2] == 3, "blue is strange now"


def test_what_is_not_seen_for_long_is_kept_as_long_as_there_is_room() -> None:
    book = learned([picture((0, RED)), picture((0, BLUE)), picture()], [5.0, 5.0, 20.0])
    seen = torch.stack([picture((0, RED), (1, BLUE), (2, GREEN))])
    before = book.code(seen)[0, :2].tolist()
    for turn in range(200):
        book.learn(
            torch.stack([picture((0, RED)), picture((0, GREEN)), picture()]),
            torch.tensor([5.0, 5.0, 20.0]),
            generator(turn),
        )
    assert book.code(seen)[0, :2].tolist() == before
    assert len(set(book.code(seen)[0, :4].tolist())) == 4


def test_before_it_has_learned_all_pictures_are_one() -> None:
    assert same(PatchCodebook(8, 3), picture((0, RED)), picture()) == (True, True)


@pytest.mark.parametrize("shape", [(16, 16, 1), (56, 56, 3), (84, 84, 4), (72, 96, 3), (150, 256, 3)])
def test_pictures_of_any_size_have_codes(shape: tuple[int, int, int]) -> None:
    method = find_method("leco", "vq-patches")
    net = build(method, shape, 5, HashConfig(codebook_size=16)).intrinsic
    assert isinstance(net, PatchHashModule)
    hash_function = make_hash_function(method, find_kind(shape), net.eval())
    assert hash_function is not None
    seen = torch.randint(256, (6, *shape), dtype=torch.uint8, generator=generator())
    for turn in range(3):
        net.hash_loss(seen[:4], torch.ones(4), generator(turn))
    codes = hash_function.codes(seen.numpy())
    assert (hash_function.levels, codes.shape) == (2, (6, 32))
    assert hash_function.codes(seen[2:3].numpy())[0].tolist() == codes[2].tolist()
    assert net.encode(seen).shape == (6, 128)


def test_of_many_pictures_a_sample_is_looked_at() -> None:
    many = torch.stack([picture((n % 16, (n, 0, 0)), places=2048 * 4) for n in range(1, 17)])
    book = PatchCodebook(32, 3)
    book.learn(many, torch.ones(16), generator())
    assert float(book.in_views_K.min()) <= 1 / 8, "eight of sixteen"


def views(random: np.random.Generator, count: int) -> np.ndarray:
    """Rooms with a wall, some with a door or a key, some with a key in the hand."""
    made = np.tile(np.array((1, 0, 0), np.uint8), (count, 7, 7, 1))
    made[:, :, 0] = (2, 5, 0)
    for view in made:
        x, y = random.integers(0, 7), random.integers(1, 6)
        if random.random() < 0.4:
            view[x, y] = (4, random.integers(6), random.integers(3))
        if random.random() < 0.2:
            view[random.integers(0, 7), 1] = (random.choice([5, 6, 7]), random.integers(6), 0)
        if random.random() < 0.05:
            view[3, 6] = (5, random.integers(6), 0)
    return made


def test_it_comes_to_see_doors_objects_and_what_is_carried() -> None:
    random = np.random.default_rng(0)
    method = find_method("leco", "vq-patches")
    torch.manual_seed(0)
    net = build(method, (56, 56, 3), 7).intrinsic
    assert isinstance(net, PatchHashModule)
    for turn in range(8):
        net.hash_loss(torch.from_numpy(draw_views(views(random, 256))), torch.ones(256), generator(turn))
    hash_function = make_hash_function(method, find_kind((56, 56, 3)), net.eval())
    assert hash_function is not None
    play = Play([views(random, 128)], [np.full(127, 6)])
    found = probe(hash_function.level(0), play, draw_views)
    assert min(found.door, found.object, found.carried) >= 0.95
