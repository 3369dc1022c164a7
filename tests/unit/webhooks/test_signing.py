"""Standard Webhooks signatures: the published vectors, rotation, and the traps of other libraries."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import InvalidInput
from redrive.webhooks.secrets import Secret
from redrive.webhooks.signing import (
    MAX_SECRETS,
    SignatureInvalid,
    Signer,
    generate_keypair,
    generate_secret,
    public_key,
    verify,
)

VECTORS: list[dict[str, Any]] = json.loads(
    (Path(__file__).parents[2] / "data" / "standard_webhooks.json").read_text("utf-8")
)["vectors"]
V1, V1A = VECTORS[0], VECTORS[1]
ID, AT = "dlv_0123456789abcdefghjkmnpqrs", 1614265330


def headers(signature: str, webhook_id: str = ID, at: object = AT) -> dict[str, str]:
    return {"Webhook-Id": webhook_id, "WEBHOOK-TIMESTAMP": str(at), "webhook-signature": signature}


def b64(raw: bytes) -> str:
    return base64.b64encode(raw).decode()


@pytest.mark.parametrize("vector", VECTORS, ids=lambda vector: vector["name"])
def test_vectors(vector: dict[str, Any]) -> None:
    body = vector["body"].encode()
    assert Signer([vector["secret"]]).sign(vector["id"], vector["timestamp"], body) == vector["signature"]
    assert (
        Signer([Secret(vector["secret"].encode())]).sign(vector["id"], vector["timestamp"], body) == vector["signature"]
    )
    key = vector.get("public", vector["secret"])
    verify(key, headers(vector["signature"], vector["id"], vector["timestamp"]), body, now=vector["timestamp"])
    if "public" in vector:
        assert public_key(vector["secret"]) == vector["public"]


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b'{"a":"\\u001B"}',
        b'{"a":"\\u001b"}',
        b'{"b":1,"a":2}',
        b'{"a":1.0}',
        b'{"a":1e0}',
        '{"ü":"é"}'.encode(),
        b'{"a":1}\n',
        b"\x00\xff\r\n.",
    ],
)
def test_raw_bytes_are_signed(body: bytes) -> None:
    secret = generate_secret()
    key = base64.b64decode(secret.removeprefix("whsec_"))
    want = hmac.new(key, f"{ID}.{AT}.".encode() + body, hashlib.sha256).digest()
    signature = Signer([secret]).sign(ID, AT, body)
    assert signature == f"v1,{b64(want)}"
    verify(secret, headers(signature), body, now=AT)
    with pytest.raises(SignatureInvalid):
        verify(secret, headers(signature), body + b" ", now=AT)


def test_rotation_signs_with_every_secret_newest_first() -> None:
    new, old, (private, public) = generate_secret(), generate_secret(), generate_keypair()
    signature = Signer([new, private, old]).sign(ID, AT, b"x")
    parts = signature.split(" ")
    assert [part.partition(",")[0] for part in parts] == ["v1", "v1a", "v1"]
    assert parts[0] == Signer([new]).sign(ID, AT, b"x")
    assert parts[2] == Signer([old]).sign(ID, AT, b"x")
    for key in (new, old, public, private, [generate_secret(), old]):
        verify(key, headers(signature), b"x", now=AT)
    for key in (generate_secret(), generate_keypair()[1]):
        with pytest.raises(SignatureInvalid) as caught:
            verify(key, headers(signature), b"x", now=AT)
        assert caught.value.reason == "no_match"


@pytest.mark.parametrize(
    "timestamp",
    [
        True,
        1.0,
        float(AT),
        datetime(2021, 2, 25, tzinfo=UTC),
        str(AT),
        -1,
        None,
        AT * 1000,
        AT * 10**6,
        10**30,
    ],
)
def test_integer_epochs_in_seconds_only(timestamp: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        Signer([V1["secret"]]).sign(ID, timestamp, b"")  # type: ignore[arg-type]
    assert caught.value.param == "timestamp"


@pytest.mark.parametrize(
    "webhook_id", ["", "a.b", ".", "a b", "a\n", "a\r\nb", "ü", "a\x00", "x" * 256, None, 3, b"id"]
)
def test_ids(webhook_id: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        Signer([V1["secret"]]).sign(webhook_id, AT, b"")  # type: ignore[arg-type]
    assert caught.value.param == "webhook_id"


@pytest.mark.parametrize("body", ["text", {"a": 1}, None, bytearray(b"x")])
def test_bodies_are_bytes(body: object) -> None:
    with pytest.raises(InvalidInput):
        Signer([V1["secret"]]).sign(ID, AT, body)  # type: ignore[arg-type]


@pytest.mark.parametrize("size", [24, 32, 64])
def test_key_sizes_allowed(size: int) -> None:
    assert Signer(["whsec_" + b64(b"k" * size)]).sign(ID, AT, b"").startswith("v1,")


RAW = bytes(range(40, 72))
OTHER = bytes(range(72, 104))


@pytest.mark.parametrize(
    ("secret", "says"),
    [
        ("whsec_" + b64(b"k" * 23), "24 to 64 bytes"),
        ("whsec_" + b64(b"k" * 65), "24 to 64 bytes"),
        ("whsec_", "24 to 64 bytes"),
        ("whsec_" + b64(RAW).rstrip("="), "base64"),
        ("whsec_" + b64(b"\xff" * 32).replace("/", "_"), "base64"),
        ("whsec_" + b64(RAW) + "\n", "base64"),
        ("whsec_ " + b64(RAW), "base64"),
        ("whsec_üüüüüüüü", "base64"),
        (" whsec_" + b64(RAW), "begins with"),
        ("WHSEC_" + b64(RAW), "begins with"),
        (b64(RAW), "begins with"),
        ("", "begins with"),
        ("whsec_" + b64(b"whsec_" + b64(RAW).encode()), "together with its prefix"),
        (b64(b"whsec_" + b64(RAW).encode()), "together with its prefix"),
        ("whsec_" + b64(b"whsk_" + b64(RAW).encode()), "together with its prefix"),
        ("whpk_" + b64(RAW), "cannot sign"),
        ("whsk_" + b64(RAW[:31]), "32 bytes"),
        ("whsk_" + b64(RAW + OTHER), "belong together"),
        ("whsk_" + b64(RAW + OTHER[:1]), "32 bytes"),
        ("whsk_!", "base64"),
        (Secret(b"\xff\xfe"), "ASCII"),
        (3, "text"),
        (b"whsec_" + b64(RAW).encode(), "text"),
    ],
)
def test_unusable_secrets_say_why_and_not_what(secret: Any, says: str) -> None:
    with pytest.raises(InvalidInput, match=says) as caught:
        Signer([secret])
    assert caught.value.param == "secret"
    text = secret.reveal().decode("latin-1") if isinstance(secret, Secret) else str(secret)
    payload = text.partition("_")[2] or text
    shown = f"{caught.value!r} {caught.value.hint} {caught.value.__cause__} {caught.value.__context__}"
    assert payload in ("", "whsec_", "!", "3") or payload not in shown


def test_how_many_secrets() -> None:
    assert Signer([generate_secret() for _ in range(MAX_SECRETS)])
    for count in (0, MAX_SECRETS + 1):
        with pytest.raises(InvalidInput):
            Signer([generate_secret() for _ in range(count)])
    assert "whsec" not in repr(Signer([generate_secret()]))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"webhook-id": ""}, "missing_header"),
        ({"webhook-timestamp": ""}, "missing_header"),
        ({"webhook-signature": ""}, "missing_header"),
        ({"webhook-timestamp": "-1"}, "malformed_timestamp"),
        ({"webhook-timestamp": "+1614265330"}, "malformed_timestamp"),
        ({"webhook-timestamp": "1614265330.0"}, "malformed_timestamp"),
        ({"webhook-timestamp": " 1614265330"}, "malformed_timestamp"),
        ({"webhook-timestamp": "١٢"}, "malformed_timestamp"),
        ({"webhook-timestamp": "9" * 30}, "malformed_timestamp"),
        ({"webhook-timestamp": str(AT - 301)}, "too_old"),
        ({"webhook-timestamp": str(AT + 301)}, "too_new"),
        ({"webhook-timestamp": str(AT - 300)}, "no_match"),
        ({"webhook-timestamp": str(AT + 300)}, "no_match"),
        ({"webhook-timestamp": "0" + str(AT)}, "no_match"),
        ({"webhook-id": "other"}, "no_match"),
        ({"webhook-id": "a.b"}, "malformed_id"),
        ({"webhook-signature": "v1"}, "no_match"),
        ({"webhook-signature": "v1,"}, "no_match"),
        ({"webhook-signature": "v1,!!!"}, "no_match"),
        ({"webhook-signature": "v1a,!!!"}, "no_match"),
        ({"webhook-signature": "v1,ü"}, "malformed_signature"),
        ({"webhook-signature": "v1,x " * 40}, "malformed_signature"),
    ],
)
@pytest.mark.parametrize("key", [V1["secret"], V1A["public"]], ids=["v1", "v1a"])
def test_requests_that_do_not_verify(change: dict[str, str], reason: str, key: str) -> None:
    signing = V1["secret"] if key == V1["secret"] else V1A["secret"]
    good = {
        "webhook-id": ID,
        "webhook-timestamp": str(AT),
        "webhook-signature": Signer([signing]).sign(ID, AT, b"x"),
    }
    verify(key, good, b"x", now=AT + 0.5)
    with pytest.raises(SignatureInvalid) as caught:
        verify(key, good | change, b"x", now=AT)
    assert caught.value.reason == reason


def test_versions_are_not_interchangeable() -> None:
    signature = Signer([V1["secret"]]).sign(ID, AT, b"x").removeprefix("v1,")
    for text in (f"v2,{signature}", signature, f"V1,{signature}", f"v1a,{signature}"):
        with pytest.raises(SignatureInvalid):
            verify(V1["secret"], headers(text), b"x", now=AT)


def test_one_signed_request_cannot_be_cut_into_another() -> None:
    # "x.123.456.body" is ID x, time 123, body "456.body", or ID x.123, time 456, body "body".
    signature = Signer([V1["secret"]]).sign("x", 123, b"456.body")
    verify(V1["secret"], headers(signature, "x", 123), b"456.body", now=123)
    with pytest.raises(SignatureInvalid) as caught:
        verify(V1["secret"], headers(signature, "x.123", 456), b"body", now=456)
    assert caught.value.reason == "malformed_id"


def test_a_clock_that_is_no_number_refuses() -> None:
    signature = Signer([V1["secret"]]).sign(ID, AT, b"x")
    for now in (float("nan"), float("inf"), float("-inf")):
        with pytest.raises(SignatureInvalid):
            verify(V1["secret"], headers(signature), b"x", now=now)
    with pytest.raises(InvalidInput):
        verify([], headers(signature), b"x", now=AT)
    with pytest.raises(InvalidInput):
        verify("nonsense", headers(signature), b"x", now=AT)


def test_generated_keys_are_fresh_and_usable() -> None:
    assert generate_secret() != generate_secret()
    assert len(base64.b64decode(generate_secret().removeprefix("whsec_"))) == 32
    private, public = generate_keypair()
    assert public_key(private) == public
    assert public_key(Secret(private.encode())) == public
    with pytest.raises(InvalidInput):
        public_key(generate_secret())
    verify(public, headers(Signer([private]).sign(ID, AT, b"x")), b"x", now=AT)


@given(
    st.binary(max_size=200),
    st.integers(0, 253_402_300_799),
    st.from_regex(r"[!-\-/-~]{1,60}", fullmatch=True),
)
def test_whatever_is_signed_verifies(body: bytes, at: int, webhook_id: str) -> None:
    verify(V1["secret"], headers(Signer([V1["secret"]]).sign(webhook_id, at, body), webhook_id, at), body, now=at)


def test_hmac_secrets_do_not_load_cryptography() -> None:
    code = (
        "import sys; from redrive.webhooks.signing import Signer, generate_secret;"
        "Signer([generate_secret()]).sign('a', 1, b'x'); sys.exit('cryptography' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=30).returncode == 0
