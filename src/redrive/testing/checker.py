"""The offline checker: producer, ledger and oracle joined, and the contract held against all three.

It runs after the fact, and takes no part of the engine's own reading or verifying code::

    report = check("producer.jsonl", "redrive.db", "receiver.jsonl")
    assert report.ok, report

The rules, and what each turns red on:

====================== ==========================================================================================
rule                   what is wrong
====================== ==========================================================================================
``lost``               acknowledged, and not exactly once on the ledger in a disposition
``unexpected``         the oracle or the ledger has a delivery that nobody tried to hand over
``write_ahead``        an attempt was seen without, or before, its reservation, or more than once
``over_budget``        more attempts than granted, or one that started at or after the deadline
``gaps``               attempts of a generation are not numbered 1..k, or were seen under another number
``fence``              fences do not grow, two leases at once, or an old fence was used after a newer one
``terminal``           something followed an end
``early``              a start before it was due, or a delay outside what policy and Retry-After allow
``untrue``             delivered without a success at the oracle, or a plain success recorded as a failure
``unexplained``        more successes than 1 + the attempts recorded unknown or late, in one generation
``altered``            bytes differ between attempts, payload and producer, or a signature is bad
``dead_letter``        not exactly one for each generation that ended badly, or it says something else
``fold``               the state row is not what the entries add up to
``overdue``            something should have happened by now (after a drain: is not at its end)
====================== ==========================================================================================
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from redrive.domain.identity import to_text
from redrive.testing.evidence import (
    WEBHOOK,
    Ledger,
    Lines,
    attach_effects,
    attach_requests,
    read_ledger,
    read_lines,
)
from redrive.testing.rules import WORDS, Rules

RULES: Final = (
    "lost",
    "unexpected",
    "write_ahead",
    "over_budget",
    "gaps",
    "fence",
    "terminal",
    "early",
    "untrue",
    "unexplained",
    "altered",
    "dead_letter",
    "fold",
    "overdue",
)
_LISTED: Final = 40


@dataclass(frozen=True, slots=True)
class Problem:
    """One broken rule."""

    rule: str
    delivery: str
    """``dlv_...``."""
    message: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.delivery}: {self.message}"


@dataclass(frozen=True, slots=True)
class Report:
    """What the three logs say together."""

    counts: Mapping[str, int]
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        """Whether no rule is broken."""
        return not self.problems

    def summary(self) -> dict[str, int]:
        """The counts of what happened, then the number of problems by rule (0 where it holds)."""
        broken = Counter(problem.rule for problem in self.problems)
        return {**self.counts, **{rule: broken[rule] for rule in RULES}}

    def __str__(self) -> str:
        lines = [f"{name} {count}" for name, count in self.summary().items()]
        return "\n".join([", ".join(lines), *map(str, self.problems[:_LISTED])])


def check(
    producer_log: Lines,
    ledger_at: Path | str,
    requests: Lines,
    effects: Lines | None = None,
    *,
    drained: bool = True,
    grace_s: float = 5.0,
) -> Report:
    """Join the logs. Each is a file of JSON lines or its objects; :mod:`redrive.testing.evidence` describes them.
    The ledger is a SQLite file or a ``postgresql://`` URL.

    Python jobs are held to the oracle's rules only where ``effects`` is given. ``drained`` says that work ran until
    idle: everything is then terminal or held. Otherwise nothing may be overdue by more than ``grace_s``, which is to
    cover a lease and a sweep of the reaper.
    """
    ledger = read_ledger(ledger_at)
    seen, steps = read_lines(requests), read_lines(effects if effects is not None else ())
    produced = read_lines(producer_log)
    strangers = attach_requests(ledger, seen) + attach_effects(ledger, steps)
    acknowledged, tried = _producer(produced)
    now = max(ledger.now, time.time_ns() // 1000) if drained else ledger.now
    problems: list[Problem] = []
    counts: Counter[str] = Counter()
    for name, body in acknowledged.items():
        problems += [Problem("lost", name, message) for message in _lost(ledger, name)]
        problems += [Problem("altered", name, message) for message in _handed_over(ledger, name, body)]
    for name in sorted(set(strangers)):
        problems.append(Problem("unexpected", name, "it was seen, and is not on the ledger"))
    watched = {WEBHOOK} if effects is None else None
    for name, case in ledger.cases.items():
        event = case.facts["event_id"]
        if name not in tried and (event is None or to_text("evt", event) not in tried):
            problems.append(Problem("unexpected", name, "it is on the ledger, and nobody tried to hand it over"))
        if case.facts["disposition"] is None:
            if name not in acknowledged:
                problems.append(Problem("lost", name, "it is in no disposition"))
            continue
        rules = Rules(case, ledger, oracle=watched is None or case.facts["handler"] in watched)
        problems += [Problem(rule, name, message) for rule, message in rules.broken(now, drained, int(grace_s * 1e6))]
        counts.update(rules.counts())
    order = {rule: number for number, rule in enumerate(RULES)}
    problems.sort(key=lambda problem: (order[problem.rule], problem.delivery))
    head = {
        "acknowledged": len(acknowledged),
        "unacknowledged": len({name for name in ledger.cases if name not in acknowledged}),
        "deliveries": len(ledger.cases),
        "requests": len(seen),
        "handler_calls": sum(step["step"] == "start" for step in steps),
    }
    names = ("attempts", *WORDS, "held", "unknown", "late", "recovered", "duplicates_explained")
    return Report({**head, **{name: counts[name] for name in names}}, tuple(problems))


def _producer(lines: list[Mapping[str, Any]]) -> tuple[dict[str, str | None], set[str]]:
    acknowledged: dict[str, str | None] = {}
    tried: set[str] = set()
    for line in lines:
        tried.update(line["deliveries"])
        if line.get("event") is not None:
            tried.add(line["event"])
        if line["kind"] == "acknowledged":
            acknowledged.update(dict.fromkeys(line["deliveries"], line.get("body_sha256")))
    return acknowledged, tried


def _lost(ledger: Ledger, name: str) -> Iterator[str]:
    case = ledger.cases.get(name)
    if case is None or name not in ledger.identities:
        yield "it was acknowledged, and is not on the ledger"
    elif case.facts["disposition"] not in range(len(WORDS)):
        yield "it was acknowledged, and is in no disposition"


def _handed_over(ledger: Ledger, name: str, body: str | None) -> Iterator[str]:
    case = ledger.cases.get(name)
    if case is not None and body is not None and hashlib.sha256(case.facts["payload"]).hexdigest() != body:
        yield "the stored payload is not the one that was handed over"
