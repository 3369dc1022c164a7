"""Finds the CPython versions on this machine that redrive supports.

Looks on PATH and in pyenv's versions. Each candidate is run, since a version manager's shim may exist
for a version that it will not start.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

SUPPORTED = ("3.11", "3.12", "3.13", "3.14")
PROBE = (
    "import sys; v = sys.version_info; print(sys.implementation.name, '%d.%d' % v[:2], v.releaselevel, sys.executable)"
)


def candidates(version: str) -> list[Path]:
    """Where an interpreter of ``version`` may be, best first."""
    found = [Path(folder) / f"python{version}" for folder in os.get_exec_path() if folder]
    pyenv = Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")
    installed = (pyenv / "versions").glob(f"{version}.*/bin/python{version}")
    newest_first = sorted(installed, key=lambda path: _patch(path.parent.parent.name), reverse=True)
    return [path for path in [*found, *newest_first] if path.exists()]


def _patch(name: str) -> int:
    last = name.rsplit(".", 1)[-1]
    return int(last) if last.isdigit() else -1


def probe(python: Path, version: str) -> Path | None:
    """The real interpreter behind ``python`` if it is a final release of ``version`` that runs."""
    try:
        done = subprocess.run([python, "-I", "-c", PROBE], capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    words = done.stdout.strip().split(" ", 3)
    if done.returncode != 0 or words[:3] != ["cpython", version, "final"]:
        return None
    return Path(words[3])


def present() -> dict[str, Path]:
    """Supported version -> interpreter, for those this machine has."""
    found: dict[str, Path] = {}
    for version in SUPPORTED:
        for candidate in candidates(version):
            python = probe(candidate, version)
            if python is not None:
                found[version] = python
                break
    return found


if __name__ == "__main__":
    machine = present()
    for version in SUPPORTED:
        print(f"Python {version}: {'present' if version in machine else 'absent'}")
