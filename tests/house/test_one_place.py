"""What one module does for all others: a second one would have to be changed with it."""

import ast
from collections.abc import Callable

import pytest

from tests.support.paths import ROOT


def _takes(name: str, module: str) -> Callable[[ast.AST], bool]:
    """Whether a statement imports this name."""
    return lambda node: (
        isinstance(node, ast.ImportFrom) and node.module == module and name in {one.name for one in node.names}
    )


def _lowers(node: ast.AST) -> bool:
    """Whether an expression is a call of ``lower``; that of a text has no arguments."""
    return isinstance(node, ast.Call) and getattr(node.func, "attr", "") == "lower" and bool(node.args)


@pytest.mark.parametrize(
    ("does", "word", "place"),
    [
        pytest.param(_takes("unpack", "jaxgen.runner.packer"), "unpack", "runner/step.py", id="unpacks a plan"),
        pytest.param(_takes("fold_layers", "jaxgen.models.layer_stack"), "fold_layers", "models/walk.py", id="walks"),
        pytest.param(_lowers, ".lower(", "runner/program.py", id="lowers a program"),
    ],
)
def test_one_module_does_it(does: Callable[[ast.AST], bool], word: str, place: str) -> None:
    texts = {path: path.read_text(encoding="utf-8") for path in (ROOT / "jaxgen").rglob("*.py")}
    found = [path for path, text in texts.items() if word in text and any(map(does, ast.walk(ast.parse(text))))]
    assert [path.relative_to(ROOT / "jaxgen").as_posix() for path in found] == [place]
