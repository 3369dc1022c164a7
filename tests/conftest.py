"""What every test gets."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    # Imported where a test asks for a server: the other tests need neither a driver nor a service.
    from tests.services.postgres import PostgresServer


@pytest.fixture(autouse=True)
def logging_left_as_it_was() -> Iterator[None]:
    """The command line sets the ``redrive`` logger up for its process; here many commands share one."""
    log = logging.getLogger("redrive")
    level, propagate, handlers = log.level, log.propagate, log.handlers[:]
    yield
    log.setLevel(level)
    log.propagate = propagate
    log.handlers[:] = handlers


@pytest.fixture(scope="session")
def postgres() -> Iterator[PostgresServer]:
    """A private PostgreSQL for the whole run, with fsync off; started by the first test that asks for it.

    Tests share it: none may restart it, change its settings or end sessions other than their own.
    """
    from tests.services.postgres import PostgresServer

    with PostgresServer.start(durable=False) as server:
        yield server


@pytest.fixture
def database(postgres: PostgresServer) -> Iterator[str]:
    """The URL of an empty database of this test's own."""
    name = postgres.create_database()
    yield postgres.url(name)
    postgres.drop_database(name)


@pytest.fixture
def own_postgres() -> Iterator[PostgresServer]:
    """A durable PostgreSQL of this test's own, to restart, crash and configure at will."""
    from tests.services.postgres import PostgresServer

    with PostgresServer.start(shared_buffers="64MB") as server:
        yield server
