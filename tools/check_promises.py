"""Every promise has a test that shows it, and every named fault can still be planted.

`docs/promises.toml` lists the clauses of the contract. This fails on a clause that no test shows, on a
test that does not exist, is skipped, or runs only in `make test-full`, and on a mutant that is not in the
registry, no longer fits its file, or turns none of the clause's own tests red.

A clause whose feature is not in this release stands under ``[[unreleased]]``, names the feature, and may
not name tests: once it can, it is a ``[[clause]]``.
"""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from known_tests import TestIndex
from tree import report, root_argument

from mutants import KEBAB, Mutant, load

INDEX = Path("docs/promises.toml")
FIELDS: dict[str, dict[str, type]] = {
    "clause": {"id": str, "promise": str, "source": str, "tests": list, "mutants": list},
    "unreleased": {"id": str, "promise": str, "source": str, "feature": str},
}
NOT_SHOWING = {"skip": "is skipped", "skipif": "may be skipped", "xfail": "is expected to fail"}


def shape(table: str, entry: dict[str, Any]) -> Iterator[str]:
    """What is wrong with the fields of one entry."""
    fields = FIELDS[table]
    for name in sorted(entry.keys() - fields.keys()):
        yield f"unknown field {name}"
    for name, kind in fields.items():
        if not isinstance(entry.get(name), kind):
            yield f"{name} is missing or not a {kind.__name__}"
        elif kind is str and not entry[name].strip():
            yield f"{name} is empty"
    if not KEBAB.fullmatch(str(entry.get("id", ""))):
        yield "the id is not kebab-case"


def clause_problems(clause: dict[str, Any], index: TestIndex, mutants: dict[str, Mutant]) -> Iterator[str]:
    """What keeps one clause from being shown."""
    if not clause["tests"]:
        yield "no test shows it"
    always = False
    for test in clause["tests"]:
        marks = index.marks(test)
        if marks is None:
            yield f"no such test: {test}"
            continue
        yield from (f"{test} {why}" for mark, why in NOT_SHOWING.items() if mark in marks)
        always = always or "full" not in marks
    if clause["tests"] and not always:
        yield "only `make test-full` shows it: `make test` shows every clause once"
    shown_by = {test.split("[", 1)[0] for test in clause["tests"]}
    for name in clause["mutants"]:
        if name not in mutants:
            yield f"no mutant named {name} in the registry"
        elif not shown_by & {test.split("[", 1)[0] for test in mutants[name].tests}:
            yield f"mutant {name} turns none of the clause's own tests red"


def main() -> int:
    """Exit status: 1 when a promise is not shown."""
    root = root_argument(__doc__)
    index = TestIndex(root)
    registry, problems = load(root, index)
    mutants = {mutant.name: mutant for mutant in registry}
    data = tomllib.loads((root / INDEX).read_text(encoding="utf-8"))
    problems += [f"unknown table {name}" for name in data.keys() - FIELDS.keys()]
    seen: set[str] = set()
    promised: set[str] = set()
    for table in FIELDS:
        for entry in data.get(table, []):
            label = entry.get("id", "an entry without an id")
            found = list(shape(table, entry))
            if not found and entry["id"] in seen:
                found.append("the id is used twice")
            if not found and entry["promise"] in promised:
                found.append("the promise is written twice")
            if not found and table == "clause":
                found += clause_problems(entry, index, mutants)
            seen.add(str(label))
            promised.add(str(entry.get("promise")))
            problems += [f"{label}: {problem}" for problem in found]
    clauses = data.get("clause", [])
    if not clauses:
        problems.append("no clauses: nothing was checked")
    used = {name for clause in clauses for name in clause.get("mutants", [])}
    problems += [f"mutant {name}: no clause names it" for name in mutants if name not in used]
    tests = {test for clause in clauses for test in clause.get("tests", [])}
    with_mutant = sum(bool(clause.get("mutants")) for clause in clauses)
    fine = f"{len(clauses)} clauses shown by {len(tests)} tests; {with_mutant} by {len(used)} mutants too"
    return report("promises", problems, f"{fine}; {len(data.get('unreleased', []))} not in this release")


if __name__ == "__main__":
    sys.exit(main())
