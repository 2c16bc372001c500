"""A run's curves and configuration on Weights & Biases: `leco train --wandb`. It needs the extra `wandb`."""

from __future__ import annotations

import contextlib
import secrets
from typing import TYPE_CHECKING

from leco.config.experiment import ConfigError
from leco.config.toml import flat
from services.learner.run_folder import check_same

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from leco.cli.listeners import Listener
    from leco.config.experiment import Experiment

PROJECT = "leco"
ID = "wandb-id"  # a file of the run's folder, by which a run that goes on is the same one there
X_AXIS = "frames"


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

    try:
        yield [log]
    finally:
        run.finish()
