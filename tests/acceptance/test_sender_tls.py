"""TLS: who is believed, who is not, and that a refused handshake is certainly unsent."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import os
import ssl
import threading
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from tests.acceptance.scripted_server import (
    OK,
    Deaf,
    Fin,
    ReadRequest,
    Rst,
    ScriptedServer,
    Send,
    Tunnel,
    Wait,
)
from tests.acceptance.sender_rig import (
    LATE_S,
    SHORT,
    Failure,
    Fault,
    Names,
    Phase,
    Proxy,
    Response,
    Sender,
    Timeouts,
    Tls,
    both_loops,
    endpoint,
    one,
    open_files,
    request,
)

SERVE = [ReadRequest(), Send(OK)]
DAY = datetime.timedelta(days=1)


@dataclass
class Pair:
    """A certificate with its key, as files."""

    cert: x509.Certificate
    key: ec.EllipticCurvePrivateKey
    cert_file: str
    key_file: str


class Authority:
    def __init__(self, folder: Path, name: str) -> None:
        self._folder = folder
        self.own = self._issue(name, [], None, ca=True)
        self.file = self.own.cert_file

    def issue(self, name: str, *, host: str, expired: bool = False) -> Pair:
        try:
            names: list[x509.GeneralName] = [x509.IPAddress(ipaddress.ip_address(host))]
        except ValueError:
            names = [x509.DNSName(host)]
        return self._issue(name, names, self.own, expired=expired)

    def _issue(
        self,
        name: str,
        names: list[x509.GeneralName],
        issuer: Pair | None,
        *,
        ca: bool = False,
        expired: bool = False,
    ) -> Pair:
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = datetime.datetime.now(datetime.UTC)
        signer = key if issuer is None else issuer.key
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(subject if issuer is None else issuer.cert.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - 10 * DAY)
            .not_valid_after(now - DAY if expired else now + DAY)
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
            .add_extension(x509.KeyUsage(True, False, False, False, False, ca, ca, False, False), critical=True)
        )
        if names:
            builder = builder.add_extension(x509.SubjectAlternativeName(names), critical=False)
        if not ca:
            usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH])
            builder = builder.add_extension(usage, critical=False)
        cert = builder.sign(signer, hashes.SHA256())
        cert_file, key_file = self._folder / f"{name}.pem", self._folder / f"{name}.key"
        cert_file.write_bytes(cert.public_bytes(serialization.Encoding.PEM))
        key_file.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return Pair(cert, key, str(cert_file), str(key_file))


class Keys:
    """Everything that the tests need, made once."""

    def __init__(self, folder: Path) -> None:
        self.ca = Authority(folder, "ca")
        self.other_ca = Authority(folder, "other-ca")
        self.good = self.ca.issue("good", host="a.example")
        self.by_ip = self.ca.issue("by-ip", host="127.0.0.1")
        self.wrong_host = self.ca.issue("wrong-host", host="b.example")
        self.expired = self.ca.issue("expired", host="a.example", expired=True)
        self.client = self.ca.issue("client", host="client.example")
        self.stranger = self.other_ca.issue("stranger", host="client.example")


@pytest.fixture(scope="module")
def keys(tmp_path_factory):
    return Keys(tmp_path_factory.mktemp("keys"))


def serving(pair: Pair, *, clients: str | None = None, tls12: bool = False) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pair.cert_file, pair.key_file)
    context.set_alpn_protocols(["h2", "http/1.1"])
    if clients is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(clients)
    if tls12:
        context.maximum_version = ssl.TLSVersion.TLSv1_2
    return context


NAMES = {"a_example": ["127.0.0.1"]}


def secure(port: int, host: str = "a.example", **terms):  # type: ignore[no-untyped-def]
    return endpoint(port, host, scheme="https", **terms)


@both_loops
@pytest.mark.parametrize("tls12", [True, False])
def test_a_known_authority_and_the_right_name_are_believed(run, keys, tls12):
    async def main() -> None:
        sender = Sender(resolver=Names(**NAMES))
        for number in range(5):
            at = secure(server.port, tls=Tls(ca_file=keys.ca.file))
            seen = await sender.send(request(at, b"%d" % number))
            assert seen == Response(200, ((b"content-length", b"2"),), b"ok")
        await sender.close()

    with ScriptedServer(SERVE * 5, tls=serving(keys.good, tls12=tls12)) as server:
        run(main())
        sock = server.peers[0].sock
    assert isinstance(sock, ssl.SSLSocket)
    assert server.connections == 1  # session tickets are not taken for an end
    assert len(server.requests) == 5


def test_sni_and_alpn_are_sent(keys):
    asked: list[str | None] = []
    context = serving(keys.good)
    context.sni_callback = lambda sock, name, ctx: asked.append(name)
    alpn: list[str | None] = []

    class Alpn(ReadRequest):
        def run(self, peer):  # type: ignore[no-untyped-def]
            alpn.append(peer.sock.selected_alpn_protocol())
            super().run(peer)

    with ScriptedServer([Alpn(), Send(OK)], tls=context) as server:
        at = secure(server.port, tls=Tls(ca_file=keys.ca.file))
        assert isinstance(asyncio.run(one(request(at), resolver=Names(**NAMES))), Response)
    assert asked == ["a.example"]
    assert alpn == ["http/1.1"]


@both_loops
def test_a_literal_address_is_verified_as_an_address(run, keys):
    with ScriptedServer(SERVE, tls=serving(keys.by_ip)) as server:
        at = secure(server.port, "127.0.0.1", tls=Tls(ca_file=keys.ca.file))
        assert isinstance(run(one(request(at))), Response)
    with ScriptedServer(SERVE, tls=serving(keys.good)) as server:
        at = secure(server.port, "127.0.0.1", tls=Tls(ca_file=keys.ca.file))
        seen = run(one(request(at)))
    assert seen == Failure(Phase.TLS, Fault.CERTIFICATE, False, "address_mismatch")
    assert server.requests == []


@both_loops
@pytest.mark.parametrize(
    ("pair", "authority", "details"),
    [
        ("wrong_host", "ca", {"hostname_mismatch"}),
        ("expired", "ca", {"expired"}),
        ("good", "other_ca", {"unknown_issuer"}),
        ("good", None, {"unknown_issuer"}),
    ],
)
def test_a_certificate_that_cannot_be_believed_gets_nothing(run, keys, pair, authority, details):
    ca_file = None if authority is None else getattr(keys, authority).file
    with ScriptedServer(SERVE, tls=serving(getattr(keys, pair))) as server:
        at = secure(server.port, tls=Tls(ca_file=ca_file))
        seen = run(one(request(at), resolver=Names(**NAMES)))
    assert isinstance(seen, Failure)
    assert (seen.phase, seen.fault, seen.sent) == (Phase.TLS, Fault.CERTIFICATE, False)
    assert seen.detail in details
    assert server.requests == []


@both_loops
@pytest.mark.parametrize("tls12", [True, False])
def test_a_client_certificate_is_shown(run, keys, tls12):
    with ScriptedServer(SERVE, tls=serving(keys.good, clients=keys.ca.file, tls12=tls12)) as server:
        tls = Tls(keys.ca.file, keys.client.cert_file, keys.client.key_file)
        seen = run(one(request(secure(server.port, tls=tls)), resolver=Names(**NAMES)))
    assert isinstance(seen, Response)
    assert len(server.requests) == 1


@both_loops
@pytest.mark.parametrize("pair", [None, "stranger"])
@pytest.mark.parametrize("tls12", [True, False])
def test_a_client_certificate_that_is_not_accepted_is_named(run, keys, pair, tls12):
    shown = getattr(keys, pair) if pair else None
    tls = Tls(keys.ca.file, shown and shown.cert_file, shown and shown.key_file)
    calls: list[str] = []
    with ScriptedServer(SERVE, tls=serving(keys.good, clients=keys.ca.file, tls12=tls12)) as server:
        asked = request(secure(server.port, tls=tls), on_send=lambda: calls.append("x"))
        seen = run(one(asked, resolver=Names(**NAMES)))
    assert isinstance(seen, Failure)
    assert seen.sent == bool(calls)
    assert seen.phase is (Phase.SEND if calls else Phase.TLS)
    if tls12:  # refused within the handshake
        assert not calls
        assert seen.fault in (Fault.CERTIFICATE, Fault.REFUSED), seen
    else:
        # TLS 1.3 lets a client write before the server has looked; the server then closes with the request
        # unread, and its reset may overtake its alert.
        assert seen.fault is Fault.CERTIFICATE or seen.detail == "ECONNRESET", seen
    assert server.requests == []


@both_loops
def test_a_handshake_without_an_answer_times_out(run, keys):
    async def main() -> None:
        sender = Sender(resolver=Names(**NAMES))
        at = secure(server.port, tls=Tls(ca_file=keys.ca.file))
        before = 0
        for number in range(4):
            started = time.monotonic()
            seen = await sender.send(request(at, timeouts=Timeouts(tls=0.1)))
            assert seen == Failure(Phase.TLS, Fault.TIMEOUT, False, "tls")
            assert 0.09 <= time.monotonic() - started < 0.1 + LATE_S
            assert sender.connections == 0
            await asyncio.sleep(0.01)  # the transport closes in the loop's next turns
            if number:
                assert open_files() == before + number  # one each: the server's own end
            else:
                before = open_files()
        await sender.close()

    with ScriptedServer([Deaf()]) as server:
        run(main())
    assert server.connections == 4


@both_loops
@pytest.mark.parametrize(
    ("steps", "faults"),
    [
        ([Fin()], {Fault.LOST}),
        ([Rst()], {Fault.LOST}),
        ([Send(b"HTTP/1.1 400 Bad\r\n\r\n")], {Fault.REFUSED}),
        ([Send(b"\x15\x03\x01\x00\x02\x02\x28")], {Fault.REFUSED}),
    ],
)
def test_a_peer_that_does_not_speak_tls_is_unsent(run, keys, steps, faults):
    with ScriptedServer(steps) as server:
        at = secure(server.port, tls=Tls(ca_file=keys.ca.file))
        seen = run(one(request(at, timeouts=SHORT), resolver=Names(**NAMES)))
    assert isinstance(seen, Failure)
    assert not seen.sent
    # A reset may come before the first byte of the handshake.
    assert seen.phase is Phase.TLS or (seen.phase is Phase.CONNECT and seen.fault is Fault.LOST)
    assert seen.fault in faults, seen


@both_loops
@pytest.mark.parametrize("broken", ["missing", "garbage", "encrypted", "mismatch"])
def test_unusable_key_material_is_our_own_fault(run, keys, tmp_path, broken):
    cert, key = keys.client.cert_file, str(tmp_path / "client.key")
    if broken == "garbage":
        Path(key).write_text("not a key")
    elif broken == "encrypted":
        Path(key).write_bytes(
            keys.client.key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.BestAvailableEncryption(b"secret"),
            )
        )
    elif broken == "mismatch":
        key = keys.stranger.key_file
    with ScriptedServer(SERVE, tls=serving(keys.good)) as server:
        at = secure(server.port, tls=Tls(keys.ca.file, cert, key))
        seen = run(one(request(at), resolver=Names(**NAMES)))
    assert isinstance(seen, Failure)
    assert (seen.phase, seen.fault, seen.sent) == (Phase.TLS, Fault.OURS, False)
    assert seen.detail.startswith("key_material_")
    assert server.connections == 0


def test_an_unusable_authority_is_our_own_fault(tmp_path):
    for text in (None, "", "not a certificate"):
        path = tmp_path / "ca.pem"
        if text is not None:
            path.write_text(text)
        seen = asyncio.run(one(request(secure(443, tls=Tls(ca_file=str(path)))), resolver=Names(**NAMES)))
        assert isinstance(seen, Failure)
        assert (seen.phase, seen.fault, seen.sent) == (Phase.TLS, Fault.OURS, False)


def test_a_changed_file_is_read_again(keys, tmp_path):
    path = tmp_path / "ca.pem"
    path.write_bytes(Path(keys.other_ca.file).read_bytes())

    async def main() -> None:
        sender = Sender(resolver=Names(**NAMES))
        at = secure(server.port, tls=Tls(ca_file=str(path)))
        refused = await sender.send(request(at))
        assert refused == Failure(Phase.TLS, Fault.CERTIFICATE, False, "unknown_issuer")
        path.write_bytes(Path(keys.ca.file).read_bytes())
        os.utime(path, ns=(1, 1))
        assert isinstance(await sender.send(request(at)), Response)
        await sender.close()

    with ScriptedServer(SERVE, tls=serving(keys.good)) as server:
        asyncio.run(main())
    assert len(server.requests) == 1


@both_loops
@pytest.mark.parametrize("end", [Fin(), Rst()])
def test_an_idle_tls_connection_that_ended_is_replaced(run, keys, end):
    async def main() -> None:
        sender = Sender(resolver=Names(**NAMES))
        at = secure(server.port, tls=Tls(ca_file=keys.ca.file))
        assert isinstance(await sender.send(request(at, b"first")), Response)
        go.set()
        assert server.peers[0].closed.wait(10)
        assert isinstance(await sender.send(request(at, b"second")), Response)
        await sender.close()

    go = threading.Event()
    with ScriptedServer([*SERVE, Wait(go), end], SERVE, tls=serving(keys.good)) as server:
        run(main())
    assert [one.rpartition(b"\r\n")[2] for one in server.requests] == [b"first", b"second"]


@both_loops
def test_tls_through_a_proxy_verifies_the_target(run, keys):
    with (
        ScriptedServer(SERVE, tls=serving(keys.good)) as server,
        ScriptedServer([ReadRequest(), Tunnel()]) as proxy,
    ):
        terms = {"tls": Tls(ca_file=keys.ca.file), "proxy": Proxy("127.0.0.1", proxy.port)}
        seen = run(one(request(secure(server.port, **terms)), resolver=Names(**NAMES)))
        assert isinstance(seen, Response)
        seen = run(one(request(secure(server.port, "b.example", **terms)), resolver=Names(b_example=["127.0.0.1"])))
        assert seen == Failure(Phase.TLS, Fault.CERTIFICATE, False, "hostname_mismatch")
    assert len(server.requests) == 1


@both_loops
def test_large_bodies_pass_through_tls_unchanged(run, keys):
    body = bytes(range(256)) * 4096
    with ScriptedServer(SERVE, tls=serving(keys.good)) as server:
        at = secure(server.port, tls=Tls(ca_file=keys.ca.file))
        seen = run(one(request(at, body), resolver=Names(**NAMES)))
    assert isinstance(seen, Response)
    assert server.requests[0].endswith(b"\r\n\r\n" + body)
