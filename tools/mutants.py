"""The registry of planted faults: `tests/mutants/registry.toml`.

Each ``[[mutant]]`` changes one place of one file, and names the tests that must notice::

    [[mutant]]
    name = "reserve-does-not-charge"        # kebab-case, unique
    file = "src/redrive/.../reserve.sql"    # from the root of the tree
    find = "attempt = attempt + 1"          # exact text, exactly once in the file
    replace = "attempt = attempt"
    tests = ["tests/contract/test_x.py::test_y"]
    quick = true                            # also in `make test`; default false
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from known_tests import TestIndex

REGISTRY = Path("tests/mutants/registry.toml")
KEBAB = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*")
FIELDS = {"name": str, "file": str, "find": str, "replace": str, "tests": list, "quick": bool}


@dataclass(frozen=True)
class Mutant:
    """One planted fault."""

    name: str
    file: str
    find: str
    replace: str
    tests: tuple[str, ...]
    quick: bool = False

    def apply(self, text: str) -> str:
        """The file's text with the fault in it."""
        return text.replace(self.find, self.replace)


def load(root: Path, index: TestIndex) -> tuple[list[Mutant], list[str]]:
    """The mutants of a tree, and what is wrong with the registry."""
    registry = root / REGISTRY
    if not registry.is_file():
        return [], [f"{REGISTRY} is missing"]
    mutants: list[Mutant] = []
    problems: list[str] = []
    for number, entry in enumerate(tomllib.loads(registry.read_text(encoding="utf-8")).get("mutant", []), 1):
        label = f"mutant {entry.get('name', f'number {number}')}"
        found = _shape(entry)
        if found:
            problems += [f"{label}: {problem}" for problem in found]
            continue
        mutant = Mutant(**{**entry, "tests": tuple(entry["tests"])})
        if any(mutant.name == other.name for other in mutants):
            problems.append(f"{label}: the name is used twice")
        mutants.append(mutant)
        problems += [f"{label}: {problem}" for problem in _fit(mutant, root, index)]
    return mutants, problems


def _shape(entry: dict[str, Any]) -> list[str]:
    problems = [f"unknown field {name}" for name in sorted(entry.keys() - FIELDS.keys())]
    problems += [f"{name} is missing" for name in FIELDS if name not in entry and name != "quick"]
    problems += [
        f"{name} must be a {kind.__name__}"
        for name, kind in FIELDS.items()
        if name in entry and not isinstance(entry[name], kind)
    ]
    return problems


def _fit(mutant: Mutant, root: Path, index: TestIndex) -> list[str]:
    problems: list[str] = []
    if not KEBAB.fullmatch(mutant.name):
        problems.append("the name is not kebab-case")
    if mutant.find == mutant.replace:
        problems.append("find and replace are the same: nothing is planted")
    file = root / mutant.file
    if not file.is_file():
        problems.append(f"no file {mutant.file}")
    else:
        count = file.read_text(encoding="utf-8").count(mutant.find) if mutant.find else 0
        if count != 1:
            problems.append(f"the find text occurs {count} times in {mutant.file}, not exactly once")
    if not mutant.tests:
        problems.append("names no test that must notice it")
    problems += [f"no such test: {test}" for test in mutant.tests if index.marks(test) is None]
    return problems
