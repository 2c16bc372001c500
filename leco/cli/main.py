"""The `leco` command."""

from __future__ import annotations

import os
import signal
import sys
from importlib import import_module, metadata

from leco.words import did_you_mean

# The module, what the command does, and the extras of pyproject.toml that it may need; without any, all or none
COMMANDS = {
    "train": ("leco.cli.train", "train on this machine: all services as child processes", "actor,hashcount,learner"),
    "eval": ("leco.cli.evaluate", "play fresh episodes with a trained policy", "actor,learner,report"),
    "watch": ("leco.cli.watch.command", "show a run as a live page in the browser", "actor,learner,report"),
    "zoo": ("leco.cli.zoo", "list trained policies that come with leco, or add one", "actor,learner"),
    "export": ("leco.cli.export", "write a trained policy as ONNX or TorchScript", "actor,export,learner"),
    "sweep": ("leco.cli.sweep.command", "train and evaluate methods, tasks and seeds, and compare them", ""),
    "report": ("leco.cli.report", "a page of figures from runs or a sweep", "report"),
    "probe": ("leco.cli.probe", "what hashes see: doors, objects, turns, first visits", "actor,learner"),
    "tasks": ("leco.cli.tables", "list what can be solved", ""),
    "methods": ("leco.cli.tables", "list how", ""),
    "actor": ("services.actor.__main__", "run an actor", "actor"),
    "learner": ("services.learner.__main__", "run the learner", "learner"),
    "hashcount": ("services.hashcount.__main__", "run the hash-count service", "hashcount"),
    "health": ("leco.cli.health", "ask a running service whether it is well", ""),
    "cluster": ("leco.cli.cluster", "show what runs in a Kubernetes cluster, and how far it is", "cluster"),
    "dmlab-levels": ("leco.cli.dmlab_levels", "compile levels of DeepMind Lab ahead of play", ""),
    "demo": ("leco.cli.demo", "train LECO until it solves MultiRoom-N6, and play with what it learned", ""),
}


def main() -> None:
    """Imports only what the chosen command needs, so that each service starts quickly and without the others' packages."""
    if sys.platform == "win32":
        sys.exit("leco does not run on Windows itself: use WSL 2, or Docker (docs/compose.md)")
    # So that whatever is open is closed and removed, until a service has a handler of its own. Also for process 1 of a container,
    # where Linux ignores a signal that has none.
    signal.signal(signal.SIGTERM, _end)
    # No child of ours calls gRPC, and its handlers of a fork may break a child.
    os.environ.setdefault("GRPC_ENABLE_FORK_SUPPORT", "0")
    name = sys.argv[1] if len(sys.argv) > 1 else "--help"
    if name == "--version":
        sys.stdout.write(f"leco {metadata.version('leco')}\n")
    elif name in ("-h", "--help", "help"):
        rows = "\n".join(f"  {command:13}{what}" for command, (_, what, _) in COMMANDS.items())
        sys.stdout.write(
            f"usage: leco COMMAND [FLAGS]\n\n{__package_doc__}\n\ncommands:\n{rows}\n\n`leco COMMAND --help` tells more.\n"
        )
    elif name in COMMANDS:
        _run(name)
    else:
        hint = did_you_mean(name, COMMANDS, f"the commands are: {', '.join(COMMANDS)}")
        sys.stderr.write(f"leco: there is no command {name!r}; {hint}\n")
        sys.exit(2)


def _run(name: str) -> None:
    module, _, extras = COMMANDS[name]
    try:
        getattr(import_module(module), name if name in ("tasks", "methods") else "main")(sys.argv[2:])
    except ModuleNotFoundError as error:
        package = (error.name or "leco").partition(".")[0]
        if package in ("leco", "services"):
            raise
        advice = (
            f"pip install 'leco[{extras}]', or 'leco[all]' for every command" if extras else "pip install 'leco[all]'"
        )
        sys.exit(f"leco {name}: the package {package} is not installed: {advice}")


def _end(number: int, _frame: object) -> None:
    sys.exit(128 + number)


__package_doc__ = "Distributed reinforcement learning that explores."


if __name__ == "__main__":
    main()
