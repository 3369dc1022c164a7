"""The PostgreSQL comparisons: what is measured together, in turn, and what each named benchmark makes of it.

Benchmarks that need the same figure share its runs: ours and every peer run in turn (A B C A B C ...), each in a fresh
database of one private, durable server.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from statistics import median
from typing import Any

from common import Figures, Sink

Medians = dict[str, dict[str, Any]]
"""Of each member of a group, the median of each of its figures."""


@dataclass(frozen=True, slots=True)
class Member:
    """One side: ours, or a peer. ``runs`` 0: as many as are asked for."""

    key: str
    peer: str | None
    mode: str
    count: int
    quick: int
    runs: int = 0

    @property
    def title(self) -> str:
        if self.peer is None:
            return f"redrive, {self.mode}"
        import peers

        return f"{peers.PEERS[self.peer].title}, {self.mode}"

    def size(self, quick: bool) -> int:
        """How many deliveries."""
        return self.quick if quick else self.count


def _members(mode: str, count: int, quick: int, *keys: str) -> list[Member]:
    return [Member(key, None if key == "ours" else key, mode, count, quick) for key in keys]


GROUPS: dict[str, list[Member]] = {
    "drain": [
        *_members("drain", 100_000, 5_000, "ours", "pgqueuer", "graphile", "pgboss"),
        Member("ours_2", None, "drain_2", 100_000, 5_000),
        # Enough to tell its rate, which is a hundredth of the others'.
        Member("procrastinate", "procrastinate", "drain", 2_000, 200),
    ],
    "webhook": [
        *_members("webhook", 10_000, 1_000, "ours", "pgqueuer", "graphile"),
        Member("tls", None, "webhook_tls", 10_000, 1_000),
        Member("large", None, "webhook", 100_000, 5_000, runs=1),
    ],
    "enqueue": [
        *_members("enqueue", 100_000, 10_000, "ours", "pgqueuer", "graphile"),
        Member("single", None, "enqueue_single", 50_000, 5_000),
    ],
    "pickup": _members("pickup", 200, 40, "ours", "pgqueuer", "procrastinate", "graphile", "pgboss"),
}


@dataclass(frozen=True, slots=True)
class Comparison:
    """One named benchmark. ``bar`` decides the exit status, ``goal`` is only reported; either may be absent."""

    name: str
    group: str
    against: tuple[str, ...]
    """Members of the group; of several the best counts."""
    unit: str
    bar: str = ""
    met: Callable[[float, dict[str, Any], Sequence[dict[str, Any]]], bool] | None = None
    """From the ratio, our figures and theirs."""
    goal: str = ""
    goal_met: Callable[[float], bool] | None = None
    ours: str = "ours"
    beside: tuple[str, ...] = ()
    """Members that are printed for information."""
    faster_is_less: bool = False


def _pickup_met(ratio: float, ours: dict[str, Any], theirs: Sequence[dict[str, Any]]) -> bool:
    best = min(float(one["p99"]) for one in theirs)
    return bool(ours["value"] <= 2.0 and ours["p99"] <= best and ours["closed_p99"] < 10.0)


def _at_least(least: float) -> Callable[[float, dict[str, Any], Sequence[dict[str, Any]]], bool]:
    return lambda ratio, ours, theirs: ratio >= least


COMPARISONS = (
    Comparison(
        "postgres_drain_pgqueuer", "drain", ("pgqueuer",), "jobs/s", "ratio >= 2.5", _at_least(2.5), beside=("pgboss",)
    ),
    Comparison(
        "postgres_drain_graphile",
        "drain",
        ("graphile",),
        "jobs/s",
        goal="ratio >= 1",
        goal_met=lambda ratio: ratio >= 1,
        beside=("procrastinate",),
    ),
    Comparison(
        "postgres_drain_2_processes", "drain", ("ours",), "jobs/s", "ratio >= 1.2", _at_least(1.2), ours="ours_2"
    ),
    Comparison(
        "webhook_pgqueuer",
        "webhook",
        ("pgqueuer",),
        "deliveries/s",
        "ratio >= 4",
        _at_least(4),
        beside=("tls", "large"),
    ),
    Comparison(
        "webhook_graphile",
        "webhook",
        ("graphile",),
        "deliveries/s",
        goal="ratio >= 3",
        goal_met=lambda ratio: ratio >= 3,
    ),
    Comparison(
        "postgres_enqueue_pgqueuer",
        "enqueue",
        ("pgqueuer",),
        "jobs/s",
        "ratio >= 1",
        _at_least(1),
        "ratio >= 2",
        lambda ratio: ratio >= 2,
        beside=("single", "graphile"),
    ),
    Comparison(
        "postgres_pickup",
        "pickup",
        ("pgqueuer", "procrastinate", "graphile", "pgboss"),
        "ms, p50",
        "p50 <= 2 ms, p99 <= best peer's, closed p99 < 10 ms",
        _pickup_met,
        faster_is_less=True,
    ),
)
NAMES = tuple(one.name for one in COMPARISONS)


@dataclass(slots=True)
class Suite:
    """Measures comparisons in one scratch folder, on one server, with sinks that start when they are needed."""

    arguments: argparse.Namespace
    folder: Path
    _stack: ExitStack = field(default_factory=ExitStack)
    _sinks: dict[bool, Any] = field(default_factory=dict)

    def measure(self, names: Sequence[str]) -> dict[str, dict[str, Any]]:
        """The records of the named comparisons. Raises ``SystemExit`` that says what is missing, or what failed."""
        from peers import PeerFailed
        from peers.setup import PeersMissing, prepare
        from postgres_server import benchmark_server
        from tests.services.needs import Missing

        chosen = [one for one in COMPARISONS if one.name in names]
        results: dict[str, dict[str, Any]] = {}
        with self._stack:
            try:
                prepare()
                url = self._stack.enter_context(benchmark_server(self.folder)).url()
                for group, members in GROUPS.items():
                    mine = [one for one in chosen if one.group == group]
                    wanted = {key for one in mine for key in (one.ours, *one.against, *one.beside)}
                    if wanted:
                        runs = self._measure_group(group, [m for m in members if m.key in wanted], url)
                        results |= {one.name: record(one, members, runs, self.arguments.quick) for one in mine}
            except (Missing, PeersMissing, PeerFailed) as error:
                raise SystemExit(str(error)) from None
        return results

    def _measure_group(self, group: str, members: Sequence[Member], url: str) -> dict[str, list[Figures]]:
        runs: dict[str, list[Figures]] = {member.key: [] for member in members}
        for number in range(self.arguments.runs):
            for member in members:
                if member.runs and number >= member.runs:
                    continue
                runs[member.key].append(self._run(member, url))
            told = ", ".join(f"{key} {found[-1]['value']:,.6g}" for key, found in runs.items())
            print(f"  {group} {number + 1}/{self.arguments.runs}: {told}", file=sys.stderr, flush=True)
        return runs

    def _run(self, member: Member, url: str) -> Figures:
        import peers
        import postgres_ours

        arguments = self.arguments
        count = member.size(arguments.quick)
        sink = self._sink(member.mode == "webhook_tls") if member.mode.startswith("webhook") else None
        if member.peer is None:
            return postgres_ours.run(member.mode, url, count, arguments.slots, sink, check=arguments.check)
        return peers.run(member.peer, member.mode, url, count, sink_port=sink.port if sink is not None else 0)

    def _sink(self, tls: bool) -> Any:
        if tls not in self._sinks:
            from tls_sink import TlsSink

            sink = TlsSink(self.folder) if tls else Sink(self.folder)
            self._stack.callback(sink.stop)
            self._sinks[tls] = sink
        return self._sinks[tls]


def _median(runs: Sequence[Figures]) -> dict[str, Any]:
    return {
        key: median(run[key] for run in runs) if isinstance(value, int | float) else value
        for key, value in runs[0].items()
    }


def record(
    one: Comparison, members: Sequence[Member], runs: dict[str, list[Figures]], quick: bool = False
) -> dict[str, Any]:
    """What a comparison came to. Ratios are of medians; above 1 ours is better."""
    by_key = {member.key: member for member in members}
    medians: Medians = {key: _median(found) for key, found in runs.items()}
    ours = medians[one.ours]
    choose = min if one.faster_is_less else max
    best = choose(one.against, key=lambda key: float(medians[key]["value"]))
    theirs = medians[best]
    ratio = theirs["value"] / ours["value"] if one.faster_is_less else ours["value"] / theirs["value"]
    result: dict[str, Any] = {
        "ours": ours["value"],
        "peer": theirs["value"],
        "peer_name": by_key[best].title,
        "ratio": ratio,
        "unit": one.unit,
        "slots": ours["slots"],
        "peer_slots": theirs["slots"],
        "bar": one.bar,
        "met": None if one.met is None else one.met(ratio, ours, [medians[key] for key in one.against]),
        "goal": one.goal,
        "goal_met": None if one.goal_met is None else one.goal_met(ratio),
        "count": by_key[one.ours].size(quick),
        "peer_count": by_key[best].size(quick),
        "runs": {"ours": [run["value"] for run in runs[one.ours]], "peer": [run["value"] for run in runs[best]]},
        "all": {
            key: {"is": by_key[key].title, "count": by_key[key].size(quick), **medians[key]}
            for key in dict.fromkeys((one.ours, *one.against, *one.beside))
        },
    }
    for key, value in ours.items():
        if key not in ("value", "slots", "enqueue"):
            result[key] = value
            if key in theirs:
                result[f"peer_{key}"] = theirs[key]
    return result


def about() -> dict[str, str]:
    """The versions that the figures belong to."""
    from peers.setup import prepare
    from tests.services.needs import required

    server = subprocess.run(
        [required("PostgreSQL") / "postgres", "--version"], capture_output=True, text=True, check=True
    )
    names = ("psycopg", "pgqueuer", "procrastinate", "asyncpg")
    return {
        "postgresql": server.stdout.split()[2],
        **{name: version(name) for name in names},
        **prepare().versions(),
    }
