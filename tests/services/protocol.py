"""PostgreSQL's protocol 3, as far as it tells which SQL a client's message runs and which answer is its.

Source: PostgreSQL's manual, "Message Flow" and "Message Formats".
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from dataclasses import dataclass, field
from typing import Literal

# What stands where a startup message has its version.
CANCEL, TLS, GSS = 80_877_102, 80_877_103, 80_877_104
ENDS_WITH_READY = (b"Q", b"S", b"F")
FLUSH = b"H"


async def read_message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    """Type byte and body. `IncompleteReadError` or `OSError` when the connection has ended."""
    kind, size = struct.unpack("!cI", await reader.readexactly(5))
    return kind, await reader.readexactly(size - 4)


async def read_startup(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    """Version or request code, and the whole message. Errors as of :func:`read_message`."""
    head = await reader.readexactly(8)
    size, code = struct.unpack("!II", head)
    return code, head + await reader.readexactly(size - 8)


def message(kind: bytes, body: bytes) -> bytes:
    """The bytes of a message."""
    return struct.pack("!cI", kind, len(body) + 4) + body


@dataclass(eq=False)
class Awaited:
    """An answer that the server owes: the completion of an Execute ("E"), or ReadyForQuery ("Z")."""

    kind: Literal["E", "Z"]
    came: asyncio.Event = field(default_factory=asyncio.Event)


@dataclass(eq=False)
class Conversation:
    """What one client and its server have said to each other."""

    statements: dict[bytes, str] = field(default_factory=dict)
    portals: dict[bytes, str] = field(default_factory=dict)
    awaited: deque[Awaited] = field(default_factory=deque)

    def runs(self, kind: bytes, body: bytes) -> str | None:
        """Take note of a client's message; the SQL that it runs, if it runs any."""
        if kind == b"P":
            name, text, _ = body.split(b"\0", 2)
            self.statements[name] = text.decode(errors="replace")
        elif kind == b"B":
            portal, name, _ = body.split(b"\0", 2)
            self.portals[portal] = self.statements.get(name, "")
        elif kind == b"C":
            named = self.statements if body[:1] == b"S" else self.portals
            named.pop(body[1:].rstrip(b"\0"), None)
        elif kind == b"E":
            return self.portals.get(body.split(b"\0", 1)[0], "")
        elif kind == b"Q":
            return body.rstrip(b"\0").decode(errors="replace")
        return None

    def owes(self, kind: bytes) -> None:
        """The server will have to answer this client's message."""
        if kind == b"E":
            self.awaited.append(Awaited("E"))
        elif kind in ENDS_WITH_READY:
            self.awaited.append(Awaited("Z"))

    def last_owed(self) -> Awaited:
        """The answer to the client's latest message that gets one; one that came if all are answered."""
        if self.awaited:
            return self.awaited[-1]
        answered = Awaited("E")
        answered.came.set()
        return answered

    def answers(self, kind: bytes) -> None:
        """Take note of a server's message."""
        if kind == b"Z":
            # After an error the server skips what was sent before the Sync.
            while self.awaited:
                done = self.awaited.popleft()
                done.came.set()
                if done.kind == "Z":
                    break
        elif self.awaited and self.awaited[0].kind == "E" and kind in (b"C", b"I", b"s"):
            self.awaited.popleft().came.set()
        elif kind == b"E":
            # None of the Executes before the Sync gets another answer; they leave with the ReadyForQuery.
            for each in self.awaited:
                if each.kind == "Z":
                    break
                each.came.set()
        elif kind in (b"G", b"W") and self.awaited:
            # The server wants data from the client: nothing more comes until it has them.
            self.awaited[0].came.set()
