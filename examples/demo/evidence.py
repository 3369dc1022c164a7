"""What the demo reads afterwards: the ledger, the receiver's log, and whether the two agree."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from redrive import Redrive
from redrive.domain.delivery import Disposition
from redrive.ledger.records import AttemptView, DeliveryView
from redrive.ledger.search import DeliveryFilter
from redrive.testing.checker import check
from redrive.testing.receiver import Seen, read_log

LEDGER = "redrive.db"
PRODUCER = "producer.jsonl"
RECEIVER = "receiver.jsonl"
ENVIRONMENT = "demo"


def everything(app: Redrive, filters: DeliveryFilter | None = None) -> list[DeliveryView]:
    """Every delivery that matches, page by page."""
    found: list[DeliveryView] = []
    after = None
    while True:
        page = app.operations.search(filters, after=after, limit=500)
        found += page.items
        after = page.next
        if after is None:
            return found


@dataclass(frozen=True)
class Kill:
    """What the world looked like the moment after the SIGKILL."""

    pid: int
    requests: int
    leased: tuple[str, ...]
    """Deliveries whose attempt is charged and whose outcome nobody knows."""
    received: int
    """Of these, how many requests the receiver has written down."""
    acted: int
    """Of these, how many it acted on."""

    @classmethod
    def read(cls, app: Redrive, pid: int, requests: int, seen: Sequence[Seen]) -> Kill:
        leased = everything(app, DeliveryFilter(dispositions=[Disposition.LEASED]))
        open_attempts = {(view.id, f"{view.generation}.{view.attempt}") for view in leased}
        reached = [request for request in seen if (request["delivery"], request["attempt"]) in open_attempts]
        ids = tuple(view.id for view in leased)
        return cls(pid, requests, ids, len(reached), sum(request["effect"] for request in reached))


@dataclass
class Row:
    """One destination in figures."""

    deliveries: int = 0
    dispositions: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    requests: int = 0


@dataclass(frozen=True)
class Evidence:
    """The ledger and the receiver's log, side by side."""

    rows: dict[str, Row]
    attempts: dict[str, Sequence[AttemptView]]
    destination: dict[str, str]
    requests: dict[str, list[Seen]]

    @classmethod
    def read(cls, app: Redrive, names: dict[str, str], seen: Sequence[Seen]) -> Evidence:
        rows = {name: Row() for name in names.values()}
        attempts = {}
        destination = {}
        requests: dict[str, list[Seen]] = defaultdict(list)
        for request in seen:
            requests[request["delivery"]].append(request)
            rows[request["path"][1:]].requests += 1
        for view in everything(app):
            name = destination[view.id] = names[view.destination]
            attempts[view.id] = app.operations.attempts(view.id)
            rows[name].deliveries += 1
            rows[name].dispositions[view.disposition] += 1
            rows[name].outcomes.update(attempt.outcome for attempt in attempts[view.id])
        return cls(rows, attempts, destination, requests)

    def lost_worker(self) -> str | None:
        """The delivery with the longest story among those whose worker was killed: sent, if possible, and recovered."""

        def story(delivery: str) -> tuple[bool, bool, int]:
            lost = [attempt for attempt in self.attempts[delivery] if attempt.category == "worker_lost"]
            numbers = {f"{attempt.generation}.{attempt.number}" for attempt in lost}
            sent = any(request["attempt"] in numbers for request in self.requests[delivery])
            recovered = self.attempts[delivery][-1].outcome == "delivered"
            return sent, recovered, len(self.attempts[delivery])

        lost = [
            delivery
            for delivery, attempts in self.attempts.items()
            if any(attempt.category == "worker_lost" for attempt in attempts)
        ]
        return max(lost, key=story, default=None)


@dataclass(frozen=True)
class Line:
    """One promise: how many times it was broken, and what that would mean."""

    name: str
    found: int
    meaning: str


PROMISES: dict[str, tuple[tuple[str, ...], str]] = {
    "lost": (("lost", "unexpected"), "accepted and gone, or there and never accepted"),
    "unexplained duplicates": (("unexplained",), "a second success without an unknown attempt before it"),
    "over budget": (("over_budget", "gaps"), "more attempts than granted, or later than granted"),
    "early": (("early",), "a retry before it was due, or before Retry-After allowed it"),
    "bodies altered": (("altered",), "bytes that are not those the producer handed over"),
    "unrecorded requests": (("write_ahead", "fence"), "a request that the ledger did not know of before it left"),
    "false successes": (("untrue",), "delivered, says the ledger; the receiver says otherwise"),
    "unfinished": (("overdue", "terminal", "dead_letter", "fold"), "work that did not end, or ended twice"),
}
"""What each line of the cross-check counts, by the checker's rules."""


@dataclass(frozen=True)
class CrossCheck:
    """The verdict on a folder: its ledger, the receiver's log, the producer's log."""

    lines: tuple[Line, ...]
    problems: tuple[str, ...]
    requests: int
    attempts: int
    repeated: int
    """Effects that the receiver had already had."""
    unknown: int

    @property
    def ok(self) -> bool:
        return not self.problems

    @classmethod
    def of(cls, folder: Path) -> CrossCheck:
        """Join the three accounts. Nothing is taken from the demo's own memory."""
        requests = read_log(folder / RECEIVER)
        report = check(folder / PRODUCER, folder / LEDGER, requests)
        found = report.summary()
        lines = [Line(name, sum(found[rule] for rule in rules), meaning) for name, (rules, meaning) in PROMISES.items()]
        bad = [request for request in requests if request["signature"] != "ok"]
        lines.append(Line("bad signatures", len(bad), "a request whose signature does not verify"))
        with Redrive(f"sqlite:///{folder / LEDGER}", environment=ENVIRONMENT) as app:
            verified = app.operations.verify()
        lines.append(Line("redrive verify", verified.total, "a state that is not what its entries add up to"))
        problems = [
            *map(str, report.problems),
            *(f"signature: {request['delivery']}: {request['signature']}" for request in bad),
            *(f"verify: {problem.delivery}: {problem.rule}: {problem.message}" for problem in verified.problems),
        ]
        effects = Counter(request["delivery"] for request in requests if request["effect"])
        repeated = sum(count - 1 for count in effects.values())
        return cls(
            tuple(lines), tuple(problems), len(requests), report.counts["attempts"], repeated, report.counts["unknown"]
        )
