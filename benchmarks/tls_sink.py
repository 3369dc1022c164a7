"""A webhook receiver over TLS, in a process of its own: uvloop, httptools, a certificate made for the run.

``sink.c`` speaks plain HTTP, so that nothing beside a C compiler is needed; this one costs several times as much for a
request, which is shown as its CPU time. Once started it prints its port, then answers each line of its input with the
number of POSTs so far, and leaves when the input ends.
"""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import os
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

from measure import process_cpu_s

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\nok"


class TlsSink:
    """The sink, running. ``ca_file`` is what its certificate is verified with."""

    def __init__(self, folder: Path) -> None:
        self.ca_file = folder.resolve() / "tls-sink.pem"
        key_file = folder / "tls-sink.key"
        make_certificate(self.ca_file, key_file)
        command = [sys.executable, __file__, str(self.ca_file), str(key_file)]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        if hasattr(os, "sched_setaffinity") and len(cores := os.sched_getaffinity(0)) > 1:
            os.sched_setaffinity(self._process.pid, {max(cores)})  # as the plain one
        self.port = self._number()

    def _number(self) -> int:
        assert self._process.stdout is not None
        return int(self._process.stdout.readline())

    def cpu_seconds(self) -> float:
        """User and system time of the sink so far."""
        return process_cpu_s(self._process.pid)

    def posts(self) -> int:
        """POSTs received so far."""
        assert self._process.stdin is not None
        self._process.stdin.write("posts\n")
        self._process.stdin.flush()
        return self._number()

    def stop(self) -> None:
        """End it: its standard input closes."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()


def make_certificate(certificate_file: Path, key_file: Path) -> None:
    """A self-signed certificate for 127.0.0.1, good for a day."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "redrive benchmark sink")])
    now = datetime.datetime.now(datetime.UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + datetime.timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False)
        .sign(key, hashes.SHA256())
    )
    certificate_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    key_file.touch(mode=0o600)
    key_file.write_bytes(
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.TraditionalOpenSSL, plain)
    )


class _Receiver(asyncio.Protocol):
    posts = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        import httptools

        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._transport: Any = transport
        self._parser = httptools.HttpRequestParser(self)
        self._answers = 0

    def data_received(self, data: bytes) -> None:
        self._answers = 0
        self._parser.feed_data(data)
        if self._answers:
            self._transport.write(ANSWER * self._answers)

    def on_message_complete(self) -> None:
        self._answers += 1
        if self._parser.get_method() == b"POST":
            _Receiver.posts += 1


async def _serve(certificate_file: str, key_file: str) -> None:
    loop = asyncio.get_running_loop()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate_file, key_file)
    server = await loop.create_server(_Receiver, "127.0.0.1", 0, ssl=context, backlog=1024)
    print(server.sockets[0].getsockname()[1], flush=True)
    while await asyncio.to_thread(sys.stdin.readline):
        print(_Receiver.posts, flush=True)
    os._exit(0)  # connections that a client keeps open need no farewell


if __name__ == "__main__":
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(sys.argv[1], sys.argv[2]))
