"""scripts/faults: every fault can still be made, and what pytest says of one is understood."""

import subprocess
from collections import Counter
from pathlib import Path

import pytest

from scripts.faults.cli import ROOT, attempt, main
from scripts.faults.fault import ROOMS, Fault, FaultError
from scripts.faults.list import FAULTS
from scripts.faults.outcome import Verdict, judge
from scripts.faults.tree import check_imports, copy_tracked


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_can_be_made_and_has_its_tests(fault: Fault) -> None:
    text = (ROOT / fault.file).read_text(encoding="utf-8")
    assert fault.applied_to(text) != text
    assert fault.tests
    for test in fault.tests:
        file, *names = test.split("::")
        written = (ROOT / file).read_text(encoding="utf-8")
        assert all(f" {name}(" in written for name in names), test


def test_there_are_faults_in_every_room() -> None:
    assert len(FAULTS) >= 30
    assert len({fault.name for fault in FAULTS}) == len(FAULTS)
    assert Counter(fault.room for fault in FAULTS).keys() == set(ROOMS)


def test_a_fault_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    def said(old: str, new: str) -> str:
        with pytest.raises(FaultError) as raised:
            Fault("broken", "text", "a.py", old, new, ()).apply(tmp_path)
        return str(raised.value)

    assert said("x", "y") == "broken: there is no a.py"
    (tmp_path / "a.py").write_text("x = 1\nx = 2\nz = 3\n")
    assert said("x", "y") == "broken: what it changes is in a.py 2 times, not once: 'x'"
    assert "0 times" in said("w", "y")
    assert "nothing changes" in said("z", "z")
    assert "no program" in said("z = 3", "z = (")
    Fault("fine", "text", "a.py", "z = 3", "z = 4", ()).apply(tmp_path)
    assert (tmp_path / "a.py").read_text() == "x = 1\nx = 2\nz = 4\n"


@pytest.mark.parametrize(
    ("status", "output", "verdict", "detail"),
    [
        (0, "1 passed", Verdict.NOT_CAUGHT, ""),
        (1, "FAILED t.py::test_a[b - c] - assert 0\n", Verdict.CAUGHT, "t.py::test_a[b - c]"),
        (1, "FAILED t.py::test_a\nERROR t.py::test_b - KeyError: 1\n", Verdict.CAUGHT, "t.py::test_a"),
        (1, "ERROR t.py::test_a - KeyError: 1\n", Verdict.INVALID, "pytest ends with 1: t.py::test_a - KeyError: 1"),
        (1, "FAILED t.py::test_a - NameError: x\n", Verdict.INVALID, "the program is broken: NameError: x"),
        (2, "ERROR t.py - SyntaxError: (\n", Verdict.INVALID, "pytest ends with 2: t.py - SyntaxError: ("),
        (2, "FAILED t.py::test_a - assert 0\n", Verdict.INVALID, "pytest ends with 2: no test failed"),
        (
            4,
            "ERROR: file or directory not found: t.py\n",
            Verdict.INVALID,
            "pytest ends with 4: file or directory not found: t.py",
        ),
        (5, "no tests ran", Verdict.INVALID, "pytest ends with 5: no test failed"),
    ],
)
def test_what_pytest_says(status: int, output: str, verdict: Verdict, detail: str) -> None:
    outcome = judge(status, output)
    assert (outcome.verdict, outcome.detail) == (verdict, detail)


def test_a_fault_is_made_in_a_copy(tmp_path: Path) -> None:
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "product.py").write_text("answer = 42\n")
    (tree / "test_product.py").write_text(
        "import os, product\n\n"
        f"def test_where(): assert product.__file__.startswith({str(tmp_path)!r})\n"
        "def test_other_programs(): assert product.__file__.startswith(os.environ['PYTHONPATH'].split(os.pathsep)[0])\n"
        "def test_answer(): assert product.answer == 42\n"
    )
    fault = Fault("another-answer", "text", "product.py", "42", "43", ("test_product.py",))
    found = attempt(fault, tree, seconds=60.0)
    assert (found.outcome.verdict, found.outcome.detail) == (Verdict.CAUGHT, "test_product.py::test_answer")
    assert (tree / "product.py").read_text() == "answer = 42\n"
    assert [path.name for path in tmp_path.iterdir()] == ["tree"]


def test_packages_from_elsewhere_are_noticed(tmp_path: Path) -> None:
    for name in ("jaxgen", "tests"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").touch()
    with pytest.raises(FaultError, match="would import"):
        check_imports(tmp_path)
    (tmp_path / "pallas_kernels").mkdir()
    (tmp_path / "pallas_kernels" / "__init__.py").touch()
    check_imports(tmp_path)


def test_a_run_that_takes_too_long_says_nothing(tmp_path: Path) -> None:
    fault = Fault("another-answer", "text", "product.py", "42", "43", ("test_product.py",))
    tree = tmp_path / "tree"
    tree.mkdir()
    (tree / "product.py").write_text("answer = 42\n")
    found = attempt(fault, tree, seconds=0.01)
    assert (found.outcome.verdict, found.outcome.detail) == (Verdict.INVALID, "no verdict within 0.01 s")


def test_a_copy_has_what_git_knows_and_links_as_links(tmp_path: Path) -> None:
    tree, copy = tmp_path / "tree", tmp_path / "copy"
    (tree / "below").mkdir(parents=True)
    for name in ("tracked", "deleted", "below/new", "ignored"):
        (tree / name).write_text(name)
    (tree / "link").symlink_to("tracked")
    (tree / ".gitignore").write_text("ignored\n")
    for command in (["init", "-q"], ["add", "tracked", "deleted", "link", ".gitignore"]):
        subprocess.run(["git", *command], cwd=tree, check=True)
    (tree / "deleted").unlink()
    copy_tracked(tree, copy)
    assert sorted(str(path.relative_to(copy)) for path in copy.rglob("*")) == [
        ".gitignore",
        "below",
        "below/new",
        "link",
        "tracked",
    ]
    assert (copy / "link").readlink() == Path("tracked")


def test_the_list_is_shown_by_room(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--list", "--only", "cache"]) == 0
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == sum(fault.room == "cache" for fault in FAULTS)
    assert all(line.startswith("cache ") for line in shown)
    with pytest.raises(SystemExit):
        main(["no-such-fault"])
    assert "no such fault: no-such-fault" in capsys.readouterr().err
