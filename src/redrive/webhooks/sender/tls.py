"""TLS settings turned into contexts, and TLS errors into short codes."""

from __future__ import annotations

import ssl
from collections import OrderedDict
from pathlib import Path

from redrive.webhooks.observation import Failure, Fault, Phase
from redrive.webhooks.sender.request import Tls

_VERIFY_CODES = {
    9: "not_yet_valid",
    10: "expired",
    18: "self_signed",
    19: "self_signed_in_chain",
    20: "unknown_issuer",
    21: "unverified_leaf",
    23: "revoked",
    24: "invalid_ca",
    26: "wrong_purpose",
    62: "hostname_mismatch",
    64: "address_mismatch",
}
"""OpenSSL's X509_V_ERR numbers, named. The message itself would carry the host name."""

_Stamp = tuple[tuple[int, int, int] | None, ...]


class TlsContexts:
    """Contexts by settings, at most ``limit``; made again when one of their files changes."""

    def __init__(self, limit: int = 256) -> None:
        self._limit = limit
        self._made: OrderedDict[Tls, tuple[_Stamp, ssl.SSLContext]] = OrderedDict()

    def get(self, tls: Tls) -> ssl.SSLContext:
        """Raises OSError (``ssl.SSLError`` included) where the key material cannot be used."""
        stamp = tuple(_stamp(path) for path in (tls.ca_file, tls.client_cert_file, tls.client_key_file))
        found = self._made.get(tls)
        if found is not None and found[0] == stamp:
            self._made.move_to_end(tls)
            return found[1]
        context = _make(tls)
        self._made[tls] = (stamp, context)
        self._made.move_to_end(tls)
        if len(self._made) > self._limit:
            self._made.popitem(last=False)
        return context


def _stamp(path: str | None) -> tuple[int, int, int] | None:
    if path is None:
        return None
    stat = Path(path).stat()
    return stat.st_mtime_ns, stat.st_size, stat.st_ino


def _make(tls: Tls) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # verifies the chain and the host name
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["http/1.1"])
    if tls.ca_file is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        context.load_verify_locations(cafile=tls.ca_file)
    if tls.client_cert_file is not None:
        # An encrypted key must fail, not ask for a pass phrase on the terminal.
        context.load_cert_chain(tls.client_cert_file, tls.client_key_file, password=lambda: b"")
    return context


def tls_code(exc: ssl.SSLError) -> tuple[Fault, str]:
    """What an OpenSSL error means, and its short code."""
    if isinstance(exc, ssl.SSLCertVerificationError):
        return Fault.CERTIFICATE, _VERIFY_CODES.get(exc.verify_code, f"verify_{exc.verify_code}")
    reason = (exc.reason or type(exc).__name__).lower()[:60]
    if "alert" in reason and ("certificate" in reason or "unknown_ca" in reason):
        return Fault.CERTIFICATE, reason  # the peer did not like ours, or got none
    if "eof" in reason:
        return Fault.LOST, reason
    return Fault.REFUSED, reason


def key_material_failure(exc: OSError) -> Failure:
    """The failure of an exchange whose own key material cannot be used."""
    code = tls_code(exc)[1] if isinstance(exc, ssl.SSLError) else type(exc).__name__
    return Failure(Phase.TLS, Fault.OURS, sent=False, detail=f"key_material_{code}"[:60])
