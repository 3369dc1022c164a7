"""Two servers that others wrote see exactly what was asked, and are understood."""

from __future__ import annotations

import asyncio
import gzip
from contextlib import asynccontextmanager

import pytest
import uvicorn
from aiohttp import web
from tests.acceptance.sender_rig import Response, Sender, both_loops, endpoint, request

BODIES = [
    b"",
    b"{}",
    b'{"a":"\\u001B","b":1.0,"c":"\xc3\xa9"}\n',
    bytes(range(256)),
    b"\r\n\r\nHTTP/1.1 200 OK\r\n\r\n",
    b"x" * 1_048_576,
]
HEADERS = [
    (b"Content-Type", b"application/json"),
    (b"X-Tab", b"a\tb"),
    (b"X-Twice", b"1"),
    (b"X-Twice", b"2"),
]
Seen = list[tuple[str, list[tuple[bytes, bytes]], bytes]]


def answer(path: str, body: bytes) -> tuple[int, list[tuple[str, str]], list[bytes]]:
    """What both servers answer: a status, headers, and the pieces of a body."""
    if path == "/gzip":
        return 200, [("Content-Encoding", "gzip")], [gzip.compress(b"hello", mtime=0)]
    if path == "/redirect":
        return 302, [("Location", "/elsewhere")], [b""]
    if path == "/empty":
        return 204, [], []
    if path == "/chunks":
        return 200, [], [b"one", b"two", b"three"]
    return 200, [], [b"%d" % len(body)]


@asynccontextmanager
async def aiohttp_server(seen: Seen):  # type: ignore[no-untyped-def]
    async def handle(asked: web.Request) -> web.StreamResponse:
        body = await asked.read()
        seen.append((asked.raw_path, [(name.lower(), value) for name, value in asked.raw_headers], body))
        status, headers, pieces = answer(asked.path, body)
        if len(pieces) == 1:
            return web.Response(status=status, headers=headers, body=pieces[0])
        response = web.StreamResponse(status=status, headers=headers)
        await response.prepare(asked)
        for piece in pieces:
            await response.write(piece)
        await response.write_eof()
        return response

    app = web.Application(client_max_size=4_000_000)
    app.router.add_route("*", "/{tail:.*}", handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def uvicorn_server(seen: Seen):  # type: ignore[no-untyped-def]
    async def app(scope, receive, send):  # type: ignore[no-untyped-def]
        body = b""
        more = True
        while more:
            message = await receive()
            body += message.get("body", b"")
            more = message.get("more_body", False)
        target = scope["raw_path"].decode() + ("?" + scope["query_string"].decode() if scope["query_string"] else "")
        seen.append((target, list(scope["headers"]), body))
        status, headers, pieces = answer(scope["path"], body)
        raw = [(name.lower().encode(), value.encode()) for name, value in headers]
        if len(pieces) == 1:
            raw.append((b"content-length", b"%d" % len(pieces[0])))
        await send({"type": "http.response.start", "status": status, "headers": raw})
        for piece in pieces:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b""})

    config = uvicorn.Config(app, host="127.0.0.1", port=0, lifespan="off", log_level="critical")
    server = uvicorn.Server(config)
    server.install_signal_handlers = lambda: None  # type: ignore[attr-defined]
    task = asyncio.create_task(server._serve())
    try:
        for _ in range(1000):
            if server.started:
                break
            await asyncio.sleep(0.005)
        yield server.servers[0].sockets[0].getsockname()[1]
    finally:
        server.should_exit = True
        await task


@both_loops
@pytest.mark.parametrize("serve", [aiohttp_server, uvicorn_server])
def test_each_server_sees_exactly_what_was_asked(run, serve):
    async def main() -> None:
        seen: Seen = []
        async with serve(seen) as port:
            sender = Sender()
            at = endpoint(port)
            for body in BODIES:
                response = await sender.send(request(at, body, headers=HEADERS, target=b"/a%20b?x=%2F&y"))
                assert isinstance(response, Response)
                assert (response.status, response.body, response.truncated) == (200, b"%d" % len(body), False)
            assert sender.connections == 1  # both keep the connection, and so do we
            await sender.close()
        assert len(seen) == len(BODIES)
        for body, (target, headers, got) in zip(BODIES, seen, strict=True):
            assert target == "/a%20b?x=%2F&y"
            assert got == body
            assert headers == [
                (b"host", b"127.0.0.1:%d" % port),
                (b"accept-encoding", b"identity"),
                (b"content-type", b"application/json"),
                (b"x-tab", b"a\tb"),
                (b"x-twice", b"1"),
                (b"x-twice", b"2"),
                (b"user-agent", b"redrive"),
                (b"content-length", b"%d" % len(body)),
            ]

    run(main())


@both_loops
@pytest.mark.parametrize("serve", [aiohttp_server, uvicorn_server])
@pytest.mark.parametrize(
    ("path", "status", "body"),
    [
        (b"/gzip", 200, gzip.compress(b"hello", mtime=0)),
        (b"/redirect", 302, b""),
        (b"/empty", 204, b""),
        (b"/chunks", 200, b"onetwothree"),
    ],
)
def test_each_server_is_understood_and_nothing_is_followed_or_decoded(run, serve, path, status, body):
    async def main() -> None:
        seen: Seen = []
        async with serve(seen) as port:
            sender = Sender()
            for _ in range(3):
                response = await sender.send(request(endpoint(port), target=path))
                assert isinstance(response, Response)
                assert (response.status, response.body, response.truncated) == (status, body, False)
            assert sender.connections == 1
            await sender.close()
        assert [target for target, _, _ in seen] == [path.decode()] * 3

    run(main())
