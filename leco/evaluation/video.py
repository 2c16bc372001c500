"""An episode as a video: the level drawn by MiniGrid itself, or the pictures that the agent saw, beside its live rewards."""

from __future__ import annotations

from typing import TYPE_CHECKING

import imageio.v3 as imageio
import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from leco.checkpoint.atomic_file import atomic_write
from leco.report.pictures import draw_moment
from leco.report.style import REWARD_COLOURS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from matplotlib.artist import Artist

    from leco.evaluation.recording import Episode, Metadata, Recording

FRAMES_PER_SECOND = 10
LAST_FRAMES = 15  # the last picture stays for a moment
TILE = 32
SIZE = (9.6, 4.8)  # inches; with DPI even numbers of pixels, as MP4 needs them
DPI = 100


def film(recording: Recording, path: Path) -> int:
    """Draws the first episode of a recording.

    Args:
        recording: What was played.
        path: Ends in .mp4 or .gif.

    Returns:
        How many pictures the video has.
    """
    pictures = list(frames(recording.episodes[0], recording.metadata))
    pictures += [pictures[-1]] * (LAST_FRAMES - 1)
    if path.suffix == ".gif":
        data = imageio.imwrite(
            "<bytes>", pictures, extension=".gif", plugin="pillow", duration=1000 / FRAMES_PER_SECOND, loop=0
        )
    else:
        data = imageio.imwrite(
            "<bytes>",
            pictures,
            extension=".mp4",
            plugin="FFMPEG",
            fps=FRAMES_PER_SECOND,
            codec="libx264",
            pixelformat="yuv420p",  # what browsers and phones play
        )
    atomic_write(path, bytes(data))
    return len(pictures)


def frames(episode: Episode, metadata: Metadata) -> Iterator[np.ndarray]:
    """Pictures [height, width, RGB] from before the first action to after the last.

    What stays the same is drawn once: matplotlib needs most of its time for it.
    """
    steps = len(episode.action_T)
    figure = Figure(figsize=SIZE, dpi=DPI, layout="constrained")
    canvas = FigureCanvasAgg(figure)
    level, curve = figure.subplots(1, 2)
    level.set_axis_off()
    picture = level.imshow(draw_moment(episode, 0, TILE), animated=True)
    level.set_title(f"{metadata.method} on {metadata.task}, after {metadata.frames:,} frames", fontsize=10)
    rewards = _known_rewards(episode)
    low = min([-0.05, *(float(each.min()) for each in rewards.values())])
    high = max([1.05, *(float(each.max()) for each in rewards.values())])
    curve.set(xlim=(0, max(steps, 2)), ylim=(1.1 * low, 1.05 * high), xlabel="action")
    curve.set_title("intrinsic reward of each action", fontsize=10)
    curve.grid(alpha=0.3)
    lines = {
        name: curve.plot([], [], color=REWARD_COLOURS[name], label=name, linewidth=1.8, animated=True)[0]
        for name in rewards
    }
    if lines:
        curve.legend(loc="upper right", fontsize=9)
    words = curve.set_xlabel(" \n ", fontsize=9, family="monospace", animated=True)
    moving: list[Artist] = [picture, *lines.values(), words]
    canvas.draw()
    still = canvas.copy_from_bbox(figure.bbox)
    for t in range(steps + 1):
        canvas.restore_region(still)
        picture.set_data(draw_moment(episode, t, TILE))
        for name, line in lines.items():
            line.set_data(np.arange(1, t + 1), rewards[name][:t])
        words.set_text(_words(episode, metadata, t))
        for artist in moving:
            figure.draw_artist(artist)
        yield np.asarray(canvas.buffer_rgba())[..., :3].copy()


def _known_rewards(episode: Episode) -> dict[str, np.ndarray]:
    """The intrinsic rewards by name; an entry of the zoo, which has no modulator, knows only some of them."""
    every = {"r_ep": episode.r_ep_T, "r_ta": episode.r_ta_T, "r_i": episode.r_i_T}
    return {name: values_T for name, values_T in every.items() if np.isfinite(values_T).all()}


def _words(episode: Episode, metadata: Metadata, t: int) -> str:
    """What happened last, in two lines."""
    if t == 0:
        return f"before the first of {len(episode.action_T)} actions\n "
    action = metadata.actions[episode.action_T[t - 1]]
    seen = f", code seen {episode.count_T[t]} x" if episode.count_T[t] else ""
    rewards = "  ".join(f"{name} {values_T[t - 1]:5.2f}" for name, values_T in _known_rewards(episode).items())
    return f"{t:4}: {action}{seen}\n{rewards}"
