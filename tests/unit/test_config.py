"""Settings: the layers in their order, every setting in every layer, and errors that name the place."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from redrive.config import DEFAULT, NAMES, Settings, default_actor, env_of, flag_of, load
from redrive.domain.policy import DAY
from redrive.errors import ConfigError
from redrive.ledger.retention import RetentionRules
from redrive.webhooks.guard import AddressPolicy
from redrive.worker.settings import WorkerSettings

# One value for each layer, as text and as the setting it becomes. All differ from each other and the default.
VALUES: dict[str, list[tuple[str, Any]]] = {
    "ledger": [(f"sqlite:///{c}.db", f"sqlite:///{c}.db") for c in "abcde"],
    "environment": [(c, c) for c in ("prod", "staging", "qa", "dev2", "e")],
    "app": [(f"m{c}:app", f"m{c}:app") for c in "abcde"],
    "slots": [(str(n), n) for n in (1, 2, 3, 4, 5)],
    "lease": [(f"{n}s", float(n)) for n in (1, 2, 3, 4, 5)],
    "reap": [(f"{n}ms", n / 1000) for n in (100, 200, 300, 400, 500)],
    "poll": [(f"{n}s", float(n)) for n in (1, 2, 3, 4, 6)],
    "drain": [(f"{n}m", n * 60.0) for n in (1, 2, 3, 4, 6)],
    "threads": [(str(n), n) for n in (1, 2, 3, 4, 5)],
    "processes": [(str(n), n) for n in (2, 3, 4, 5, 6)],
    "max_payload": [(f"{n}KiB", n * 1024) for n in (1, 2, 3, 4, 5)],
    "allowed_private": [(f"10.{n}.0.0/16,::1/128", (f"10.{n}.0.0/16", "::1/128")) for n in range(5)],
    "allowed_ports": [(f"{n},443", (443, n)) for n in (8001, 8002, 8003, 8004, 8005)],
    "allow_http": [("true", True), ("false", False), ("true", True), ("false", False), ("true", True)],
    "retention": [(f"delivered={n}d", RetentionRules.parse({"delivered": f"{n}d"})) for n in (1, 2, 3, 4, 5)],
    "tenant": [(c, c) for c in ("acme", "b", "c", "d", "e")],
    "actor": [(f"{c}@host", f"{c}@host") for c in "abcde"],
}


def toml(name: str, text: str, value: Any) -> str:
    if isinstance(value, bool):
        return f"{name} = {str(value).lower()}\n"
    if isinstance(value, tuple):
        return f"{name} = {list(value)}\n".replace("'", '"')
    if isinstance(value, int):
        return f"{name} = {value}\n"
    return f'{name} = "{text}"\n'


def test_retention_is_a_table_in_a_file_and_nothing_else_is(tmp_path: Path) -> None:
    (tmp_path / "redrive.toml").write_text('[retention]\ndelivered = "90d"\nidentity = "forever"\n')
    found = load(environ={}, cwd=tmp_path)
    assert found.retention == RetentionRules(delivered=90 * DAY, identity=None)
    shown = {name: value for name, value, _ in found.items()}["retention"]
    assert RetentionRules.parse(shown) == found.retention
    assert load(environ={"REDRIVE_RETENTION": "no_op=7d"}, cwd=tmp_path).retention == RetentionRules(no_op=7 * DAY)
    (tmp_path / "redrive.toml").write_text('[retention]\ndelivered = "90d"\nidentity = "1d"\n')
    with pytest.raises(ConfigError, match=r"redrive\.toml: retention: identity must be at least 90d"):
        load(environ={}, cwd=tmp_path)


def test_every_setting_has_a_row_in_the_table() -> None:
    assert set(VALUES) == set(NAMES) == {f.name for f in fields(Settings)} - {"origins"}


@pytest.mark.parametrize("name", NAMES)
def test_each_layer_beats_the_next(name: str, tmp_path: Path) -> None:
    """All five layers say something; take the first away, and the next one counts, down to the default."""
    flag, env, profile, own, project = VALUES[name]
    flags: dict[str, Any] = {name: flag[0]}
    environ = {env_of(name): env[0]}
    top = toml(name, *own)
    table = f"[profile.prod]\n{toml(name, *profile)}"
    (tmp_path / "pyproject.toml").write_text(f"[tool.redrive]\n{toml(name, *project)}")

    def settings(chosen: str | None = None) -> Settings:
        return load(flags, environ=environ, cwd=tmp_path, profile=chosen)

    def check(found: Settings, value: Any, origin: str) -> None:
        assert getattr(found, name) == value
        assert found.origin(name) == origin
        assert found.is_set(name) is (origin != DEFAULT)

    (tmp_path / "redrive.toml").write_text(top + table)
    check(settings("prod"), flag[1], f"flag {flag_of(name)}")
    flags.clear()
    check(settings("prod"), env[1], f"env {env_of(name)}")
    environ.clear()
    check(settings("prod"), profile[1], "redrive.toml [profile.prod]")
    check(settings(), own[1], "redrive.toml")
    (tmp_path / "redrive.toml").unlink()
    check(settings(), project[1], "pyproject.toml [tool.redrive]")
    (tmp_path / "pyproject.toml").unlink()
    check(settings(), getattr(Settings(), name), DEFAULT)


def test_a_profile_of_one_file_lies_under_the_other_file(tmp_path: Path) -> None:
    (tmp_path / "redrive.toml").write_text("slots = 1\n")
    (tmp_path / "pyproject.toml").write_text(
        "[tool.redrive]\nslots = 3\n[tool.redrive.profile.p]\nslots = 2\npoll = 1\n"
    )
    found = load(environ={"REDRIVE_PROFILE": "p"}, cwd=tmp_path)
    assert (found.slots, found.poll) == (1, 1.0)
    assert found.origin("poll") == "pyproject.toml [tool.redrive.profile.p]"


def test_layers_merge_by_setting(tmp_path: Path) -> None:
    """What a layer does not mention is unset there: a flag for one setting resets no other."""
    (tmp_path / "redrive.toml").write_text('slots = 7\nlease = 9.5\n[profile.p]\ntenant = "acme"\n')
    found = load({"poll": 2.0, "reap": None}, environ={"REDRIVE_THREADS": "4"}, cwd=tmp_path, profile="p")
    assert (found.slots, found.lease, found.tenant, found.poll, found.threads, found.reap) == (7, 9.5, "acme", 2, 4, 1)


@pytest.mark.parametrize("value", [False, 0])
def test_a_falsy_value_is_a_value(tmp_path: Path, value: object) -> None:
    (tmp_path / "redrive.toml").write_text("allow_http = true\ndrain = 5\n")
    name = "allow_http" if value is False else "drain"
    assert getattr(load({name: value}, environ={}, cwd=tmp_path), name) == value


def test_an_empty_variable_is_unset(tmp_path: Path) -> None:
    found = load(environ={"REDRIVE_SLOTS": "", "REDRIVE_APP": ""}, cwd=tmp_path)
    assert (found.slots, found.app) == (100, None)


def test_config_names_the_file_instead(tmp_path: Path) -> None:
    (tmp_path / "redrive.toml").write_text("slots = 1\n")
    (tmp_path / "other.toml").write_text("slots = 2\n")
    assert load(environ={}, cwd=tmp_path, config="other.toml").slots == 2
    assert load(environ={"REDRIVE_CONFIG": "other.toml"}, cwd=tmp_path).origin("slots") == "other.toml"


def test_only_the_working_directory_is_read(tmp_path: Path) -> None:
    (tmp_path / "redrive.toml").write_text("slots = 1\n")
    below = tmp_path / "below"
    below.mkdir()
    assert load(environ={}, cwd=below).slots == 100


# Unknown, renamed, malformed: what, where, and the nearest known name (O-40: a setting that is silently ignored).


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("slot", "slots"),
        ("max-payload", "max_payload"),
        ("LEASE", "lease"),
        ("concurrency", "slots"),
        ("visibility_timeout", "lease"),
        ("database_url", "ledger"),
        ("lease_s", "lease"),
        ("max_payload_bytes", "max_payload"),
        ("workers", "processes"),
        ("allowed_port", "allowed_ports"),
    ],
)
def test_unknown_settings_name_the_place_and_the_nearest(tmp_path: Path, name: str, meant: str) -> None:
    for file, head, where in (
        ("redrive.toml", "", "redrive.toml: "),
        ("redrive.toml", "[profile.idle]\n", "redrive.toml [profile.idle]: "),
        ("pyproject.toml", "[tool.redrive]\n", "pyproject.toml [tool.redrive]: "),
    ):
        path = tmp_path / file
        path.write_text(f"{head}{name} = 1\n")
        with pytest.raises(ConfigError) as caught:
            load(environ={}, cwd=tmp_path)
        path.unlink()
        assert caught.value.message == f"{where}{name!r} is not a setting"
        assert caught.value.hint == f"did you mean {meant}?"
        assert caught.value.exit_status == 2


def test_an_unknown_variable_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as caught:
        load(environ={"REDRIVE_LEASE_TIMEOUT": "1"}, cwd=tmp_path)
    assert caught.value.message == "environment variable REDRIVE_LEASE_TIMEOUT is not a setting"
    assert caught.value.hint == "did you mean REDRIVE_LEASE?"
    with pytest.raises(ConfigError, match="REDRIVE_ZZZZ") as caught:
        load(environ={"REDRIVE_ZZZZ": "1"}, cwd=tmp_path)
    assert "the settings are: ledger, environment, app" in (caught.value.hint or "")


def test_variables_that_hold_secrets_are_not_settings(tmp_path: Path) -> None:
    assert load(environ={"REDRIVE_ORDERS_SECRET": "whsec_x", "OTHER": "1"}, cwd=tmp_path) == load(
        environ={}, cwd=tmp_path
    )


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("slots", "many", "must be a whole number"),
        ("slots", "1.5", "must be a whole number"),
        ("slots", "٣", "must be a whole number"),
        ("slots", "-1", "must be a whole number"),
        ("slots", "0", "1 to 10000"),
        ("slots", "99999", "1 to 10000"),
        ("lease", "0", "0.2 s to 1 h"),
        ("lease", "soon", "not a duration"),
        ("lease", "-1s", "must not be negative"),
        ("lease", "nan", "not a duration"),
        ("drain", "2h", "0 s to 1 h"),
        ("processes", "0", "must be 1 to 256"),
        ("processes", "1000", "must be 1 to 256"),
        ("max_payload", "0", "1 byte to 256 MiB"),
        ("max_payload", "1GiB", "must be a size"),
        ("max_payload", "lots", "must be a size"),
        ("allowed_private", "10.0.0.1/8", "not a CIDR"),
        ("allowed_private", "nonsense", "not a CIDR"),
        ("allowed_ports", "0", "1 to 65535"),
        ("allowed_ports", "https", "must be a whole number"),
        ("allow_http", "maybe", "must be true or false"),
        ("app", "shop", "must be module:attribute"),
        ("app", "../shop:app", "must be module:attribute"),
        ("environment", "a b", "ASCII letters"),
        ("tenant", "a\x1b[31m", "control character"),
        ("ledger", "mysql://u:hunter2@h/d", "not one that this release can open"),
        ("ledger", "postgresql://u:hunter2@h", "names no database"),
        ("ledger", "postgresql://u:hunt/hunter2@h/d", "where user and password end"),
        ("ledger", "postgresql://u:hunter2/d", "cannot be read"),
        ("ledger", "postgresql://u:1@hunter2@h/d", "where user and password end"),
        ("ledger", "postgresql://u:1/hunter2@h/d", "where user and password end"),
        ("ledger", "postgresql://u:%zzhunter2@h/d", "libpq cannot read it"),
        ("ledger", "postgresql://u:hunter2@h/d?pasword=hunter2", "libpq cannot read it"),
        ("ledger", "postgresql://u:hunter2@h/d?schema=Redrive", "schema must be lower-case"),
        ("ledger", "sqlite:///:memory:", "plain file"),
    ],
)
def test_malformed_values_name_the_place_and_are_never_repeated(
    tmp_path: Path, name: str, value: str, says: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        load(environ={env_of(name): value}, cwd=tmp_path)
    message = str(caught.value)
    assert message.startswith(f"env {env_of(name)}: ")
    assert says in message
    assert "hunter2" not in message + str(caught.value.hint)
    assert caught.value.param == name


def test_a_mistake_that_another_layer_hides_is_still_one(tmp_path: Path) -> None:
    (tmp_path / "redrive.toml").write_text("slots = true\n")
    with pytest.raises(ConfigError, match=r"^redrive\.toml: slots must be a whole number$"):
        load({"slots": "5"}, environ={}, cwd=tmp_path)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("slots = ", "redrive.toml is not valid TOML"),
        ("slots = '5'\n", "slots must be a whole number"),
        ("allow_http = 1\n", "allow_http must be true or false"),
        ("allowed_ports = '443'\n", "allowed_ports must be a list"),
        ("allowed_ports = ['443']\n", "allowed_ports must be a whole number"),
        ("[slots]\nx = 1\n", "slots must be a value, not a table"),
        ("profile = 1\n", "profile must hold tables"),
        ("ledger = 5\n", "ledger must be text"),
    ],
)
def test_files_are_read_strictly(tmp_path: Path, text: str, says: str) -> None:
    (tmp_path / "redrive.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load(environ={}, cwd=tmp_path)
    assert says in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no configuration file gone\.toml"):
        load(environ={}, cwd=tmp_path, config="gone.toml")
    (tmp_path / "redrive.toml").write_bytes(b"tenant = '\xff'\n")
    with pytest.raises(ConfigError, match="is not UTF-8"):
        load(environ={}, cwd=tmp_path)
    (tmp_path / "redrive.toml").unlink()
    (tmp_path / "pyproject.toml").write_text("[tool]\nredrive = 5\n")
    with pytest.raises(ConfigError, match=r"tool\.redrive must be a table"):
        load(environ={}, cwd=tmp_path)


def test_a_profile_that_no_file_has(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no file has any profile"):
        load(environ={}, cwd=tmp_path, profile="prod")
    (tmp_path / "redrive.toml").write_text("[profile.production]\nslots = 1\n")
    with pytest.raises(ConfigError, match="there are: production") as caught:
        load(environ={}, cwd=tmp_path, profile="productoin")
    assert caught.value.hint == "did you mean production?"


# What the settings become.


def test_the_defaults_are_the_workers_and_the_guards_own() -> None:
    settings = load(environ={}, cwd=Path("/"))
    assert settings.worker() == WorkerSettings()
    assert settings.addresses() == AddressPolicy()
    assert settings.actor == default_actor()
    assert "@" in settings.actor


def test_what_is_set_lies_over_an_applications_own() -> None:
    settings = load({"slots": "3", "allowed_ports": ["8080"]}, environ={}, cwd=Path("/"))
    assert settings.worker(WorkerSettings(slots=50, lease_s=7)) == WorkerSettings(slots=3, lease_s=7)
    base = AddressPolicy.build(["10.0.0.0/8"], [443], True)
    assert settings.addresses(base) == AddressPolicy.build(["10.0.0.0/8"], [8080], True)


def test_threads_are_as_many_as_slots_unless_a_layer_says_otherwise(tmp_path: Path) -> None:
    shown = {name: (value, origin) for name, value, origin in load(environ={}, cwd=tmp_path).items()}
    assert shown["threads"] == ("slots", DEFAULT)
    assert load({"slots": "9"}, environ={}, cwd=tmp_path).worker().thread_limit == 9
    (tmp_path / "redrive.toml").write_text("threads = 4\n")
    assert load({"slots": "9"}, environ={}, cwd=tmp_path).worker().thread_limit == 4
    back = load({"threads": "slots"}, environ={}, cwd=tmp_path)
    assert (back.threads, back.worker(WorkerSettings(slots=6, threads=2)).thread_limit) == (None, 6)
    with pytest.raises(ConfigError, match="a whole number, or slots"):
        load({"threads": "many"}, environ={}, cwd=tmp_path)


def test_repeated_flags_and_commas_are_one_list() -> None:
    flags: dict[str, Callable[[], Any] | Any] = {"allowed_ports": ["443", "8080,8081"]}
    assert load(flags, environ={}, cwd=Path("/")).allowed_ports == (443, 8080, 8081)


def test_settings_do_not_change(tmp_path: Path) -> None:
    settings = load(environ={}, cwd=tmp_path)
    changed = settings.with_value("ledger", "sqlite:///x.db", "app shop:app")
    assert (changed.ledger, changed.origin("ledger")) == ("sqlite:///x.db", "app shop:app")
    assert (settings.ledger, settings.origin("ledger")) == ("sqlite:///redrive.db", DEFAULT)
    with pytest.raises(TypeError):
        changed.origins["slots"] = "x"  # type: ignore[index]


def test_flags_and_variables_are_spelt_one_way() -> None:
    assert [flag_of(n) for n in ("ledger", "max_payload")] == ["--ledger", "--max-payload"]
    assert len({*map(env_of, NAMES), *map(flag_of, NAMES)}) == 2 * len(NAMES)
    assert list(itertools.islice((name for name, _, _ in Settings().items()), 2)) == ["ledger", "environment"]
