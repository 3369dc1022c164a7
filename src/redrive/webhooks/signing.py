"""Standard Webhooks signatures: made for every request, and checked by whoever receives one.

The signed bytes are ``id.timestamp.body``. ``whsec_`` secrets make ``v1`` (HMAC-SHA256), ``whsk_`` keys
make ``v1a`` (ed25519); the header is a space-separated list, so that an old and a new secret both sign
during a rotation. The body is signed as the bytes that are sent, never as a value serialised again.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
from base64 import b64decode
from binascii import Error as Base64Error
from binascii import b2a_base64
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Literal, NoReturn

from redrive.errors import InvalidInput, RedriveError
from redrive.webhooks.secrets import Secret

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

HMAC_PREFIX = "whsec_"
PRIVATE_PREFIX = "whsk_"
PUBLIC_PREFIX = "whpk_"
MIN_KEY_BYTES = 24
MAX_KEY_BYTES = 64
MAX_SECRETS = 8
"""Most secrets of one destination: each adds a signature to every request."""
TOLERANCE_S = 300
"""How far a timestamp may be from the receiver's clock, in seconds."""

_MAX_TIMESTAMP = 253_402_300_799  # the year 9999; epochs in milliseconds are beyond it
_MAX_SIGNATURES = 32
_ID = re.compile(r"[!-\-/-~]{1,255}")  # visible ASCII without the full stop
_DIGITS = re.compile(r"[0-9]{1,12}")
_PREFIXED = tuple(prefix.encode() for prefix in (HMAC_PREFIX, PRIVATE_PREFIX, PUBLIC_PREFIX))
_HASH_NAME = "sha256"

Reason = Literal[
    "missing_header",
    "malformed_id",
    "malformed_timestamp",
    "too_old",
    "too_new",
    "malformed_signature",
    "no_match",
]


class SignatureInvalid(RedriveError):
    """A received request does not carry an acceptable signature. ``reason`` is a bounded code."""

    code = "signature_invalid"
    http_status = 401

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason: Reason = reason


class Signer:
    """Signs with one or several secrets, newest first. Keys are decoded once, here.

    Takes ``whsec_`` or ``whsk_`` secrets. An unusable one raises :class:`InvalidInput`, without any of it.
    """

    __slots__ = ("_signs",)

    def __init__(self, newest_first: Sequence[Secret | str]) -> None:
        if not 1 <= len(newest_first) <= MAX_SECRETS:
            raise InvalidInput(f"a signer takes 1 to {MAX_SECRETS} secrets", param="secret")
        self._signs = [_signature_maker(_text(secret)) for secret in newest_first]

    def sign(self, webhook_id: str, timestamp: int, body: bytes) -> str:
        """The ``webhook-signature`` header's value.

        ``webhook_id`` is visible ASCII without a full stop. ``timestamp`` is Unix time in whole seconds: a
        float, a boolean or a datetime raises :class:`InvalidInput`, as does an epoch in milliseconds.
        """
        # The type is exact: True is an int, and a datetime's own epoch depends on its zone.
        if type(timestamp) is not int or not 0 <= timestamp <= _MAX_TIMESTAMP:
            raise InvalidInput("a timestamp is Unix time in whole seconds", param="timestamp")
        if type(webhook_id) is not str or not _ID.fullmatch(webhook_id):
            raise InvalidInput("a webhook ID is visible ASCII without a full stop", param="webhook_id")
        if type(body) is not bytes:
            raise InvalidInput("what is signed is bytes, exactly as they are sent", param="body")
        signed = b"%b.%d.%b" % (webhook_id.encode("ascii"), timestamp, body)
        signs = self._signs
        if len(signs) == 1:
            return signs[0](signed)
        return " ".join([sign(signed) for sign in signs])

    def __repr__(self) -> str:
        return f"Signer({len(self._signs)} secrets)"


def verify(
    keys: Secret | str | Sequence[Secret | str],
    headers: Mapping[str, str],
    body: bytes,
    *,
    now: float,
    tolerance_s: int = TOLERANCE_S,
) -> None:
    """For receivers: return if one of the keys signed the request, else raise :class:`SignatureInvalid`.

    ``keys`` are ``whsec_`` secrets or ``whpk_`` public keys (``whsk_`` keys verify too). ``headers`` are
    the request's, in any case. ``body`` is the raw bytes as received, before any parsing. ``now`` is Unix
    time in seconds, for example ``time.time()``. Comparison takes constant time. Verifying is not
    deduplicating: remember ``webhook-id`` for that.
    """
    wanted = [keys] if isinstance(keys, (Secret, str)) else list(keys)
    verifiers = [_verifier(_text(key)) for key in wanted]
    if not verifiers:
        raise InvalidInput("no key to verify with", param="secret")
    lower = {name.lower(): value for name, value in headers.items()}
    webhook_id = lower.get("webhook-id", "")
    timestamp = lower.get("webhook-timestamp", "")
    signature = lower.get("webhook-signature", "")
    if not (webhook_id and timestamp and signature):
        raise SignatureInvalid("missing_header", "a webhook-id, -timestamp or -signature header is missing")
    # A full stop in the ID would let one signed request be cut into another ID, time and body.
    if not _ID.fullmatch(webhook_id):
        raise SignatureInvalid("malformed_id", "webhook-id is not visible ASCII without a full stop")
    if not _DIGITS.fullmatch(timestamp):
        raise SignatureInvalid("malformed_timestamp", "webhook-timestamp is not Unix time in seconds")
    # Negated comparisons: a NaN clock must refuse, not accept.
    age = now - int(timestamp)
    if not age <= tolerance_s:
        raise SignatureInvalid("too_old", f"webhook-timestamp is more than {tolerance_s} s old")
    if not age >= -tolerance_s:
        raise SignatureInvalid("too_new", f"webhook-timestamp is more than {tolerance_s} s ahead")
    offered = signature.split(" ")
    if len(offered) > _MAX_SIGNATURES or not signature.isascii():
        raise SignatureInvalid("malformed_signature", "webhook-signature is not a list of signatures")
    signed = b"%b.%b.%b" % (webhook_id.encode("ascii"), timestamp.encode("ascii"), body)
    matched = False
    for check in verifiers:
        matched |= check(signed, offered)
    if not matched:
        raise SignatureInvalid("no_match", "no signature matches")


def generate_secret() -> str:
    """A new ``whsec_`` secret of 32 random bytes."""
    return HMAC_PREFIX + _b64(secrets.token_bytes(32))


def generate_keypair() -> tuple[str, str]:
    """A new ed25519 pair: the ``whsk_`` private key (seed and public key) and the ``whpk_`` public key."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    private = Ed25519PrivateKey.generate()
    public = private.public_key().public_bytes_raw()
    return PRIVATE_PREFIX + _b64(private.private_bytes_raw() + public), PUBLIC_PREFIX + _b64(public)


def public_key(secret: Secret | str) -> str:
    """The ``whpk_`` key that verifies what a ``whsk_`` key signs. Raises :class:`InvalidInput`."""
    text = _text(secret)
    if not text.startswith(PRIVATE_PREFIX):
        _refuse("only a whsk_ key has a public key")
    return PUBLIC_PREFIX + _b64(_private_key(text).public_key().public_bytes_raw())


def _signature_maker(text: str) -> Callable[[bytes], str]:
    if text.startswith(HMAC_PREFIX):
        key = _hmac_key(text)
        encode = b2a_base64
        # RFC 2104 with both keyed states prepared: hmac.digest lets go of the interpreter lock at every call, and
        # taking it back from a busy writer thread costs several times the hash.
        inner, outer = (hashlib.sha256(bytes(b ^ pad for b in key.ljust(64, b"\0"))) for pad in (0x36, 0x5C))

        def v1(signed: bytes) -> str:
            message = inner.copy()
            message.update(signed)
            code = outer.copy()
            code.update(message.digest())
            return "v1," + encode(code.digest(), newline=False).decode("ascii")

        return v1
    if text.startswith(PRIVATE_PREFIX):
        sign = _private_key(text).sign

        def v1a(signed: bytes) -> str:
            return "v1a," + _b64(sign(signed))

        return v1a
    if text.startswith(PUBLIC_PREFIX):
        _refuse("a whpk_ key is public: it verifies and cannot sign", "use the whsk_ key")
    return _refuse_unprefixed(text)


def _verifier(text: str) -> Callable[[bytes, Sequence[str]], bool]:
    if text.startswith(HMAC_PREFIX):
        make = _signature_maker(text)

        def v1(signed: bytes, offered: Sequence[str]) -> bool:
            expected = make(signed).encode("ascii")
            matched = False
            for one in offered:
                matched |= hmac.compare_digest(expected, one.encode("ascii"))
            return matched

        return v1
    if not text.startswith((PRIVATE_PREFIX, PUBLIC_PREFIX)):
        return _refuse_unprefixed(text)
    from cryptography.exceptions import InvalidSignature

    key = _private_key(text).public_key() if text.startswith(PRIVATE_PREFIX) else _public_key(text)

    def v1a(signed: bytes, offered: Sequence[str]) -> bool:
        for one in offered:
            version, _, encoded = one.partition(",")
            if version != "v1a":
                continue
            try:
                key.verify(b64decode(encoded, validate=True), signed)
            except (InvalidSignature, Base64Error):
                continue
            return True
        return False

    return v1a


def _hmac_key(text: str) -> bytes:
    key = _decode(text.removeprefix(HMAC_PREFIX))
    if not MIN_KEY_BYTES <= len(key) <= MAX_KEY_BYTES:
        _refuse(f"a whsec_ secret holds {MIN_KEY_BYTES} to {MAX_KEY_BYTES} bytes, this one {len(key)}")
    return key


def _private_key(text: str) -> Ed25519PrivateKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    raw = _decode(text.removeprefix(PRIVATE_PREFIX))
    if len(raw) not in (32, 64):
        _refuse(f"a whsk_ key holds 32 bytes, or 64 with its public key; this one {len(raw)}")
    key = Ed25519PrivateKey.from_private_bytes(raw[:32])
    if len(raw) == 64 and key.public_key().public_bytes_raw() != raw[32:]:
        _refuse("the two halves of the whsk_ key do not belong together")
    return key


def _public_key(text: str) -> Ed25519PublicKey:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    raw = _decode(text.removeprefix(PUBLIC_PREFIX))
    if len(raw) != 32:
        _refuse(f"a whpk_ key holds 32 bytes, this one {len(raw)}")
    return Ed25519PublicKey.from_public_bytes(raw)


def _decode(text: str) -> bytes:
    try:
        raw = b64decode(text, validate=True)
    except (Base64Error, ValueError):
        _refuse("the part of the secret after its prefix is not standard base64 with padding")
    if raw.startswith(_PREFIXED):
        _refuse(
            "the secret was base64-encoded together with its prefix",
            "encode the random bytes only, then put whsec_ in front",
        )
    return raw


def _refuse_unprefixed(text: str) -> NoReturn:
    try:
        _decode(text)
    except InvalidInput as error:
        if error.hint is not None:
            raise
    _refuse("a signing secret begins with whsec_ or whsk_", "put the prefix in front of the base64 text")


def _text(secret: Secret | str) -> str:
    if isinstance(secret, Secret):
        raw = secret.reveal()
        # Asked first: a UnicodeDecodeError carries the bytes along.
        if not raw.isascii():
            _refuse("a signing secret is ASCII text")
        return raw.decode("ascii")
    if not isinstance(secret, str):
        _refuse(f"a signing secret is text, not {type(secret).__name__}")
    return secret


def _b64(raw: bytes) -> str:
    return b2a_base64(raw, newline=False).decode("ascii")


def _refuse(message: str, hint: str | None = None) -> NoReturn:
    raise InvalidInput(message, param="secret", hint=hint)
