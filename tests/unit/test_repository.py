"""The repository's own tools: each check turns red on a planted violation, and is green without it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "tools"
SCRIPTS = ["tools/setup", "tools/check", "tools/test", ".ci/run"]


def run(tool: str, *arguments: object) -> tuple[int, str]:
    done = subprocess.run(
        [sys.executable, str(TOOLS / tool), *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=120,
        check=False,
    )
    return done.returncode, done.stdout


def write(root: Path, name: str, text: str) -> Path:
    file = root / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return file


# --- files stay small


@pytest.mark.parametrize(("lines", "status"), [(400, 0), (401, 0), (450, 0), (451, 1)])
def test_long_files_are_refused(tmp_path: Path, lines: int, status: int) -> None:
    write(tmp_path, "src/redrive/long.py", "x = 1\n" * lines)
    code, output = run("check_lines.py", tmp_path)
    assert code == status, output
    assert ("lines; split it" in output) == (400 < lines <= 450)


def test_checks_that_see_no_files_fail(tmp_path: Path) -> None:
    for tool in ("check_lines.py", "check_sql.py", "check_tree.py"):
        code, output = run(tool, tmp_path)
        assert code == 1, output
        assert "nothing was checked" in output


# --- nothing of one machine

PLANTED = [
    "see /ro" + "ot/notes.txt",
    'open("/ho' + 'me/somebody/redrive.db")',
    "cd /wo" + "rk/main && make",
    "C:\\Us" + "ers\\somebody",
    "pip install -i https://py" + "pi.org/simp" + "le redrive",
    "wheels come from files.python" + "hosted.org",
    "https://mirror.example/repository/simp" + "le/",
    "--index" + "-url=x",
    "# TO" + "DO: the rest",
    "# FIX" + "ME",
]


@pytest.mark.parametrize("line", PLANTED)
def test_machine_paths_registries_and_markers_are_refused(tmp_path: Path, line: str) -> None:
    write(tmp_path, "docs/page.md", f"fine\n{line}\n")
    code, output = run("check_tree.py", tmp_path)
    assert code == 1, output
    assert "docs/page.md:2: " in output


def test_ordinary_text_and_marked_lines_pass(tmp_path: Path) -> None:
    ordinary = "framework/rooted, https://example.com/work/item, ./work/x, a simple index, todos\n"
    write(tmp_path, "docs/page.md", ordinary + PLANTED[0] + "  <!-- tree: allow -->\n")
    (tmp_path / "image.png").write_bytes(b"\x89PNG\xff\xfe" + PLANTED[0].encode())
    code, output = run("check_tree.py", tmp_path)
    assert code == 0, output


@pytest.mark.parametrize(("git_says", "seen"), [("printf 'docs/page.md\\0'", 0), ("exit 128", 1)])
def test_the_tree_check_leaves_ignored_files_to_git(tmp_path: Path, git_says: str, seen: int) -> None:
    git = write(tmp_path, "bin/git", f"#!/bin/sh\n{git_says}\n")
    git.chmod(0o755)
    tree = tmp_path / "tree"
    write(tree, "docs/page.md", "fine\n")
    write(tree, "scratch/notes.md", PLANTED[0])
    (tree / ".git").mkdir()
    environ = {**os.environ, "PATH": f"{git.parent}{os.pathsep}{os.environ['PATH']}"}
    done = subprocess.run(
        [sys.executable, str(TOOLS / "check_tree.py"), str(tree)],
        env=environ,
        capture_output=True,
        check=False,
    )
    # Where git gives no answer, every file is looked at: too much rather than too little.
    assert done.returncode == seen, done.stdout


# --- SQL in files

SQL_IN_PYTHON = [
    'q = "SELECT seq FROM delivery"',
    'q = "select seq from delivery"',
    'q = f"UPDATE {table} SET x = 1"',
    'q = f"{head} WHERE seq = {seq}"',
    'q = f"{start} ORDER BY {column}"',
    'q = """\n    -- a comment\n    INSERT OR IGNORE INTO identity VALUES (1)"""',
    'q = "DELETE FROM attempt"',
    'q = "WITH due AS (" + body',
    'q = "CREATE UNIQUE INDEX i ON t (c)"',
    'def f():\n    """A docstring."""\n    return "INSERT INTO t VALUES (1)"',
]


@pytest.mark.parametrize("source", SQL_IN_PYTHON)
def test_sql_in_python_is_refused(tmp_path: Path, source: str) -> None:
    write(tmp_path, "src/redrive/ledger/x.py", source + "\n")
    code, output = run("check_sql.py", tmp_path)
    assert code == 1, output
    assert "SQL in Python" in output


def test_prose_pragmas_and_sql_files_pass(tmp_path: Path) -> None:
    source = (
        '"""SELECT is a word in this docstring; UPDATE t SET x too."""\n'
        'HELP = "Select a destination from the list"\n'
        'MORE = "Update the destination, delete from nothing."\n'
        'PRAGMA = f"PRAGMA busy_timeout = {5}"\n'
        'BEGIN = "BEGIN IMMEDIATE"\n'
        'MESSAGE = f"deleted {3} rows; insert nothing into {4}"\n'
    )
    write(tmp_path, "src/redrive/x.py", source)
    write(tmp_path, "src/redrive/reserve.sql", "SELECT 1;\n")
    code, output = run("check_sql.py", tmp_path)
    assert code == 0, output


# --- import contracts


def lint_imports(tree: Path) -> tuple[int, str]:
    done = subprocess.run(
        [Path(sys.executable).parent / "lint-imports", "--no-cache"],
        cwd=tree,
        env={**os.environ, "PYTHONPATH": str(tree / "src")},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout


def test_imports_point_down_and_the_domain_is_pure() -> None:
    code, output = lint_imports(ROOT)
    assert code == 0, output


@pytest.mark.parametrize(
    ("module", "source"),
    [
        ("domain/x.py", "import time\n"),
        ("domain/x.py", "import redrive.ledger\n"),
        ("ledger/x.py", "import redrive.worker\n"),
        ("webhooks/x.py", "import redrive.recovery\n"),
        ("stray.py", ""),
    ],
)
def test_an_import_that_breaks_a_contract_is_noticed(tmp_path: Path, module: str, source: str) -> None:
    contracts = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    write(tmp_path, "pyproject.toml", contracts)
    write(tmp_path, "src/redrive/__init__.py", "")
    layers = tomllib.loads(contracts)["tool"]["importlinter"]["contracts"][0]["layers"]
    for name in re.findall(r"\w+", " ".join(layers)):
        write(tmp_path, f"src/redrive/{name}/__init__.py", "")
    code, output = lint_imports(tmp_path)
    assert code == 0, output
    write(tmp_path, f"src/redrive/{module}", source)
    code, output = lint_imports(tmp_path)
    assert code == 1, output
    assert "BROKEN" in output


# --- slim import


def test_import_redrive_is_slim() -> None:
    code, output = run("check_slim.py")
    assert code == 0, output


@pytest.mark.parametrize("module", ["rich", "sqlalchemy", "http.client", "sqlite3"])
def test_a_heavy_import_is_noticed(tmp_path: Path, module: str) -> None:
    write(tmp_path, "redrive/__init__.py", f"import {module}\nclass Redrive: ...\n")
    environ = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, str(TOOLS / "check_slim.py")],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert module in done.stdout


# --- the promise index and the mutants

CLAUSE = """
[[clause]]
id = "{id}"
promise = "{promise}"
source = "contract 2.2"
tests = {tests}
mutants = {mutants}
"""
MUTANT = """
[[mutant]]
name = "{name}"
file = "src/redrive/core.py"
find = "{find}"
replace = "{replace}"
tests = ["{test}"]
quick = {quick}
"""
TESTS = """
import pytest
from tests.contract import suite
from tests.contract.suite import Suite, test_shared
from redrive.core import limit

class TestSqlite(Suite):
    @pytest.mark.parametrize("n", [1, 2])
    def test_own(self, n): assert n

class TestByModule(suite.Suite):
    pass

def test_limit(): assert limit(5) == 3
def test_blind(): assert limit
@pytest.mark.full
def test_long(): pass
@pytest.mark.skip(reason="x")
def test_skipped(): pass
class TestMarked:
    pytestmark = [pytest.mark.full]
    def test_it(self): pass
"""
SUITE = """
class Suite:
    def test_inherited(self): pass
def test_shared(): pass
"""
GOOD = "tests/unit/test_x.py::test_limit"


def small_tree(root: Path, *, clauses: str = "", mutants: str = "") -> Path:
    write(root, "src/redrive/__init__.py", "")
    write(root, "src/redrive/core.py", "def limit(n):\n    return min(n, 3)\n")
    write(root, "tests/__init__.py", "")
    write(root, "tests/contract/__init__.py", "")
    write(root, "tests/contract/suite.py", SUITE)
    write(root, "tests/unit/test_x.py", TESTS)
    write(root, "pyproject.toml", '[tool.pytest.ini_options]\npythonpath = ["."]\nmarkers = ["full: x"]\n')
    write(root, "tests/mutants/registry.toml", mutants)
    write(root, "docs/promises.toml", clauses)
    return root


def clause(tests: list[str], mutants: list[str] | None = None, *, name: str = "a-clause") -> str:
    return CLAUSE.format(id=name, promise=f"It holds ({name}).", tests=tests, mutants=mutants or [])


def mutant(
    name: str = "no-limit",
    find: str = "min(n, 3)",
    replace: str = "n",
    test: str = GOOD,
    *,
    quick: bool = True,
) -> str:
    return MUTANT.format(name=name, find=find, replace=replace, test=test, quick=str(quick).lower())


@pytest.mark.parametrize(
    "test",
    [
        GOOD,
        "tests/unit/test_x.py::test_shared",
        "tests/unit/test_x.py::TestSqlite::test_inherited",
        "tests/unit/test_x.py::TestByModule::test_inherited",
        "tests/unit/test_x.py::TestSqlite::test_own",
        "tests/unit/test_x.py::TestSqlite::test_own[2]",
    ],
)
def test_a_shown_promise_passes(tmp_path: Path, test: str) -> None:
    code, output = run("check_promises.py", small_tree(tmp_path, clauses=clause([test])))
    assert code == 0, output


@pytest.mark.parametrize(
    ("tests", "said"),
    [
        ([], "no test shows it"),
        (["tests/unit/test_x.py::test_gone"], "no such test"),
        (["tests/unit/test_gone.py::test_limit"], "no such test"),
        (["tests/unit/test_x.py::TestSqlite::test_limit"], "no such test"),
        (["tests/unit/test_x.py"], "no such test"),
        (["tests/contract/suite.py::test_shared"], "no such test"),
        (["tests/unit/test_x.py::test_long"], "make test-full"),
        (["tests/unit/test_x.py::TestMarked::test_it"], "make test-full"),
        ([GOOD, "tests/unit/test_x.py::test_skipped"], "is skipped"),
    ],
)
def test_a_promise_that_nothing_shows_is_refused(tmp_path: Path, tests: list[str], said: str) -> None:
    code, output = run("check_promises.py", small_tree(tmp_path, clauses=clause(tests)))
    assert code == 1, output
    assert said in output


@pytest.mark.parametrize(
    ("mutants", "named", "said"),
    [
        ("", ["no-limit"], "no mutant named no-limit"),
        (mutant(find="min(n, 4)"), ["no-limit"], "occurs 0 times"),
        (mutant(find="n"), ["no-limit"], "not exactly once"),
        (mutant(test="tests/unit/test_x.py::test_gone"), ["no-limit"], "no such test"),
        (
            mutant(test="tests/unit/test_x.py::test_blind"),
            ["no-limit"],
            "turns none of the clause's own tests red",
        ),
        (mutant(replace="min(n, 3)"), ["no-limit"], "nothing is planted"),
        (mutant() + mutant(), ["no-limit"], "used twice"),
        (mutant(), [], "no clause names it"),
    ],
)
def test_a_mutant_that_does_not_fit_is_refused(tmp_path: Path, mutants: str, named: list[str], said: str) -> None:
    tree = small_tree(tmp_path, clauses=clause([GOOD], named), mutants=mutants)
    code, output = run("check_promises.py", tree)
    assert code == 1, output
    assert said in output


@pytest.mark.parametrize(
    ("clauses", "said"),
    [
        (clause([GOOD]) * 2, "the id is used twice"),
        (clause([GOOD], name="Not Kebab"), "not kebab-case"),
        (clause([GOOD]) + "status = 'later'\n", "unknown field status"),
        (clause([GOOD]) + '[[unreleased]]\nid = "b"\npromise = "p"\nsource = "s"\n', "feature is missing"),
        (clause([GOOD]) + '[[waived]]\nid = "b"\n', "unknown table waived"),
        ("", "no clauses"),
    ],
)
def test_a_malformed_index_is_refused(tmp_path: Path, clauses: str, said: str) -> None:
    code, output = run("check_promises.py", small_tree(tmp_path, clauses=clauses))
    assert code == 1, output
    assert said in output


def test_mutants_are_killed_survive_or_break(tmp_path: Path) -> None:
    tree = small_tree(
        tmp_path,
        mutants=mutant()
        + mutant(name="unseen", test="tests/unit/test_x.py::test_blind")
        + mutant(name="breaks", replace="min(n, 3", quick=False),
    )
    before = (tree / "src/redrive/core.py").read_text()
    code, output = run("run_mutants.py", "--root", tree)
    verdicts = dict(re.findall(r"^(\S+) +(killed|SURVIVED|BROKEN) ", output, re.MULTILINE))
    assert verdicts == {"no-limit": "killed", "unseen": "SURVIVED", "breaks": "BROKEN"}, output
    assert code == 1
    assert (tree / "src/redrive/core.py").read_text() == before

    code, output = run("run_mutants.py", "--root", tree, "--quick", "--list")
    assert (code, [line.split()[0] for line in output.splitlines()]) == (0, ["no-limit", "unseen"])
    assert run("run_mutants.py", "--root", tree, "no-such")[0] == 1


def test_only_the_named_mutants_run_and_a_hanging_one_is_killed_by_time(tmp_path: Path) -> None:
    hangs = mutant(name="hangs", find="return", replace="while True: pass\\n    return")
    tree = small_tree(tmp_path, mutants=mutant() + hangs)
    code, output = run("run_mutants.py", "--root", tree, "--timeout", 2, "hangs")
    assert code == 0, output
    assert "killed (time)" in output
    assert "1 of 1 killed" in output


def test_a_test_that_is_red_anyway_kills_nothing(tmp_path: Path) -> None:
    tree = small_tree(tmp_path, mutants=mutant())
    write(tree, "tests/unit/test_x.py", TESTS.replace("== 3", "== 4"))
    code, output = run("run_mutants.py", "--root", tree)
    assert code == 1
    assert "do not pass without a mutant" in output


def test_no_mutants_to_run_is_a_failure(tmp_path: Path) -> None:
    assert run("run_mutants.py", "--root", small_tree(tmp_path))[0] == 1


# --- the wheel


def test_a_wheel_that_lacks_a_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))
    import check_wheel

    write(tmp_path, "src/redrive/__init__.py", "")
    write(tmp_path, "src/redrive/py.typed", "")
    write(tmp_path, "src/redrive/ledger/reserve.sql", "")
    write(tmp_path, "src/redrive/__pycache__/x.pyc", "")
    whole = {
        "redrive/__init__.py",
        "redrive/py.typed",
        "redrive/ledger/reserve.sql",
        "redrive-0.1.0.dist-info/licenses/LICENSE",
    }
    assert check_wheel.missing_and_extra(whole, tmp_path) == []
    for name in whole:
        assert check_wheel.missing_and_extra(whole - {name}, tmp_path), name
    assert check_wheel.missing_and_extra(whole | {"tests/test_x.py"}, tmp_path) == [
        "in the wheel, not under src: tests/test_x.py"
    ]


# --- the pieces agree with each other


def pyproject() -> dict[str, dict[str, object]]:
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


def test_the_changelog_begins_with_this_version() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    versions = re.findall(r"^## \[(\d[^\]]*)\] - \d{4}-\d\d-\d\d$", text, re.MULTILINE)
    assert versions[0] == pyproject()["project"]["version"]


def test_every_dependency_has_a_reason() -> None:
    project, groups = pyproject()["project"], pyproject()["dependency-groups"]
    requirements = [*project["dependencies"], *groups["dev"], *groups["bench"][1:]]  # type: ignore[misc]
    for extra in project["optional-dependencies"].values():  # type: ignore[attr-defined]
        requirements += extra
    names = {re.match(r"[A-Za-z0-9-]+", str(requirement)).group() for requirement in requirements}  # type: ignore[union-attr]
    reasons = (ROOT / "docs/decisions/0003-dependencies.md").read_text(encoding="utf-8")
    listed = set(re.findall(r"^\| `([A-Za-z0-9-]+)` \| \S", reasons, re.MULTILINE))
    assert names | {"hatchling"} == listed


@pytest.mark.parametrize("script", SCRIPTS)
def test_scripts_are_executable_and_parse(script: str) -> None:
    assert os.access(ROOT / script, os.X_OK)
    subprocess.run(["bash", "-n", str(ROOT / script)], check=True)


def test_the_makefile_offers_what_is_documented() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.MULTILINE))
    assert {"setup", "demo", "test", "test-full", "check", "bench", "bench-growth", "clean", "help"} <= targets


def test_the_check_script_runs_every_check() -> None:
    script = (ROOT / "tools/check").read_text(encoding="utf-8")
    runs = set(re.findall(r"tools/(check_\w+\.py)", script + (ROOT / "tools/test").read_text(encoding="utf-8")))
    assert runs == {path.name for path in TOOLS.glob("check_*.py")}


def test_setup_prints_no_index_address(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))
    import environment

    said = (
        "Looking in links: /somewhere/wheels\n"
        "from https://user:word@mirror.example/x/\n"
        "HTTPSConnectionPool(host='mirror.example')"
    )
    code, text = environment._run([sys.executable, "-c", f"print({said!r}); raise SystemExit(3)"])
    assert code == 3
    assert "mirror.example" not in text
    assert "word" not in text
    assert "wheels" not in text


def test_an_environment_is_renewed_when_dependencies_change_and_not_for_a_lint_rule(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))
    import environment

    data = pyproject()
    first = environment.fingerprint(data, "3.11.2")
    assert environment.fingerprint({**data, "tool": {}}, "3.11.2") == first
    assert environment.fingerprint({**data, "dependency-groups": {"dev": []}}, "3.11.2") != first
    assert environment.fingerprint(data, "3.11.3") != first
    assert environment.dev_group({"dependency-groups": {"dev": ["a", {"include-group": "b"}], "b": ["c"]}}) == [
        "a",
        "c",
    ]


def test_an_interpreter_that_does_not_run_is_not_present(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(TOOLS))
    import pythons

    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    shim = write(tmp_path, f"python{version}", "#!/bin/sh\nexit 127\n")
    shim.chmod(0o755)
    assert pythons.probe(shim, version) is None
    assert pythons.probe(Path(sys.executable), "2.7") is None
    assert pythons.probe(Path(sys.executable), version) is not None


def test_every_released_version_has_its_commit_on_record() -> None:
    root = Path(__file__).parents[2]
    released = tomllib.loads((root / "releases.toml").read_text())["release"]
    versions = re.findall(r"^## \[(\d[^\]]*)\] - (\S+)$", (root / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert [(one["version"], one["date"]) for one in released] == versions[::-1]
    assert all(re.fullmatch(r"[0-9a-f]{40}", one["commit"]) for one in released)
