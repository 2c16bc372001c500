"""A run's curves, configuration and films on Weights & Biases: `leco train --wandb`. It needs the extra `wandb`."""

from __future__ import annotations

import contextlib
import secrets
import sys
from importlib.util import find_spec
from typing import TYPE_CHECKING

from leco.cli.films import Films
from leco.config.experiment import ConfigError
from leco.config.toml import flat
from services.learner.run_folder import check_same

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from leco.cli.films import Film
    from leco.cli.listeners import Listener
    from leco.config.experiment import Experiment

PROJECT = "leco"
ID = "wandb-id"  # a file of the run's folder, by which a run that goes on is the same one there
X_AXIS = "frames"
DRAW = ("imageio_ffmpeg", "matplotlib")  # packages of the extra `report`


@contextlib.contextmanager
def wandb_listeners(project: str | None, experiment: Experiment, folder: Path) -> Iterator[list[Listener]]:
    """Who tells Weights & Biases of a run, for as long as it trains; nobody without a project.

    Raises:
        ConfigError: the folder has a run of another experiment; or the package is missing, or does not begin a run, for want of a
            key for example.
    """
    if project is None:
        yield []
        return
    try:
        import wandb  # noqa: PLC0415  # an extra
    except ModuleNotFoundError:
        raise ConfigError("--wandb needs a package that is not installed: pip install 'leco[wandb]'") from None
    check_same(folder, experiment)  # before anything is sent
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / ID
    if not kept.exists():
        kept.write_text(secrets.token_hex(4))
    try:
        run = wandb.init(
            project=project,
            id=kept.read_text().strip(),
            name=folder.resolve().name,
            dir=str(folder),
            config=flat(experiment),
            resume="allow",
        )
    except wandb.Error as error:
        raise ConfigError(
            f"--wandb: {error} Log in with `wandb login`, or set WANDB_MODE=offline and send it later with `wandb sync`"
        ) from None
    run.define_metric("*", step_metric=X_AXIS)

    def log(line: Mapping[str, float]) -> None:
        run.log(dict(line))

    def show(film: Film) -> None:
        run.log({X_AXIS: film.frames, "episode": wandb.Video(str(film.path), format="mp4")})

    try:
        if all(map(find_spec, DRAW)):
            with contextlib.closing(Films(folder, experiment, show)) as films:
                yield [log, lambda _: films.look()]
        else:
            sys.stdout.write("no films on Weights & Biases: they need pip install 'leco[report]'\n")
            yield [log]
    finally:
        run.finish()
