"""A raw-socket server whose every connection follows a script, and which keeps every byte it was sent.

It knows nothing of HTTP but where a request ends. A script is a list of steps; the n-th connection follows
the n-th script, later ones the last. When a script is done the connection is drained until the peer
closes it, so that :attr:`ScriptedServer.requests` counts what a sender wrote, not what a script read.
"""

from __future__ import annotations

import socket
import ssl
import struct
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

STEP_TIMEOUT_S = 10.0
OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"


class Gone(Exception):
    """The peer or a step has closed the connection: the script ends here."""


@dataclass
class Peer:
    """One accepted connection."""

    sock: socket.socket
    received: bytearray = field(default_factory=bytearray)
    read_to: int = 0
    closed: threading.Event = field(default_factory=threading.Event)
    is_open: bool = True

    def recv(self) -> None:
        try:
            data = self.sock.recv(65_536)
        except OSError:
            raise Gone from None
        if not data:
            raise Gone
        self.received += data

    def send(self, data: bytes) -> None:
        try:
            self.sock.sendall(data)
        except OSError:
            raise Gone from None

    def close(self) -> None:
        if self.is_open:
            self.is_open = False
            self.sock.close()
            self.closed.set()


class Step:
    def run(self, peer: Peer) -> None:
        raise NotImplementedError


class ReadRequest(Step):
    """Read one whole request."""

    def run(self, peer: Peer) -> None:
        while True:
            size = request_size(bytes(peer.received[peer.read_to :]))
            if size is not None:
                peer.read_to += size
                return
            peer.recv()


@dataclass
class ReadBytes(Step):
    """Read at least ``count`` bytes."""

    count: int

    def run(self, peer: Peer) -> None:
        while len(peer.received) < self.count:
            peer.recv()


@dataclass
class Send(Step):
    data: bytes

    def run(self, peer: Peer) -> None:
        peer.send(self.data)


@dataclass
class Drip(Step):
    """Send one byte every ``every_s`` seconds until the peer has gone."""

    data: bytes
    every_s: float
    stopped: threading.Event = field(default_factory=threading.Event)

    def run(self, peer: Peer) -> None:
        for code in self.data:
            peer.send(bytes((code,)))
            self.stopped.wait(self.every_s)


@dataclass
class Flood(Step):
    """Send ``data`` again and again until the peer has gone (at most ``times``)."""

    data: bytes
    times: int = 100_000

    def run(self, peer: Peer) -> None:
        for _ in range(self.times):
            peer.send(self.data)
        raise AssertionError("the peer swallowed an endless response")


@dataclass
class Wait(Step):
    """Wait until ``event`` is set."""

    event: threading.Event

    def run(self, peer: Peer) -> None:
        if not self.event.wait(STEP_TIMEOUT_S):
            raise AssertionError("the event of a script was never set")


class Deaf(Step):
    """Read nothing until the server is closed."""

    def __init__(self) -> None:
        self.over = threading.Event()

    def run(self, peer: Peer) -> None:
        self.over.wait(STEP_TIMEOUT_S)


class HalfClose(Step):
    """FIN for our direction; go on reading."""

    def run(self, peer: Peer) -> None:
        peer.sock.shutdown(socket.SHUT_WR)


class Fin(Step):
    """Close in order. Unread bytes would make it a reset, so they are read first where there are any."""

    def run(self, peer: Peer) -> None:
        peer.close()
        raise Gone


class Rst(Step):
    """Close with a reset (SO_LINGER 0)."""

    def run(self, peer: Peer) -> None:
        peer.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        # Under TLS the wrapper owns the descriptor: closing it is what resets.
        peer.close()
        raise Gone


class Tunnel(Step):
    """Obey the CONNECT that was just read: connect, say 200, and pump both ways."""

    def run(self, peer: Peer) -> None:
        target = bytes(peer.received[: peer.read_to]).split(b" ")[1].decode()
        host, _, port = target.rpartition(":")
        with socket.create_connection((host.strip("[]"), int(port)), timeout=STEP_TIMEOUT_S) as far:
            peer.send(b"HTTP/1.1 200 Connection established\r\nVia: 1.1 test\r\n\r\n")
            back = threading.Thread(target=_pump, args=(far, peer.sock))
            back.start()
            _pump(peer.sock, far)
            back.join(STEP_TIMEOUT_S)
        raise Gone


def _pump(source: socket.socket, target: socket.socket) -> None:
    try:
        while data := source.recv(65_536):
            target.sendall(data)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


Script = Sequence[Step]


class ScriptedServer:
    """Listens on a loopback port of its own for as long as the ``with`` block lasts."""

    def __init__(self, *scripts: Script, tls: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> None:
        self._scripts = scripts
        self._tls = tls
        self._host = host
        self.peers: list[Peer] = []
        self.errors: list[BaseException] = []
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> ScriptedServer:
        family = socket.AF_INET6 if ":" in self._host else socket.AF_INET
        self._listener = socket.socket(family, socket.SOCK_STREAM)
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._listener.bind((self._host, 0))
        self._listener.listen(1024)
        self.port: int = self._listener.getsockname()[1]
        self._acceptor = threading.Thread(target=self._accept)
        self._acceptor.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits in accept
        self._acceptor.join(STEP_TIMEOUT_S)
        self._listener.close()
        for script in self._scripts:
            for step in script:
                if isinstance(step, Deaf):
                    step.over.set()
                elif isinstance(step, Drip):
                    step.stopped.set()
        for peer in list(self.peers):
            try:
                peer.sock.shutdown(socket.SHUT_RDWR)  # wakes a thread that waits in recv
            except OSError:
                pass
        for thread in self._threads:
            thread.join(STEP_TIMEOUT_S)
        for peer in self.peers:
            peer.close()
        if kind is None and self.errors:
            raise self.errors[0]

    def _accept(self) -> None:
        while True:
            try:
                sock, _ = self._listener.accept()
            except OSError:
                return
            sock.settimeout(STEP_TIMEOUT_S)
            script = self._scripts[min(len(self.peers), len(self._scripts) - 1)]
            peer = Peer(sock)
            self.peers.append(peer)
            thread = threading.Thread(target=self._follow, args=(peer, script))
            self._threads.append(thread)
            thread.start()

    def _follow(self, peer: Peer, script: Script) -> None:
        try:
            if self._tls is not None:
                try:
                    peer.sock = self._tls.wrap_socket(peer.sock, server_side=True)
                except OSError:
                    raise Gone from None
            for step in script:
                step.run(peer)
            while True:
                peer.recv()
        except Gone:
            pass
        except BaseException as exc:
            self.errors.append(exc)
        finally:
            peer.close()

    # -- what was seen ---------------------------------------------------------------------------

    @property
    def connections(self) -> int:
        return len(self.peers)

    @property
    def requests(self) -> list[bytes]:
        """Every request, in order of connections; a partial one counts as what there is of it."""
        seen: list[bytes] = []
        for peer in self.peers:
            rest = bytes(peer.received)
            while rest:
                size = request_size(rest) or len(rest)
                seen.append(rest[:size])
                rest = rest[size:]
        return seen


def request_size(data: bytes) -> int | None:
    """The size of the first request in ``data``, or None while it is not whole."""
    end = data.find(b"\r\n\r\n")
    if end < 0:
        return None
    length = 0
    for line in data[:end].split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    size = end + 4 + length
    return size if len(data) >= size else None
