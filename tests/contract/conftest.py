"""Every ledger there is, and a bench at each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.contract.bench import Bench
from tests.contract.harness import Factory
from tests.contract.sqlite_subject import open_sqlite

LEDGERS: dict[str, Callable[[pytest.FixtureRequest], Factory]] = {
    "sqlite": lambda request: open_sqlite,
    "postgres": lambda request: request.getfixturevalue("postgres_ledger"),
    "pgbouncer": lambda request: request.getfixturevalue("pooled_ledger"),
}
"""Another ledger that must pass the conformance suite is one more entry."""


@pytest.fixture(scope="session")
def postgres_ledger(request: pytest.FixtureRequest) -> Iterator[Factory]:
    """PostgreSQL, without a pooler; a schema of one database for each test."""
    from tests.contract.postgres_subject import factory

    server = request.getfixturevalue("postgres")
    name = server.create_database()
    yield factory(server.url(name, notify="off"))
    server.drop_database(name)


@pytest.fixture(scope="session")
def pooled_ledger(request: pytest.FixtureRequest) -> Iterator[Factory]:
    """PostgreSQL by polling alone, through pgbouncer in transaction mode."""
    from tests.contract.postgres_subject import factory
    from tests.services.pgbouncer import PgBouncer

    server = request.getfixturevalue("postgres")
    name = server.create_database()
    with PgBouncer.start(server) as pooler:
        yield factory(pooler.url(name, pooled="on", notify="off"))
    server.drop_database(name)


@pytest.fixture(params=sorted(LEDGERS))
def ledger(request: pytest.FixtureRequest) -> Factory:
    """A ledger's factory."""
    return LEDGERS[request.param](request)


@pytest.fixture
def bench(ledger: Factory, tmp_path: Path) -> Iterator[Bench]:
    """A process at a new, empty ledger whose time only the test moves."""
    made = Bench(ledger, tmp_path)
    yield made
    made.shut()
