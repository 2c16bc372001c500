"""Each hash against computing one observation at a time, and by hand; exact and objects on what MiniGrid really shows."""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
import numpy as np
import numpy.typing as npt
import pytest
import torch
from minigrid.core.world_object import Ball, Box, Door, Key

from leco.algo.hashes import binarisation_loss, digest, dsc_code, lsh_code
from leco.envs.minigrid.reference import make_one
from leco.models.kinds.minigrid import OBJECT_CODE_WIDTH, objects_code
from support.reference import hashes_numpy
from support.uncompiled import make_uncompiled

Observations = npt.NDArray[np.uint8]  # [N, 7, 7, 3]


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("bits", [1, 8, 25, 62])
def test_lsh_equals_the_definition(bits: int) -> None:
    bottleneck = torch.rand(20, 16, generator=generator(1))
    projection = torch.randn(bits, 16, generator=generator(2))
    code = lsh_code(bottleneck, projection).numpy()
    assert code.shape == (20, -(-bits // 8))
    for row, b in zip(code, bottleneck.numpy(), strict=True):
        found = np.unpackbits(row, bitorder="little")
        for p, a in enumerate(projection.numpy().astype(float)):
            assert found[p] == (a @ np.round(b) >= 0)
        assert not found[bits:].any()


def test_lsh_by_hand() -> None:
    bottleneck = torch.tensor([[0.9, 0.2], [0.1, 0.8], [0.0, 0.0]])
    projection = torch.tensor([[1.0, 0.0], [-1.0, 0.0], [-1.0, 1.0]])
    assert lsh_code(bottleneck, projection).tolist() == [[0b001], [0b111], [0b111]]


def test_a_code_does_not_depend_on_what_else_is_in_the_batch() -> None:
    bottleneck, projection = torch.rand(64, 256, generator=generator(3)), torch.randn(25, 256, generator=generator(4))
    together = lsh_code(bottleneck, projection)
    assert torch.equal(together, torch.cat([lsh_code(row[None], projection) for row in bottleneck]))


def test_binarisation_by_hand_and_with_multiplicities() -> None:
    b = torch.tensor([[0.0, 0.5], [0.9, 0.2]], dtype=torch.float64)
    assert binarisation_loss(b).item() == pytest.approx((0 + 0.25 + 0.01 + 0.04) / 4)
    expanded = torch.stack([b[0], b[0], b[0], b[1]])
    weighted = binarisation_loss(b, torch.tensor([3.0, 1.0]))
    assert weighted.item() == pytest.approx(binarisation_loss(expanded).item())


def test_binarisation_gradient() -> None:
    b = torch.rand(4, 5, generator=generator(5), dtype=torch.float64).requires_grad_()
    assert torch.autograd.gradcheck(binarisation_loss, b)


def test_dsc_by_hand() -> None:
    """7 x 7 to 3 x 3 keeps rows and columns 0, 2 and 4."""
    observation = torch.zeros(1, 7, 7, 3, dtype=torch.uint8)
    observation[0, 2, 4] = torch.tensor([10, 5, 2])
    observation[0, 3, 3] = 1  # not looked at
    code = dsc_code(observation, size=(3, 3), levels=11, maximum=(10, 5, 2)).view(3, 3, 3)
    assert code[1, 2].tolist() == [10, 5 * 11 // 6, 2 * 11 // 3]
    assert code.sum() == code[1, 2].sum()


def test_dsc_equals_looping_over_everything() -> None:
    observation = torch.randint(256, (5, 72, 96, 3), generator=generator(6)).to(torch.uint8)
    code = dsc_code(observation, size=(3, 2), levels=4, maximum=(255, 255, 255)).view(5, 3, 2, 3)
    for n in range(5):
        for i in range(3):
            for j in range(2):
                expected = [int(v) * 4 // 256 for v in observation[n, i * 72 // 3, j * 96 // 2]]
                assert code[n, i, j].tolist() == expected


@functools.cache
def played(task: str, steps: int = 100, environments: int = 4) -> Observations:
    """What is seen in random play, in the order in which it is seen."""
    random = np.random.default_rng(0)
    env = make_uncompiled(task, environments, seed=1)
    seen = [env.reset(), *(env.step(random.integers(env.num_actions, size=environments))[0] for _ in range(steps))]
    env.close()
    return np.concatenate(seen)


def every_view() -> Observations:
    return np.concatenate([played(task) for task in ("KeyCorridorS3R3", "DoorKey-8x8", "MultiRoom-N7-S4-NoisyTV")])


def exact(observation_NO: Observations) -> list[bytes]:
    code_NW = digest(torch.from_numpy(observation_NO))
    assert code_NW.dtype == torch.uint8
    assert code_NW.shape == (len(observation_NO), 16)
    return [row.tobytes() for row in code_NW.numpy()]


def test_exact_equals_the_definition() -> None:
    assert exact(every_view()[::20]) == [hashes_numpy.exact_code(view) for view in every_view()[::20]]


def test_digests_are_equal_where_observations_are_and_nowhere_else() -> None:
    views = every_view()
    whole, codes = [view.tobytes() for view in views], exact(views)
    different = len(set(whole))
    assert 200 < different < len(views), "and some are seen again"
    assert len(set(codes)) == len(set(zip(whole, codes, strict=True))) == different


@pytest.mark.parametrize("value", [0, 1, 255])
def test_an_digest_sees_every_byte(value: int) -> None:
    view = every_view()[7]
    changed = np.repeat(view[None], view.size, 0).reshape(view.size, -1)
    np.fill_diagonal(changed, value)
    changed = changed.reshape(-1, *view.shape)
    apart = [each for each in changed if (each != view).any()]
    assert len(apart) > 20
    assert len(set(exact(np.stack([view, *apart])))) == 1 + len({each.tobytes() for each in apart}) == 1 + len(apart)


def test_an_digest_sees_where_things_are() -> None:
    view = every_view()[7]
    turned = [np.ascontiguousarray(each) for each in (view, view[::-1], view[:, ::-1], view.swapaxes(0, 1))]
    assert len({each.tobytes() for each in turned}) == len(set(exact(np.stack(turned)))) == 4


def test_an_digest_does_not_depend_on_what_else_is_in_the_batch_nor_on_its_memory() -> None:
    views = every_view()[:50]
    assert exact(views) == [code for view in views for code in exact(view[None])]
    turned = torch.from_numpy(views.transpose(0, 3, 1, 2).copy()).permute(0, 2, 3, 1)
    assert torch.equal(digest(turned), digest(torch.from_numpy(views)))


def test_digests_of_pixels() -> None:
    """Some thousand words: more than one salt is away from the next."""
    picture = torch.randint(256, (72, 96, 3), generator=generator(7)).to(torch.uint8)
    changed = picture.repeat(6, 1, 1, 1)
    changed[1, 0, 0, 0] ^= 1
    changed[2, 71, 95, 2] ^= 128
    changed[3] = picture.roll(1, 0)
    changed[4] = picture.roll(8 * 1024, 0)  # by as much as the salts differ
    changed[5] = picture
    codes = exact(changed.numpy())
    assert codes[0] == codes[5] == hashes_numpy.exact_code(picture.numpy())
    assert len(set(codes)) == 5


def objects(observation_NO: Observations) -> list[bytes]:
    code_NW = objects_code(torch.from_numpy(observation_NO))
    assert code_NW.dtype == torch.uint8
    assert code_NW.shape == (len(observation_NO), OBJECT_CODE_WIDTH)
    return [row.tobytes() for row in code_NW.numpy()]


AGENT, FRONT = (3, 6), (3, 5)
DOOR, KEY, BALL, BOX = 4, 5, 6, 7


@pytest.mark.parametrize("task", ["KeyCorridorS3R1", "KeyCorridorS3R3", "DoorKey-5x5", "ObstructedMaze-1Dlhb"])
def test_objects_equal_the_naive_reference(task: str) -> None:
    """Codes are those of the definition, and equal exactly where the same objects are in view and carried."""
    views = played(task)
    codes, sets = objects(views), [hashes_numpy.objects(view) for view in views]
    assert codes == [hashes_numpy.objects_code(view) for view in views]
    assert 1 < len(set(sets)) == len(set(codes)) == len(set(zip(sets, codes, strict=True)))
    assert len(set(codes)) < len({view.tobytes() for view in views}), "the same objects are seen in many places"


def test_real_play_has_what_the_tests_of_objects_look_at() -> None:
    views = np.concatenate([played(task) for task in ("KeyCorridorS3R1", "DoorKey-5x5", "ObstructedMaze-1Dlhb")])
    found = [hashes_numpy.objects(view) for view in views]
    kinds = {(kind, state) for seen, _ in found for kind, _, state in seen}
    assert kinds >= {(DOOR, 0), (DOOR, 1), (DOOR, 2), (KEY, 0), (BALL, 0), (BOX, 0)}
    assert {kind for _, (kind, _, _) in found} > {1}, "something is carried"


def empty_view() -> Observations:
    """Floor without anything on it, and walls at two sides, as MiniGrid encodes them."""
    view = np.zeros((7, 7, 3), np.uint8)
    view[..., 0] = 1
    view[0] = view[:, 0] = (2, 5, 0)
    return view


def test_objects_by_hand() -> None:
    view = empty_view()
    view[2, 3], view[5, 1], view[AGENT] = (KEY, 2, 0), (DOOR, 4, 2), (BALL, 3, 0)
    found = np.frombuffer(objects(view[None])[0], np.uint8)
    bits = np.flatnonzero(np.unpackbits(found[:33], bitorder="little"))
    assert bits.tolist() == [(DOOR * 6 + 4) * 4 + 2, (KEY * 6 + 2) * 4]
    assert found[33:].tolist() == [0, (BALL * 6 + 3) * 4]
    nothing = np.frombuffer(objects(empty_view()[None])[0], np.uint8)
    assert not nothing[:33].any()
    assert nothing[33:].tolist() == [0, 1 * 6 * 4], "an empty cell, which is what an empty hand looks like"


def test_neither_places_nor_numbers_nor_walls_nor_floors_matter_to_objects() -> None:
    random = np.random.default_rng(0)
    for view in played("KeyCorridorS3R3")[::40]:
        cells = view.reshape(49, 3)
        others = np.delete(np.arange(49), 3 * 7 + 6)
        moved, more, bare = (cells.copy() for _ in range(3))
        moved[others] = cells[random.permutation(others)]
        kinds = cells[others, 0]
        if (kinds > 3).any():  # one more of what is there already
            more[others[np.argmax(kinds <= 3)]] = cells[others[np.argmax(kinds > 3)]]
        bare[others[kinds <= 3]] = random.integers(0, [4, 6, 3], (int((kinds <= 3).sum()), 3))  # unseen, walls, floors
        assert len(set(objects(np.stack([cells, moved, more, bare]).reshape(4, 7, 7, 3)))) == 1


def seen_in(env: Any) -> Observations:
    view: Observations = env.gen_obs()["image"]
    return view


def corridor() -> Any:
    """KeyCorridor with the agent before a door that it sees."""
    env: Any = make_one(gymnasium.registry["MiniGrid-KeyCorridorS3R3-v0"]).unwrapped
    env.reset(seed=3)
    [x, y] = next((x, y) for x in range(env.width) for y in range(env.height) if is_left_door(env, x, y))
    env.agent_pos, env.agent_dir = (x + 1, y), 2
    assert env.front_pos.tolist() == [x, y]
    return env


def is_left_door(env: Any, x: int, y: int) -> bool:
    return isinstance(env.grid.get(x, y), Door) and env.grid.get(x + 1, y) is None


def test_the_state_of_a_door_matters_to_objects() -> None:
    env, views = corridor(), []
    door = env.grid.get(*env.front_pos)
    for is_open, is_locked in ((False, True), (False, False), (True, False)):
        door.is_open, door.is_locked = is_open, is_locked
        view = seen_in(corridor())
        view[FRONT] = seen_in(env)[FRONT]  # and not what an open door lets one see behind it
        views.append(view)
    assert [view[FRONT][2] for view in views] == [2, 1, 0]
    assert len(set(objects(np.stack(views)))) == 3


def test_what_is_carried_matters_to_objects_and_differs_from_what_lies_there() -> None:
    env, views = corridor(), []
    for carried in (None, Key("yellow"), Key("blue"), Ball("yellow"), Box("yellow")):
        env.carrying = carried
        views.append(seen_in(env))
    assert [int((view != views[0]).any(axis=-1).sum()) for view in views] == [0, 1, 1, 1, 1], "one cell says it"
    lying = views[0].copy()
    x, y = np.argwhere(lying[..., 0] == 1)[0]
    lying[x, y] = views[1][AGENT]
    assert len(set(objects(np.stack([*views, lying])))) == 6


def test_a_key_that_is_taken_up_changes_what_is_carried_and_what_is_in_view() -> None:
    env: Any = make_one(gymnasium.registry["MiniGrid-KeyCorridorS3R1-v0"]).unwrapped
    env.reset(seed=1)
    key = Key("purple")
    env.grid.set(*env.front_pos, key)
    before = seen_in(env)
    env.step(env.actions.pickup)
    assert env.carrying is key
    (seen, _), (seen_after, carried) = (hashes_numpy.objects(view) for view in (before, seen_in(env)))
    assert seen - seen_after == {(KEY, 3, 0)}
    assert carried == (KEY, 3, 0)
    assert len(set(objects(np.stack([before, seen_in(env)])))) == 2


def test_a_code_of_objects_does_not_depend_on_what_else_is_in_the_batch() -> None:
    views = played("KeyCorridorS3R3")[:60]
    assert objects(views) == [code for view in views for code in objects(view[None])]


def test_wrong_shapes_are_named() -> None:
    with pytest.raises(ValueError, match=r"must be uint8 of shape \[N, O...\], not torch.int64 of shape \[2, 3\]"):
        digest(torch.zeros(2, 3, dtype=torch.int64))
    with pytest.raises(ValueError, match=r"must be uint8 of shape \[N, O...\], not torch.uint8 of shape \[2\]"):
        digest(torch.zeros(2, dtype=torch.uint8))
    for shape in ((7, 7, 3), (2, 7, 7, 4), (2, 8, 7, 3), (2, 72, 96, 3)):
        with pytest.raises(ValueError, match=r"observation_NHWC has shape \(.*\), expected \[N, 7, 7, 3\]"):
            objects_code(torch.zeros(shape, dtype=torch.uint8))
    with pytest.raises(ValueError, match=r"projection_PF \(25, 255\)"):
        lsh_code(torch.zeros(2, 256), torch.zeros(25, 255))
    with pytest.raises(ValueError, match="one maximum for each channel"):
        dsc_code(torch.zeros(2, 7, 7, 3, dtype=torch.uint8), size=(3, 3), levels=11, maximum=(10,))
    with pytest.raises(ValueError, match="1 to 256"):
        dsc_code(torch.zeros(2, 7, 7, 3, dtype=torch.uint8), size=(3, 3), levels=300, maximum=(10, 5, 2))
