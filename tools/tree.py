"""The files of a tree that belong to the project: what git tracks or would track."""

from __future__ import annotations

import argparse
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

GENERATED = {
    ".git", "build", "dist", "__pycache__", ".mypy_cache", ".ruff_cache", ".pytest_cache", ".hypothesis",
    ".import_linter_cache", "node_modules",
}  # fmt: skip


def project_files(root: Path) -> list[Path]:
    """Every file of the project, sorted. Without git (an unpacked sdist), everything not generated."""
    if (root / ".git").exists():
        command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        try:
            done = subprocess.run(command, capture_output=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            pass
        else:
            names = [os.fsdecode(name) for name in done.stdout.split(b"\0") if name]
            return sorted({root / name for name in names if (root / name).is_file()})
    return sorted(_walk(root))


def is_generated(name: str) -> bool:
    """Whether a directory of this name is made by tools and never part of the project."""
    return name in GENERATED or name.startswith(".venv") or name.endswith(".egg-info")


def _walk(root: Path) -> Iterator[Path]:
    for folder, names, files in os.walk(root):
        names[:] = [name for name in names if not is_generated(name)]
        for name in files:
            yield Path(folder) / name


def text_lines(path: Path) -> list[str]:
    """The lines of a text file; none for a binary one."""
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except UnicodeDecodeError:
        return []


def root_argument(description: str | None) -> Path:
    """The one argument every check takes: the tree to look at, by default the one it lies in."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("root", nargs="?", type=Path, default=Path(__file__).resolve().parent.parent)
    root: Path = parser.parse_args().root
    return root.resolve()


def report(name: str, problems: list[str], fine: str) -> int:
    """Print the problems, or one line that says what was looked at. The exit status of a check."""
    for problem in problems:
        print(f"{name}: {problem}")
    print(f"{name}: {len(problems)} problem{'s' * (len(problems) != 1)}" if problems else f"{name}: ok, {fine}")
    return int(bool(problems))
