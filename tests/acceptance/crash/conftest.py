"""Shared by the crash tests: rigs on ledgers of their own, and one receiver for a module."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.crash.rig import Rig, receiver
from tests.acceptance.crash.scenario import Scenario
from tests.services.postgres import PostgresServer

from redrive.testing.receiver import Receiver

MOST = 300
MakeRig = Callable[..., Rig]
NewLedger = Callable[[], str]
POSTGRES_IN_FULL = [pytest.param("sqlite"), pytest.param("postgres", marks=pytest.mark.full)]
"""For a test whose clause another one shows on PostgreSQL too: ``parametrize("place", ..., indirect=True)``."""


def everywhere(cases: Sequence[tuple[Any, ...]], quick: Sequence[tuple[Any, ...]]) -> list[Any]:
    """(place, *case) for ``parametrize(..., indirect=["place"])``: all on SQLite, on PostgreSQL the quick ones.

    The others are for full runs.
    """
    return [
        pytest.param(place, *case, marks=() if place == "sqlite" or case in quick else pytest.mark.full)
        for place in ("sqlite", "postgres")
        for case in cases
    ]


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiver]:
    """A receiver with answers for many scenarios."""
    with receiver(tmp_path_factory.mktemp("oracle"), [f"/{n}" for n in range(MOST)]) as process:
        yield process


@pytest.fixture(scope="module")
def numbers() -> Iterator[int]:
    """A prefix for each scenario of the module."""
    return iter(range(MOST))


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest) -> Iterator[NewLedger]:
    """Where each new ledger is to be: '' for a file, or the URL of an empty database."""
    if request.param == "sqlite":
        yield lambda: ""
        return
    with databases(request.getfixturevalue("postgres")) as new:
        yield new


@contextmanager
def databases(server: PostgresServer) -> Iterator[NewLedger]:
    """Makes databases; they are dropped at the end."""
    names: list[str] = []

    def new() -> str:
        names.append(server.create_database())
        return server.url(names[-1])

    yield new
    for name in names:
        server.drop_database(name)


@pytest.fixture
def make_rig(tmp_path: Path, oracle: Receiver, numbers: Iterator[int], place: NewLedger) -> Iterator[MakeRig]:
    """Makes rigs from a scenario's fields; their processes end with the test."""
    with ExitStack() as stack:

        def make(**fields: Any) -> Rig:
            number = next(numbers)
            fields.setdefault("ledger", place())
            scenario = Scenario(oracle.port, f"/{number}", **fields)
            return stack.enter_context(Rig(tmp_path / str(number), oracle, scenario))

        yield make
