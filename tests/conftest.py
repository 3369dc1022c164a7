"""What every test gets."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def logging_left_as_it_was() -> Iterator[None]:
    """The command line sets the ``redrive`` logger up for its process; here many commands share one."""
    log = logging.getLogger("redrive")
    level, propagate, handlers = log.level, log.propagate, log.handlers[:]
    yield
    log.setLevel(level)
    log.propagate = propagate
    log.handlers[:] = handlers
