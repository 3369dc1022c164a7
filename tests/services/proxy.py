"""A TCP proxy that understands enough of PostgreSQL's protocol to fail at a chosen statement.

TLS and GSS are refused, so that everything passes in the clear. One thread with an event loop does the
forwarding; the tests give it orders from theirs.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal, Self, TypeVar
from urllib.parse import urlsplit, urlunsplit

from tests.services.protocol import (
    CANCEL,
    ENDS_WITH_READY,
    FLUSH,
    GSS,
    TLS,
    Awaited,
    Conversation,
    message,
    read_message,
    read_startup,
)

ANSWER_TIMEOUT_S = 30.0
CONTROL_TIMEOUT_S = 10.0
Predicate = str | Callable[[str], bool]
T = TypeVar("T")


@dataclass
class Counters:
    """What has happened so far."""

    connections: int = 0
    refused: int = 0
    cut_before: int = 0
    cut_after: int = 0
    cut_all: int = 0
    # Cut after forwarding, but the server closed the connection or was silent: nobody knows if it was applied.
    unanswered: int = 0


class Fault:
    """A cut that was asked for. It happens at the ``nth`` to ``nth + times - 1``-th match, over all connections."""

    def __init__(self, when: Literal["before", "after"], what: Predicate, nth: int, times: int) -> None:
        self.when = when
        self.what = what
        self.first = nth
        self.last = nth + times - 1
        self.matches = 0
        self.fired = 0
        self._done = threading.Event()

    def matches_sql(self, sql: str) -> bool:
        """Whether a statement counts."""
        return self.what in sql if isinstance(self.what, str) else self.what(sql)

    def take(self, sql: str) -> bool:
        """Count a statement that runs now; whether it is one to cut at."""
        if not self.matches_sql(sql):
            return False
        self.matches += 1
        return self.first <= self.matches <= self.last

    def happened(self) -> None:
        """A connection has been cut."""
        self.fired += 1
        if self.fired > self.last - self.first:
            self._done.set()

    @property
    def done(self) -> bool:
        """Whether it has happened as often as was asked."""
        return self._done.is_set()

    def wait(self, timeout_s: float = 10.0) -> None:
        """Return when it is done; `AssertionError` if that takes longer."""
        if not self._done.wait(timeout_s):
            said = f"{self.matches} matches, {self.fired} cuts"
            raise AssertionError(f"no cut {self.when} {self.what!r} within {timeout_s:g} s: {said}")


@dataclass(eq=False)
class Link:
    """One client's connection and the server's for it."""

    client: asyncio.StreamWriter
    server: asyncio.StreamWriter | None = None
    pumps: list[asyncio.Task[None]] = field(default_factory=list)
    said: Conversation = field(default_factory=Conversation)
    # A cut after an answer: asked for from the statement on, awaited from what makes the server answer on.
    fault: Fault | None = None
    cut_at: Awaited | None = None
    server_left: bool = False

    def reset(self) -> None:
        """Close both connections at once; the client sees a reset, not an end."""
        sock = self.client.get_extra_info("socket")
        if sock is not None and not self.client.is_closing():
            with suppress(OSError):
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.end()

    def end(self) -> None:
        """Close both connections and stop forwarding between them."""
        for writer in (self.client, self.server):
            if writer is not None:
                writer.transport.abort()
        for pump in self.pumps:
            pump.cancel()


class Proxy:
    """Made by :meth:`start`. Every method may be called from any thread and has taken effect on return."""

    def __init__(self, server_url: str) -> None:
        parts = urlsplit(server_url)
        if parts.hostname is None or parts.port is None:
            raise ValueError(f"{server_url} names no host and port")
        self._target = (parts.hostname, parts.port)
        self.port = 0
        self.counters = Counters()
        self._executions: Counter[str] = Counter()
        self._faults: list[Fault] = []
        self._links: set[Link] = set()
        self._handlers: set[asyncio.Task[None]] = set()
        self._refusing = False
        self._closed = False
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="postgres-proxy", daemon=True)

    @classmethod
    def start(cls, server_url: str) -> Self:
        """Listen on a loopback port, in front of the server that this URL names."""
        proxy = cls(server_url)
        proxy._thread.start()
        proxy._do(proxy._listen())
        return proxy

    def _do(self, act: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(act, self._loop).result(CONTROL_TIMEOUT_S)

    async def _listen(self) -> None:
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._listener = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._listener.sockets[0].getsockname()[1]

    def url_of(self, server_url: str) -> str:
        """The same URL, through the proxy."""
        parts = urlsplit(server_url)
        user, at, _ = parts.netloc.rpartition("@")
        return urlunsplit(parts._replace(netloc=f"{user}{at}127.0.0.1:{self.port}"))

    def cut_after(self, what: Predicate, *, nth: int = 1, times: int = 1) -> Fault:
        """Let a statement reach the server, wait for its answer, swallow it and reset the connection.

        ``what`` is text that the SQL contains (case matters), or a function of the SQL. A statement is one that
        runs: a Query, or the Execute of a prepared one. Its answer is ReadyForQuery: an implicit transaction
        has committed by then. A client that only flushes (a pipeline without Sync) is cut when the statement
        itself is answered, and a COPY FROM STDIN when the server asks for the data. Nothing that the client
        sent before it is left unforwarded; replies that were on their way may be lost with it.
        """
        return self._do(self._add(Fault("after", what, nth, times)))

    def cut_before(self, what: Predicate, *, nth: int = 1, times: int = 1) -> Fault:
        """Reset the connection in place of forwarding a statement: it is certainly not applied."""
        return self._do(self._add(Fault("before", what, nth, times)))

    async def _add(self, fault: Fault) -> Fault:
        self._faults.append(fault)
        return fault

    def forget(self) -> None:
        """Drop every fault that was asked for and has not happened."""

        async def act() -> None:
            self._faults.clear()

        self._do(act())

    def refuse(self, on: bool) -> None:
        """Reset every new connection. Those that exist go on."""

        async def act() -> None:
            self._refusing = on

        self._do(act())

    def freeze(self, on: bool) -> None:
        """Accept connections and forward nothing, in either direction; nothing is lost once it is off."""

        async def act() -> None:
            if on:
                self._flowing.clear()
            else:
                self._flowing.set()

        self._do(act())

    def cut_all(self) -> int:
        """Reset every connection that exists; how many."""

        async def act() -> int:
            count = len(self._links)
            for link in self._links:
                link.reset()
            if self._handlers:
                await asyncio.wait(set(self._handlers), timeout=CONTROL_TIMEOUT_S)
            return count

        count = self._do(act())
        self.counters.cut_all += count
        return count

    def executions(self, what: Predicate = "") -> int:
        """How many statements that contain this text (or satisfy this function) clients have sent."""
        fault = Fault("before", what, 1, 1)

        async def act() -> int:
            return sum(count for sql, count in self._executions.items() if fault.matches_sql(sql))

        return self._do(act())

    def close(self) -> None:
        """Reset every connection and stop listening. May be called again."""
        if self._closed:
            return
        self._closed = True

        async def stop_listening() -> None:
            self._listener.close()

        self._do(stop_listening())
        self.cut_all()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(CONTROL_TIMEOUT_S)
        self._loop.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        link = Link(writer)
        task = asyncio.current_task()
        assert task is not None
        self._links.add(link)
        self._handlers.add(task)
        self.counters.connections += 1
        try:
            if self._refusing or self._listener.is_serving() is False:
                self.counters.refused += 1
                link.reset()
                return
            link.pumps.append(asyncio.create_task(self._upload(link, reader)))
            await asyncio.wait(link.pumps)
            for pump in list(link.pumps):
                with suppress(asyncio.CancelledError):
                    await pump
        finally:
            link.end()
            self._links.discard(link)
            self._handlers.discard(task)
            for each in (link.client, link.server):
                if each is not None:
                    with suppress(OSError):
                        await each.wait_closed()

    async def _connect(self, link: Link) -> asyncio.StreamWriter:
        reader, link.server = await asyncio.open_connection(*self._target)
        link.pumps.append(asyncio.create_task(self._download(link, reader)))
        return link.server

    async def _upload(self, link: Link, reader: asyncio.StreamReader) -> None:
        """From the client to the server, until either has gone or the link is cut."""
        try:
            server = await self._startup(link, reader)
            while True:
                kind, body = await read_message(reader)
                await self._flowing.wait()
                if self._strikes(link, link.said.runs(kind, body)):
                    return
                link.said.owes(kind)
                if link.fault is not None and kind in (*ENDS_WITH_READY, FLUSH):
                    link.cut_at = link.said.last_owed()
                server.write(message(kind, body))
                await server.drain()
                if link.cut_at is not None:
                    await self._cut_when_answered(link, link.cut_at)
                    return
        except (OSError, asyncio.IncompleteReadError):
            # The client has gone or the server cannot be reached. What the client said last still arrives.
            if link.server is not None:
                link.server.close()
                with suppress(OSError, TimeoutError):
                    await asyncio.wait_for(link.server.wait_closed(), CONTROL_TIMEOUT_S)
            link.reset()

    async def _startup(self, link: Link, reader: asyncio.StreamReader) -> asyncio.StreamWriter:
        while True:
            code, whole = await read_startup(reader)
            await self._flowing.wait()
            if code in (TLS, GSS):
                link.client.write(b"N")
                continue
            server = await self._connect(link)
            server.write(whole)
            await server.drain()
            if code == CANCEL:
                # The server says nothing and closes, which ends the other direction and this one with it.
                await reader.read()
            return server

    def _strikes(self, link: Link, sql: str | None) -> bool:
        """Whether the statement that is about to run has just cut the connection."""
        if sql is None:
            return False
        self._executions[sql] += 1
        if link.fault is not None:
            return False
        fault = next((each for each in self._faults if each.take(sql)), None)
        if fault is None:
            return False
        if fault.when == "after":
            link.fault = fault
            return False
        self.counters.cut_before += 1
        link.reset()
        fault.happened()
        return True

    async def _cut_when_answered(self, link: Link, answer: Awaited) -> None:
        try:
            await asyncio.wait_for(answer.came.wait(), ANSWER_TIMEOUT_S)
        except TimeoutError:
            self.counters.unanswered += 1
        self.counters.unanswered += link.server_left
        self.counters.cut_after += 1
        link.reset()
        if link.fault is not None:
            link.fault.happened()

    async def _download(self, link: Link, reader: asyncio.StreamReader) -> None:
        """From the server to the client, until either has gone or the link is cut."""
        try:
            while True:
                kind, body = await read_message(reader)
                await self._flowing.wait()
                link.said.answers(kind)
                if link.fault is None:
                    link.client.write(message(kind, body))
                    await link.client.drain()
        except (OSError, asyncio.IncompleteReadError):
            if link.cut_at is not None:
                link.server_left = not link.cut_at.came.is_set()
                link.cut_at.came.set()
                return
            # What the server said last still arrives; then the client sees the end of it.
            link.client.close()
            with suppress(OSError, TimeoutError):
                await asyncio.wait_for(link.client.wait_closed(), CONTROL_TIMEOUT_S)
            link.end()
