"""Shared by the crash tests: rigs on ledgers of their own, and one receiver for a module."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from tests.acceptance.crash.rig import Rig, receiver
from tests.acceptance.crash.scenario import Scenario

from redrive.testing.receiver import Receiver

MOST = 300
MakeRig = Callable[..., Rig]


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Receiver]:
    """A receiver with answers for many scenarios."""
    with receiver(tmp_path_factory.mktemp("oracle"), [f"/{n}" for n in range(MOST)]) as process:
        yield process


@pytest.fixture(scope="module")
def numbers() -> Iterator[int]:
    """A prefix for each scenario of the module."""
    return iter(range(MOST))


@pytest.fixture
def make_rig(tmp_path: Path, oracle: Receiver, numbers: Iterator[int]) -> Iterator[MakeRig]:
    """Makes rigs from a scenario's fields; their processes end with the test."""
    with ExitStack() as stack:

        def make(**fields: Any) -> Rig:
            number = next(numbers)
            return stack.enter_context(
                Rig(tmp_path / str(number), oracle, Scenario(oracle.port, f"/{number}", **fields))
            )

        yield make
