"""Every ledger there is, and a bench at each of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.contract.bench import Bench
from tests.contract.harness import Factory
from tests.contract.sqlite_subject import open_sqlite

LEDGERS: dict[str, Factory] = {"sqlite": open_sqlite}
"""Another ledger that must pass the conformance suite is one more entry."""


@pytest.fixture(params=sorted(LEDGERS))
def ledger(request: pytest.FixtureRequest) -> Factory:
    """A ledger's factory."""
    return LEDGERS[request.param]


@pytest.fixture
def bench(ledger: Factory, tmp_path: Path) -> Iterator[Bench]:
    """A process at a new, empty ledger whose time only the test moves."""
    made = Bench(ledger, tmp_path)
    yield made
    made.shut()
