"""The three logs that the offline checker joins, read into plain rows.

The **producer's log** is JSON lines (:class:`ProducerLog` writes them): ``tried`` before a call that should
accept work, ``acknowledged`` after it returned. A call without its acknowledgement may or may not have happened.

The **ledger** is read in one read-only transaction, by SQL of the checker's own: nothing of the engine's reading code
takes part, so that the two can disagree.

The **oracle** is the receiver's log (:class:`redrive.testing.receiver.Seen`). For Python jobs an **effects log**
stands in for it (:class:`EffectsLog`, written by the handler itself).
"""

from __future__ import annotations

import json
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import resources
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote

from redrive.domain.identity import attempt_id, from_text, to_text
from redrive.ledger.opening import is_postgres

WEBHOOK: Final = "webhook"
Lines = Path | str | Iterable[Mapping[str, Any]]
"""A file of JSON lines, or what it holds."""


class _JsonLines:
    """Appends JSON lines to a file; each is on disk when the call returns. Safe in several processes at once."""

    def __init__(self, path: Path | str) -> None:
        self._handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def _write(self, line: Mapping[str, Any]) -> None:
        stamped = {"at_us": time.time_ns() // 1000, **line}
        os.write(self._handle, json.dumps(stamped, separators=(",", ":")).encode() + b"\n")
        os.fsync(self._handle)

    def close(self) -> None:
        """Close the file."""
        os.close(self._handle)


class ProducerLog(_JsonLines):
    """What a producer tried to hand over, and what was acknowledged to it."""

    def tried(self, *, deliveries: Sequence[str] = (), event: str | None = None) -> None:
        """Write this before the call: the ``dlv_`` IDs, or the ``evt_`` ID, that it would accept."""
        self._write({"kind": "tried", "deliveries": list(deliveries), "event": event})

    def acknowledged(self, deliveries: Sequence[str], body_sha256: str | None = None, event: str | None = None) -> None:
        """Write this after the call returned. ``body_sha256`` is of the payload's bytes, in hexadecimal."""
        line = {"kind": "acknowledged", "deliveries": list(deliveries), "event": event, "body_sha256": body_sha256}
        self._write(line)


class EffectsLog(_JsonLines):
    """What a handler did: ``start`` when it is called, ``effect`` when its effect is durable."""

    def note(self, step: str, delivery: str, generation: int, attempt: int, fence: int) -> None:
        """One step of one attempt."""
        self._write({"step": step, "delivery": delivery, "attempt": f"{generation}.{attempt}", "fence": fence})


class Row(Protocol):
    """A row of the ledger, whichever driver read it."""

    def __getitem__(self, column: str, /) -> Any: ...


@dataclass(frozen=True, slots=True)
class Sighting:
    """One attempt as somebody outside the ledger saw it."""

    at_us: int
    attempt: str
    """``generation.number``."""
    fence: int
    """0: there is no reservation that it could be of."""
    began: bool
    """A request received, or a handler called; not the effect that followed."""
    success: bool
    """Answered 2xx, or the handler's effect made durable."""
    effect: bool
    body_sha256: str | None = None
    signature: str | None = None


@dataclass(slots=True)
class Case:
    """Everything known about one delivery."""

    facts: Row
    attempts: list[Row] = field(default_factory=list)
    generations: list[Row] = field(default_factory=list)
    dead: list[Row] = field(default_factory=list)
    transitions: list[Row] = field(default_factory=list)
    sightings: list[Sighting] = field(default_factory=list)

    @property
    def name(self) -> str:
        """``dlv_...``."""
        return to_text("dlv", self.facts["delivery_id"])

    @property
    def newest(self) -> int:
        """The highest fence that anything on the ledger speaks of."""
        fences: list[int] = [self.facts["fence"] or 0, *(attempt["fence"] for attempt in self.attempts)]
        return max(fences)

    def of(self, generation: int) -> list[Row]:
        """The attempts of a generation, by number."""
        return [attempt for attempt in self.attempts if attempt["generation"] == generation]


@dataclass(slots=True)
class Ledger:
    """What the checker reads of a ledger, in one snapshot."""

    now: int
    identities: list[str]
    cases: dict[str, Case]
    policies: dict[int, dict[str, Any]]
    destinations: dict[str, dict[str, Any]]


def read_lines(source: Lines) -> list[Mapping[str, Any]]:
    """The whole lines; a last line that a killed process did not finish never counted."""
    if not isinstance(source, Path | str):
        return list(source)
    path = Path(source)
    data = path.read_bytes() if path.exists() else b""
    return [json.loads(line) for line in data[: data.rfind(b"\n") + 1].splitlines()]


@lru_cache
def _sql(name: str) -> str:
    """One text for every dialect: they differ in where the tables are, and in where the clock is."""
    return resources.files("redrive.testing").joinpath("sql", f"checker_{name}.sql").read_text(encoding="utf-8")


def read_ledger(place: Path | str) -> Ledger:
    """Read the ledger in a SQLite file, or at a ``postgresql://`` URL, in one snapshot.

    Raises the driver's error, :class:`sqlite3.Error` for one, where there is none.
    """
    with _postgres(str(place)) if is_postgres(str(place)) else _sqlite(place) as rows:
        by_seq = {row["seq"]: Case(row) for row in rows("deliveries")}
        for table in ("attempts", "generations", "dead_letters", "transitions"):
            for row in rows(table):
                case = by_seq.get(row["seq"])
                if case is not None:
                    getattr(case, "dead" if table == "dead_letters" else table).append(row)
        return Ledger(
            rows("clock")[0]["now"],
            [to_text("dlv", row["delivery_id"]) for row in rows("identities")],
            {case.name: case for case in by_seq.values()},
            {row["version"]: json.loads(row["spec"]) for row in rows("policies")},
            {row["destination_id"]: json.loads(row["settings"]) for row in rows("destinations")},
        )


Rows = Callable[[str], Sequence[Row]]


@contextmanager
def _sqlite(path: Path | str) -> Iterator[Rows]:
    with closing(sqlite3.connect(f"file:{quote(str(path))}?mode=ro", uri=True, isolation_level=None)) as conn:
        conn.row_factory = sqlite3.Row
        conn.execute("BEGIN")
        yield lambda name: conn.execute(_text(name, "sqlite", "main")).fetchall()


@contextmanager
def _postgres(url: str) -> Iterator[Rows]:
    import psycopg
    from psycopg.rows import dict_row

    from redrive.ledger.postgres.connect import PostgresUrl

    parsed = PostgresUrl.parse(url)
    with closing(psycopg.connect(parsed.conninfo, row_factory=dict_row)) as conn:
        conn.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        conn.read_only = True
        yield lambda name: conn.execute(_text(name, "postgres", parsed.schema).encode()).fetchall()


def _text(name: str, dialect: str, schema: str) -> str:
    return _sql(f"clock_{dialect}" if name == "clock" else name).replace("{schema}", schema)


def attach_requests(ledger: Ledger, requests: Iterable[Mapping[str, Any]]) -> list[str]:
    """Give each request to its delivery; returns the delivery IDs that the ledger does not know."""
    strangers = []
    known: dict[str, dict[str, int]] = {}
    for seen in requests:
        name = seen["delivery"]
        case = ledger.cases.get(name)
        if case is None:
            strangers.append(name)
            continue
        if name not in known:
            raw = from_text("dlv", name)
            known[name] = {to_text("att", attempt_id(raw, f)): f for f in range(1, case.newest + 1)}
        answer = seen["answer"]
        success = isinstance(answer, int) and 200 <= answer < 300
        case.sightings.append(
            Sighting(
                seen["at_us"],
                seen["attempt"],
                known[name].get(seen["attempt_id"], 0),
                True,
                success,
                bool(seen["effect"]),
                seen["body_sha256"],
                seen["signature"],
            )
        )
    return strangers


def attach_effects(ledger: Ledger, effects: Iterable[Mapping[str, Any]]) -> list[str]:
    """Give each step to its delivery; returns the delivery IDs that the ledger does not know."""
    strangers = []
    for step in effects:
        case = ledger.cases.get(step["delivery"])
        if case is None:
            strangers.append(step["delivery"])
            continue
        done = step["step"] == "effect"
        fence = step["fence"] if step["fence"] <= case.newest else 0
        case.sightings.append(Sighting(step["at_us"], step["attempt"], fence, not done, done, done))
    return strangers
