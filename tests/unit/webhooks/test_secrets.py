"""Secrets are references, and what they refer to never shows."""

from __future__ import annotations

import copy
import logging
import os
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from redrive.errors import InvalidInput, RedriveError
from redrive.webhooks.secrets import (
    MAX_SECRET_BYTES,
    Secret,
    SecretCache,
    SecretRef,
    SecretUnavailable,
    parse_ref,
    resolve,
)

LITERAL = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"


@pytest.mark.parametrize(
    ("text", "want"),
    [
        ("env:ACME_SECRET", SecretRef("env", "ACME_SECRET")),
        ("env:_a1", SecretRef("env", "_a1")),
        ("file:/run/secrets/acme", SecretRef("file", "/run/secrets/acme")),
        ("file:/with space/ü:x", SecretRef("file", "/with space/ü:x")),
    ],
)
def test_references(text: str, want: SecretRef) -> None:
    assert parse_ref(text) == want
    assert str(parse_ref(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        LITERAL,
        f"env:{LITERAL}",
        f"file:/{LITERAL}",
        f" {LITERAL}",
        "hunter2",
        "env",
        "env:",
        "env: A",
        "env:A B",
        "env:1A",
        "env:A-B",
        "env:A\n",
        "env:Ä",
        "env:" + "A" * 200,
        "ENV:A",
        "file:",
        "file:relative/path",
        "file:~/secret",
        "file:./secret",
        "file://host/path"[:5] + "x",
        "file:/a\x00b",
        "file:/a\nb",
        "file:/\ud800",
        "file:/" + "a" * 2000,
        "vault:x",
        "https://x/y",
        "-----BEGIN PRIVATE KEY-----",
        "Bearer abcdefghijklmnopqrst",
        None,
        b"env:A",
        7,
    ],
)
def test_everything_else_is_refused_without_an_echo(text: object) -> None:
    with pytest.raises(InvalidInput) as caught:
        parse_ref(text)  # type: ignore[arg-type]
    shown = f"{caught.value!r} {caught.value.as_dict()} {caught.value.__cause__} {caught.value.__context__}"
    assert LITERAL not in shown
    assert "hunter2" not in shown
    assert caught.value.param == "secret"


@given(st.text(min_size=3, max_size=60))
def test_no_refused_text_is_repeated(text: str) -> None:
    marked = f"Zq{text}qZ"
    with pytest.raises(InvalidInput) as caught:
        parse_ref(marked)
    assert marked not in f"{caught.value}{caught.value.hint}"


def test_a_secret_does_not_show_itself(caplog: pytest.LogCaptureFixture) -> None:
    secret = Secret(b"hunter2")
    assert secret.reveal() == b"hunter2"
    logging.getLogger("test").warning("%s %r", secret, secret)
    shown = f"{secret} {secret!r} {[secret]} {caplog.text} %s" % secret
    assert "hunter2" not in shown
    assert "***" in shown
    for attempt in (pickle.dumps, copy.copy, copy.deepcopy, hash):
        with pytest.raises(TypeError):
            attempt(secret)  # type: ignore[operator]
    assert secret == Secret(b"hunter2")
    assert secret != Secret(b"hunter3")
    assert secret != b"hunter2"


def test_env() -> None:
    ref = parse_ref("env:ACME")
    assert resolve(ref, {"ACME": "s"}).reveal() == b"s"
    assert resolve(ref, {"ACME": "ü\n"}).reveal() == b"\xc3\xbc\n"
    for environ in ({}, {"ACME": ""}, {"ACME": "x" * (MAX_SECRET_BYTES + 1)}):
        with pytest.raises(SecretUnavailable) as caught:
            resolve(ref, environ)
        assert "env:ACME" in str(caught.value)
        assert "xx" not in str(caught.value)


def test_env_is_read_from_the_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REDRIVE_TEST_SECRET", "now")
    assert resolve(parse_ref("env:REDRIVE_TEST_SECRET")).reveal() == b"now"


@pytest.mark.parametrize(
    ("content", "want"),
    [
        (b"s", b"s"),
        (b"s\n", b"s"),
        (b"s\r\n", b"s"),
        (b"s\n\n", b"s\n"),
        (b" s ", b" s "),
        (b"s\r", b"s\r"),
        (b"\xff\x00\n", b"\xff\x00"),
        (b"x" * MAX_SECRET_BYTES, b"x" * MAX_SECRET_BYTES),
        (b"x" * MAX_SECRET_BYTES + b"\r\n", b"x" * MAX_SECRET_BYTES),
    ],
)
def test_file(tmp_path: Path, content: bytes, want: bytes) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    assert resolve(SecretRef("file", str(path))).reveal() == want


@pytest.mark.parametrize("content", [b"", b"\n", b"\r\n", b"y" * (MAX_SECRET_BYTES + 1), b"y" * 200_000])
def test_unusable_files(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "secret"
    path.write_bytes(content)
    with pytest.raises(SecretUnavailable) as caught:
        resolve(SecretRef("file", str(path)))
    assert "yy" not in str(caught.value)


def test_what_is_not_a_regular_file(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("missing", "pipe", "."):
        with pytest.raises(SecretUnavailable) as caught:
            resolve(SecretRef("file", str(tmp_path / name)))
        assert isinstance(caught.value, RedriveError)
        assert caught.value.code == "secret_unavailable"
    with pytest.raises(SecretUnavailable, match="ENOENT"):
        resolve(SecretRef("file", str(tmp_path / "missing")))


def test_the_cache_reads_again_after_its_ttl_and_keeps_the_object_while_nothing_changes(
    tmp_path: Path,
) -> None:
    now = [0.0]
    path = tmp_path / "secret"
    path.write_bytes(b"one")
    ref = SecretRef("file", str(path))
    cache = SecretCache(ttl_s=1.0, clock=lambda: now[0])
    first = cache.resolve(ref)
    now[0] = 5.0
    assert cache.resolve(ref) is first
    path.write_bytes(b"two")  # same size, perhaps the same mtime
    assert cache.resolve(ref) is first
    now[0] = 5.999
    assert cache.resolve(ref) is first
    now[0] = 6.0
    assert cache.resolve(ref).reveal() == b"two"
    path.unlink()
    now[0] = 7.0
    for _ in range(2):
        with pytest.raises(SecretUnavailable):
            cache.resolve(ref)
    path.write_bytes(b"three")
    assert cache.resolve(ref).reveal() == b"three"


def test_the_cache_is_bounded() -> None:
    cache = SecretCache(clock=lambda: 0.0, environ={f"V{i}": "x" for i in range(5000)})
    for i in range(5000):
        cache.resolve(SecretRef("env", f"V{i}"))
    assert len(cache._held) <= 4096
