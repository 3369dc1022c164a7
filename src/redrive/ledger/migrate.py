"""The migration rules, whichever database: numbered ``.sql`` files, each applied once, in order, and never again.

A library in a user's database brings its own small runner rather than meeting the user's. A step whose header says
``-- breaking`` belongs to the second phase (contract): releases that do not know it must keep away. Every other step
(expand) only adds, and leaves older releases working. So a fleet is deployed without a pause: ``redrive migrate``
applies the steps before the first pending breaking one, workers are replaced one by one, and ``redrive migrate
--finish`` applies the rest. A release works on a ledger that lacks nothing but breaking steps.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final, NamedTuple

from redrive.errors import Conflict, EnvironmentMismatch, LedgerCorrupt, LedgerVersion
from redrive.ledger.statements import sql
from redrive.ledger.tx import Tx

FINISH: Final = "redrive migrate --finish"
_NAMED: Final = 5
_RELEASE: Final = re.compile(r"v?(\d+(?:\.\d+)*)(?:[.\-_]?(a|b|rc|dev|post)(\d*))?(?:\+.*)?")
_PHASES: Final = ("dev", "a", "b", "rc", None, "post")


@dataclass(frozen=True, slots=True)
class Migration:
    """One numbered step of the schema."""

    version: int
    name: str
    text: str

    @property
    def digest(self) -> str:
        """SHA-256 of the file, so that an edited migration is noticed."""
        return hashlib.sha256(self.text.encode()).hexdigest()

    @property
    def breaking(self) -> bool:
        """Whether releases that do not know this step must keep away: a step of the second phase."""
        return any(line.strip() == "-- breaking" for line in self.text.splitlines())

    @property
    def label(self) -> str:
        """``0001_ledger``, as the file is called."""
        return f"{self.version:04}_{self.name}"


class Plan(NamedTuple):
    """What would be done to a ledger: ``todo`` now, ``held`` with ``finish``."""

    todo: tuple[Migration, ...]
    held: tuple[Migration, ...]


class RunningWorker(NamedTuple):
    """A worker that was seen lately and has not stopped."""

    host: str
    pid: int
    version: str


@cache
def load(package: str) -> tuple[Migration, ...]:
    """Every step in a dialect's package, in order."""
    found = []
    for entry in files(package).joinpath("migrations").iterdir():
        if entry.name.endswith(".sql"):
            number, _, name = entry.name[:-4].partition("_")
            found.append(Migration(int(number), name, entry.read_text(encoding="utf-8")))
    found.sort(key=lambda step: step.version)
    if [step.version for step in found] != list(range(1, len(found) + 1)):
        raise LedgerCorrupt("the package's migrations are not numbered 1, 2, 3, ...")
    return tuple(found)


def plan(known: Sequence[Migration], version: int, *, finish: bool = False) -> Plan:
    """What a ledger with schema ``version`` lacks. A new one (0) gets everything at once: no worker is on it."""
    pending = tuple(step for step in known if step.version > version)
    if finish or version == 0:
        return Plan(pending, ())
    cut = next((index for index, step in enumerate(pending) if step.breaking), len(pending))
    return Plan(pending[:cut], pending[cut:])


def check_usable(known: Sequence[Migration], version: int, where: str) -> None:
    """Raises :class:`LedgerVersion` when the ledger lacks a step that this release's code needs."""
    needed = max(step.version for step in known if not step.breaking or step.version == 1)
    if version >= needed:
        return
    hint = "run: redrive migrate" if version else "run: redrive init"
    if any(step.version <= needed for step in plan(known, version).held):
        hint = f"run: {FINISH} (an earlier release's second phase was never finished)"
    raise LedgerVersion(f"ledger {where} has schema {version}, this release needs {needed}", param="ledger", hint=hint)


def refuse_newer(breaking: int | None, version: int, where: str) -> None:
    """Raises :class:`LedgerVersion` when ``breaking``, a step this release does not know, was applied."""
    if breaking is not None:
        raise LedgerVersion(
            f"ledger {where} has schema {version}; step {breaking} is not compatible with this release",
            param="ledger",
            hint="upgrade redrive on this host; nothing was changed",
        )


def check_running(tx: Tx, where: str) -> None:
    """Raises :class:`LedgerVersion` once a step was applied that this running release must keep away from.

    One read of a table of a few rows: cheap enough for every heartbeat.
    """
    known = load(f"redrive.ledger.{tx.dialect}")[-1].version
    breaking: int | None = tx.rows(sql("migration_breaking"), (known,))[0][0]
    refuse_newer(breaking, breaking or known, where)


def check_record(known: Sequence[Migration], recorded: Iterable[Sequence[object]], where: str) -> None:
    """Raises :class:`LedgerCorrupt` when a recorded (version, name, digest) is not what this release would apply."""
    by_version: dict[object, Migration] = {step.version: step for step in known}
    for version, name, digest in recorded:
        step = by_version.get(version)
        if step is not None and step.digest != digest:
            raise LedgerCorrupt(
                f"ledger {where}: migration {version} ({name}) was applied from another text than this release's",
                hint="this release's files were changed, or the ledger is of an unreleased version",
            )


def check_environment(found: str | None, environment: str, where: str) -> None:
    """Raises :class:`EnvironmentMismatch` unless the ledger is stamped with ``environment``."""
    if found is None:
        raise LedgerCorrupt(f"ledger {where} has lost its own name")
    if found != environment:
        raise EnvironmentMismatch(
            f"ledger {where} belongs to environment {found!r}, this process is configured for {environment!r}",
            param="environment",
            hint="nothing was read or changed; check which ledger, or which configuration, is meant",
        )


def refuse_older(workers: Iterable[RunningWorker], release: str, where: str) -> None:
    """Raises :class:`Conflict` naming the live workers that run an older release than ``release``."""
    old = [worker for worker in workers if is_older(worker.version, release)]
    if not old:
        return
    shown = ", ".join(f"{one.host} (pid {one.pid}, redrive {one.version})" for one in old[:_NAMED])
    more = f" and {len(old) - _NAMED} more" if len(old) > _NAMED else ""
    raise Conflict(
        f"ledger {where}: not finished, since workers of a release older than {release} are running: {shown}{more}",
        param="finish",
        hint="stop or upgrade them, then run this again; --force finishes all the same, and stops them",
    )


def is_older(version: str, release: str) -> bool:
    """Whether ``version`` comes before ``release``. One that cannot be read counts as older."""
    if version == release:
        return False
    mine, other = _order(version), _order(release)
    return mine is None or other is None or mine < other


def _order(version: str) -> tuple[tuple[int, ...], int, int] | None:
    match = _RELEASE.fullmatch(version.strip().lower())
    if match is None:
        return None
    numbers = [int(number) for number in match[1].split(".")]
    while len(numbers) > 1 and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers), _PHASES.index(match[2]), int(match[3] or 0)


def literal(value: object) -> str:
    """A value of a statement's parameter, written out for a script that a person runs."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    text = str(value)
    if "\x00" in text or "\\" in text:
        raise LedgerCorrupt("a migration script cannot hold this name")
    return "'" + text.replace("'", "''") + "'"
