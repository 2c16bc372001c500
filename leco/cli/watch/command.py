"""A run as a live page on this machine: `leco watch`."""

from __future__ import annotations

import asyncio
import contextlib
import difflib
import signal
import socket
import sys
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING

import uvicorn

from leco.cli.watch.live import Live
from leco.cli.watch.replays import Replays
from leco.cli.watch.server import make_app
from leco.evaluation.zoo import find_entries, find_run
from leco.report.runs import is_run
from services.flags import Parser, whole_number

if TYPE_CHECKING:
    from collections.abc import Sequence

DESCRIPTION = """\
Shows a run as a page in the browser while it trains, or afterwards: curves, time left, and an episode that the newest checkpoint
plays, with its codes, counts and rewards. It only reads the run's folder. Ctrl-C ends it; training does not notice. An entry of
the zoo (`leco zoo`) is shown like a run that has ended."""
HOST = "127.0.0.1"
FIRST_PORT = 8720
PORTS = 50
STOP_SECONDS = 5
MOST_CONNECTIONS = 500


def main(arguments: Sequence[str] | None = None) -> None:
    """Serves the page until Ctrl-C."""
    parser = Parser("leco watch", description=DESCRIPTION)
    parser.add_argument(
        "run", type=Path, help="the run's folder, or an entry of the zoo, for example zoo/KeyCorridorS4R3"
    )
    parser.add_argument(
        "--port",
        type=whole_number(0, 65535),
        metavar="N",
        help=f"of the page (default: the first free one from {FIRST_PORT} on)",
    )
    parser.add_argument("--open", action="store_true", help="open the page in the browser")
    given = parser.parse_args(arguments)
    given.run = find_run(given.run)
    folder: Path = given.run.resolve()
    if refusal := why_not(given.run):
        parser.error(refusal)
    try:
        listening = listen(given.port)
    except OSError as error:
        parser.refuse(error)
    address = f"http://{HOST}:{listening.getsockname()[1]}/"
    sys.stdout.write(f"{folder.name}: {address}   (Ctrl-C ends this, not the training)\n")
    sys.stdout.flush()
    if given.open:
        webbrowser.open(address)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the player and its files do not stay behind
    with contextlib.suppress(KeyboardInterrupt), listening:
        asyncio.run(_serve(folder, listening))


async def _serve(folder: Path, listening: socket.socket) -> None:
    with Replays(folder) as replays:
        live = Live(folder, replays)
        config = uvicorn.Config(
            make_app(live, replays),
            access_log=False,
            lifespan="off",
            limit_concurrency=MOST_CONNECTIONS,
            log_level="warning",
            proxy_headers=False,
            server_header=False,
            timeout_graceful_shutdown=STOP_SECONDS,
            ws="none",
        )
        async with asyncio.TaskGroup() as tasks:
            others = [tasks.create_task(live.follow()), tasks.create_task(replays.follow(lambda: live.pages > 0))]
            await uvicorn.Server(config).serve(sockets=[listening])
            for each in others:
                each.cancel()


def listen(port: int | None) -> socket.socket:
    """A socket at this port, or at the first free one.

    Raises:
        OSError: the port is taken, or none is free.
    """
    for each in (port,) if port is not None else range(FIRST_PORT, FIRST_PORT + PORTS):
        listening = socket.socket()
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((HOST, each))
            listening.listen()
        except OSError as error:
            listening.close()
            if port is not None:
                raise OSError(f"port {port} cannot be had ({error}); leave out --port for a free one") from error
        else:
            return listening
    raise OSError(f"ports {FIRST_PORT} to {FIRST_PORT + PORTS - 1} are all taken; say one with --port")


def why_not(folder: Path) -> str:
    """Why this folder cannot be watched, and what could be; empty if it can."""
    if (folder / "sweep.toml").exists():
        return f"{folder} is a sweep; watch one of its runs: {_listed(_runs(folder), folder.name)}"
    if entries := find_entries(folder):
        return f"{folder} is a zoo; watch one of its entries: {_listed(entries, folder.name)}"
    if is_run(folder) or (folder.is_dir() and not any(folder.glob("[!.]*"))):  # an empty one is that of a run to come
        return ""
    known = [each for parent in dict.fromkeys((folder, folder.parent, Path("runs"))) for each in _runs(parent)]
    there = f"the nearest runs: {_listed(known, folder.name)}" if known else "`leco train` makes one under runs/"
    return f"{folder} is no run; {there}" if folder.is_dir() else f"there is no folder {folder}; {there}"


def _runs(parent: Path) -> list[Path]:
    """The runs in a folder."""
    return sorted({each.parent for name in ("config.toml", "requested.toml") for each in parent.glob(f"*/{name}")})


def _listed(runs: Sequence[Path], name: str, most: int = 5) -> str:
    """Those with a name most like the one that was asked for."""
    ranked = sorted(runs, key=lambda run: -difflib.SequenceMatcher(None, run.name, name).ratio())
    return ", ".join(map(str, ranked[:most])) + (f" and {len(runs) - most} more" if len(runs) > most else "")


if __name__ == "__main__":
    main()
