"""Opening a file that is not ours, not ready, not writable or not ours to touch: a clear error, nothing changed."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.contract.harness import work
from tests.contract.sqlite_child import start, together
from tests.contract.sqlite_subject import ENVIRONMENT, url

from redrive.errors import (
    ConfigError,
    EnvironmentMismatch,
    LedgerBusy,
    LedgerError,
    LedgerReadOnly,
    LedgerVersion,
    NotALedger,
    NotFound,
    RedriveError,
)
from redrive.ledger.sqlite import connect as connecting
from redrive.ledger.sqlite import enqueue
from redrive.ledger.sqlite.connect import APPLICATION_ID, connect, path_of
from redrive.ledger.sqlite.ledger import SqliteLedger, create

NOBODY = 65534


def other_program(path: Path) -> None:
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("CREATE TABLE customer (name TEXT)")
        conn.execute("INSERT INTO customer VALUES ('Ada')")
        conn.commit()


def other_application(path: Path) -> None:
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("PRAGMA application_id = 42")


def other_version(path: Path) -> None:
    with closing(sqlite3.connect(path)) as conn:
        conn.execute("PRAGMA user_version = 1")


def random_bytes(path: Path) -> None:
    path.write_bytes(os.urandom(20_000))


def text(path: Path) -> None:
    path.write_text("not a database, though long enough to hold a header of a hundred bytes " * 9)


def folder_content(folder: Path) -> dict[str, bytes]:
    return {entry.name: entry.read_bytes() for entry in folder.iterdir()}


@pytest.mark.parametrize("make", [other_program, other_application, other_version, random_bytes, text])
@pytest.mark.parametrize("act", [SqliteLedger, create])
def test_a_file_that_is_not_a_ledger_is_refused_unchanged(
    tmp_path: Path, make: Callable[[Path], None], act: Callable[[str, str], object]
) -> None:
    make(tmp_path / "ledger.db")
    before = folder_content(tmp_path)
    with pytest.raises(NotALedger) as caught:
        act(url(tmp_path), ENVIRONMENT)
    assert caught.value.hint is not None
    assert "nothing was changed" in caught.value.hint
    assert folder_content(tmp_path) == before


def test_a_file_that_is_missing_is_not_made_by_opening_it(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="does not exist") as caught:
        SqliteLedger(url(tmp_path), ENVIRONMENT)
    assert caught.value.hint == "create it with: redrive init"
    assert list(tmp_path.iterdir()) == []


def test_an_empty_file_needs_init(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").touch()
    with pytest.raises(LedgerVersion) as caught:
        SqliteLedger(url(tmp_path), ENVIRONMENT)
    assert caught.value.hint == "run: redrive init"
    assert (tmp_path / "ledger.db").stat().st_size == 0
    assert len(create(url(tmp_path), ENVIRONMENT)) >= 1
    SqliteLedger(url(tmp_path), ENVIRONMENT).close()


def test_a_folder_that_is_missing_is_said_to_be(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"folder .*nowhere does not exist"):
        create(f"sqlite:///{tmp_path}/nowhere/ledger.db", ENVIRONMENT)


@pytest.mark.parametrize("act", [SqliteLedger, create])
def test_another_environments_ledger_is_refused_untouched(tmp_path: Path, act: Callable[[str, str], object]) -> None:
    create(url(tmp_path), "prod")
    before = folder_content(tmp_path)
    with pytest.raises(EnvironmentMismatch, match=r"'prod'.*'staging'") as caught:
        act(url(tmp_path), "staging")
    assert caught.value.exit_status == 4
    assert folder_content(tmp_path) == before


@pytest.mark.parametrize(
    "bad",
    [
        "postgresql://localhost/x",
        "sqlite:///",
        "sqlite://ledger.db",
        "sqlite:///:memory:",
        "sqlite:///a.db?mode=memory",
        "sqlite:///a%00.db",
        "",
    ],
)
def test_a_url_that_names_no_file_is_refused(bad: str) -> None:
    with pytest.raises(ConfigError) as caught:
        path_of(bad)
    assert caught.value.param == "ledger"


def test_odd_file_names_are_taken_literally(tmp_path: Path) -> None:
    for name in ("a b.db", "per%cent.db", "a#b.db", "ünïcode.db"):
        quoted = name.replace("%", "%25")
        create(f"sqlite:///{tmp_path}/{quoted}", ENVIRONMENT)
        assert (tmp_path / name).is_file()


# --- locked


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connecting, "BUSY_TIMEOUT_S", 0.05)


@pytest.mark.usefixtures("impatient")
def test_a_ledger_locked_by_another_process_says_so_and_is_served_afterwards(tmp_path: Path) -> None:
    create(url(tmp_path), ENVIRONMENT)
    ledger = SqliteLedger(url(tmp_path), ENVIRONMENT)

    def accept() -> int:
        return ledger.transact_sync(lambda tx, now: enqueue.accept(tx, now, [work()], path="", producer="")[0].seq)

    with closing(connect(tmp_path / "ledger.db")) as other:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(LedgerBusy, match="locked by another write transaction") as caught:
            accept()
        assert caught.value.hint is not None
        assert "trying again is safe" in caught.value.hint
        assert ledger.read_sync(lambda tx: tx.rows("SELECT seq FROM identity")) == [], "reading goes on"
        other.execute("ROLLBACK")
    assert accept() == 1
    ledger.close()


@pytest.mark.usefixtures("impatient")
def test_a_lock_while_the_ledger_is_made_or_opened_is_a_clear_error_too(tmp_path: Path) -> None:
    with closing(connect(tmp_path / "ledger.db", create=True)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(LedgerBusy):
            create(url(tmp_path), ENVIRONMENT)
        with pytest.raises(LedgerBusy):
            SqliteLedger(url(tmp_path), ENVIRONMENT)
        other.execute("ROLLBACK")
    assert len(create(url(tmp_path), ENVIRONMENT)) >= 1


# --- read-only


@pytest.fixture
def plain_folder() -> Iterator[Path]:
    """A folder that any user may enter; writable by its owner alone once a test says so."""
    folder = Path(tempfile.mkdtemp(prefix="redrive-test-"))
    folder.chmod(0o755)
    yield folder
    folder.chmod(0o755)
    shutil.rmtree(folder)


def as_a_user(what: str, folder: Path) -> dict[str, str | None]:
    """A child's answer. Permissions mean nothing to the superuser, so it must be somebody else."""
    user = NOBODY if os.geteuid() == 0 else None
    (answer,) = together([start(what, url(folder), user=user)])
    assert isinstance(answer, dict)
    return answer


@pytest.mark.parametrize(("file_mode", "folder_mode"), [(0o444, 0o555), (0o666, 0o555), (0o444, 0o777)])
def test_a_ledger_that_cannot_be_written_gives_a_clear_error_and_loses_nothing(
    plain_folder: Path, file_mode: int, folder_mode: int
) -> None:
    create(url(plain_folder), ENVIRONMENT)
    ledger = SqliteLedger(url(plain_folder), ENVIRONMENT)
    ledger.transact_sync(lambda tx, now: enqueue.accept(tx, now, [work("kept")], path="", producer=""))
    ledger.close()
    file = plain_folder / "ledger.db"
    file.chmod(file_mode)
    plain_folder.chmod(folder_mode)
    answer = as_a_user("open", plain_folder)
    assert answer["code"] == LedgerReadOnly.code
    assert "permissions" in str(answer["hint"])
    plain_folder.chmod(0o755)
    file.chmod(0o644)
    ledger = SqliteLedger(url(plain_folder), ENVIRONMENT)
    assert ledger.read_sync(lambda tx: tx.rows("SELECT key FROM delivery")) == [("kept",)]
    ledger.close()


def test_a_folder_that_cannot_be_written_gets_no_ledger(plain_folder: Path) -> None:
    plain_folder.chmod(0o555)
    answer = as_a_user("make", plain_folder)
    assert answer["code"] == LedgerReadOnly.code
    assert list(plain_folder.iterdir()) == []


def test_a_folder_that_cannot_be_entered_is_a_redrive_error(plain_folder: Path) -> None:
    create(url(plain_folder), ENVIRONMENT)
    plain_folder.chmod(0o000)
    assert as_a_user("open", plain_folder)["code"] == LedgerReadOnly.code


def test_a_folder_in_the_files_place_is_a_redrive_error(tmp_path: Path) -> None:
    (tmp_path / "ledger.db").mkdir()
    with pytest.raises(RedriveError):
        SqliteLedger(url(tmp_path), ENVIRONMENT)


def test_a_truncated_ledger_is_said_to_be_damaged(tmp_path: Path) -> None:
    create(url(tmp_path), ENVIRONMENT)
    file = tmp_path / "ledger.db"
    file.write_bytes(file.read_bytes()[: 4096 * 2])
    with pytest.raises(LedgerError):
        SqliteLedger(url(tmp_path), ENVIRONMENT)


def test_the_files_header_says_whose_it_is(tmp_path: Path) -> None:
    create(url(tmp_path), ENVIRONMENT)
    header = (tmp_path / "ledger.db").read_bytes()[:100]
    assert int.from_bytes(header[68:72], "big") == APPLICATION_ID
