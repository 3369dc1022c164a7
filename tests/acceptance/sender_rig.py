"""What the sender's acceptance tests share: endpoints, fake names, both event loops."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any

import pytest
import uvloop

from redrive.webhooks.observation import Failure, Fault, Observation, Phase, Response
from redrive.webhooks.sender import Endpoint, IPAddress, Proxy, Request, Sender, Timeouts, Tls

Run = Callable[[Coroutine[Any, Any, Any]], Any]
both_loops = pytest.mark.parametrize("run", [asyncio.run, uvloop.run], ids=["asyncio", "uvloop"])

BODY = b'{"a": "\\u001B", "b": 1.0}\n'
SHORT = Timeouts(dns=0.2, connect=0.2, tls=0.2, first_byte=0.2, total=0.4)
LATE_S = 1.0
"""How late a deadline may be seen on a busy machine before a test fails."""


def allow(address: IPAddress) -> str | None:
    return None


def only_loopback(address: IPAddress) -> str | None:
    return None if address.is_loopback else "not_loopback"


def no_loopback(address: IPAddress) -> str | None:
    return "loopback" if address.is_loopback else None


def endpoint(port: int, host: str = "127.0.0.1", **terms: Any) -> Endpoint:
    return Endpoint(terms.pop("scheme", "http"), host, port, guard=terms.pop("guard", allow), **terms)


def request(at: Endpoint, body: bytes = BODY, **more: Any) -> Request:
    headers = more.pop("headers", [(b"Content-Type", b"application/json"), (b"webhook-id", b"dlv_1")])
    return Request(at, more.pop("target", b"/hook?x=1"), headers, body, **more)


async def one(asked: Request, **terms: Any) -> Observation:
    """Send one request with a sender of its own, and see that it leaves nothing open."""
    sender = Sender(**terms)
    try:
        seen = await sender.send(asked)
    finally:
        await sender.close()
    assert sender.connections == 0
    return seen


class Names:
    """A resolver with its answers written down. An answer may be an error, or None for silence."""

    def __init__(self, **answers: list[str] | OSError | None) -> None:
        self._answers = {name.replace("_", "."): answer for name, answer in answers.items()}
        self.asked: list[str] = []

    async def resolve(self, host: str, port: int) -> list[str]:
        self.asked.append(host)
        answer = self._answers[host]
        if answer is None:
            await asyncio.Event().wait()
        if isinstance(answer, OSError):
            raise answer
        assert answer is not None
        return answer


def closed_port() -> int:
    """A loopback port on which nobody listens."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


__all__ = [
    "BODY", "LATE_S", "SHORT", "Endpoint", "Failure", "Fault", "Names", "Phase", "Proxy", "Request",
    "Response", "Run", "Sender", "Timeouts", "Tls", "allow", "both_loops", "closed_port", "endpoint",
    "no_loopback", "one", "only_loopback", "open_files", "request",
]  # fmt: skip
