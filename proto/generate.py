"""Generates leco/v1 from proto/leco/v1, or with --check says whether what is committed is current.

Run by `make proto` and `make proto-check`. The generated files import each other as `leco.v1.<file>_pb2`, which is
why they live in the package `leco.v1` and nowhere else.
"""

import argparse
import filecmp
import shutil
import sys
import tempfile
from pathlib import Path

import grpc_tools
from grpc_tools import protoc

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = Path("leco/v1")
PLUGINS = ("python", "grpc_python", "mypy", "mypy_grpc")


def generate(target: Path) -> None:
    """Writes leco/v1 below `target`."""
    protos = sorted((ROOT / "proto" / PACKAGE).glob("*.proto"))
    includes = [ROOT / "proto", Path(grpc_tools.__file__).parent / "_proto"]
    outputs = [f"--{plugin}_out={'quiet:' if plugin.startswith('mypy') else ''}{target}" for plugin in PLUGINS]
    plugins = [
        f"--plugin=protoc-gen-{name}={Path(sys.executable).parent / f'protoc-gen-{name}'}"
        for name in ("mypy", "mypy_grpc")
    ]
    code = protoc.main(["protoc", *(f"-I{path}" for path in includes), *plugins, *outputs, *map(str, protos)])
    if code != 0:
        sys.exit(f"protoc failed with code {code}")
    for leftover in (target / PACKAGE).glob("*_pb2_grpc.py*"):
        if "Stub" not in leftover.read_text():  # a proto file without a service
            leftover.unlink()
    (target / PACKAGE / "__init__.py").write_text('"""Generated from proto/leco/v1 by `make proto`. Never edited."""\n')


def main() -> None:
    """Entry point."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if leco/v1 is not current")
    check = parser.parse_args().check
    with tempfile.TemporaryDirectory() as scratch:
        generate(Path(scratch))
        fresh, committed = Path(scratch) / PACKAGE, ROOT / PACKAGE
        if not check:
            shutil.rmtree(committed, ignore_errors=True)
            shutil.copytree(fresh, committed)
            return
        names = {path.name for folder in (fresh, committed) for path in folder.glob("*.py*")}
        _, differing, missing = filecmp.cmpfiles(fresh, committed, names, shallow=False)
        if differing or missing:
            sys.exit(f"leco/v1 is not what proto/ gives: {', '.join(sorted(differing + missing))}. Run `make proto`.")


if __name__ == "__main__":
    main()
