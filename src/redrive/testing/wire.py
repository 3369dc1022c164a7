"""The oracle receiver's HTTP: small enough to be trusted, and strict enough that its evidence has one reading."""

from __future__ import annotations

import asyncio
import http
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping
from typing import Final

from redrive.testing.script import Answer

MAX_HEAD: Final = 65_536
MAX_BODY: Final = 64 * 1024 * 1024

Receive = Callable[[int, str, Mapping[str, str], bytes, Callable[[Answer], None]], None]
"""(microseconds UTC, request target, lower-case headers, body, how to answer)."""


class Connection(asyncio.Protocol):
    """HTTP/1.1 with Content-Length bodies, one request at a time; what else arrives is refused and says so."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._buffer = bytearray()
        self._first_us = 0
        self._busy = False
        self._transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if not self._buffer:
            self._first_us = time.time_ns() // 1000
        self._buffer += data
        self._next()

    def _next(self) -> None:
        if self._busy or not self._buffer:
            return None
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            if len(self._buffer) > MAX_HEAD:
                self._refuse(431)
            return None
        request_line, *fields = self._buffer[:end].decode("latin-1").split("\r\n")
        parts = request_line.split(" ")
        headers: dict[str, str] = {}
        for field in fields:
            name, colon, value = field.partition(":")
            # A header that two readers could understand in two ways would make the evidence worthless.
            if not colon or name != name.strip() or name.lower() in headers:
                return self._refuse(400)
            headers[name.lower()] = value.strip()
        length = headers.get("content-length", "0")
        if len(parts) != 3 or not (length.isascii() and length.isdecimal()):
            return self._refuse(400)
        if "transfer-encoding" in headers:
            return self._refuse(411)
        if int(length) > MAX_BODY:
            return self._refuse(413)
        stop = end + 4 + int(length)
        if len(self._buffer) < stop:
            return None
        body = bytes(self._buffer[end + 4 : stop])
        del self._buffer[:stop]
        self._busy = True
        return self._receive(self._first_us, parts[1], headers, body, self._reply)

    def _reply(self, answer: Answer) -> None:
        if self._transport.is_closing():
            return
        if "rst" in answer:
            sock = self._transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self._transport.abort()
        elif "close" in answer:
            self._transport.close()
        elif "hang_s" in answer:
            asyncio.get_running_loop().call_later(answer["hang_s"], self._transport.close)
        elif answer.get("delay_s"):
            asyncio.get_running_loop().call_later(answer["delay_s"], self._respond, answer)
        else:
            self._respond(answer)

    def _respond(self, answer: Answer) -> None:
        if self._transport.is_closing():
            return
        self._transport.write(_response(answer["status"], answer.get("headers", {}), answer.get("body", "")))
        self._busy = False
        self._first_us = time.time_ns() // 1000
        self._next()

    def _refuse(self, status: int) -> None:
        print(f"receiver: a request was refused with {status} and is not in the log", file=sys.stderr, flush=True)
        self._transport.write(_response(status, {"Connection": "close"}, ""))
        self._transport.close()


def _response(status: int, headers: Mapping[str, str], body: str) -> bytes:
    try:
        phrase = http.HTTPStatus(status).phrase
    except ValueError:
        phrase = ""
    data = body.encode()
    lines = [f"HTTP/1.1 {status} {phrase}", *(f"{name}: {value}" for name, value in headers.items())]
    if status not in (204, 304):
        lines.append(f"Content-Length: {len(data)}")
    return "\r\n".join((*lines, "", "")).encode("latin-1") + (b"" if status in (204, 304) else data)
