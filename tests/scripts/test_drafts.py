"""What drafts bring can be measured, and an answer that they change is no measurement."""

import pytest

from scripts.measure.drafts import compare, texts


def test_the_ratio_is_that_of_the_rates(capsys: pytest.CaptureFixture[str]) -> None:
    compare("edits", lambda: ({"a": [1, 2]}, 1.0), lambda: ({"a": [1, 2]}, 0.5), 3)
    assert capsys.readouterr().out == "edits: 2.0 -> 4.0 tokens/s, 2.00 (2.00 to 2.00)\n"


def test_another_answer_is_an_error() -> None:
    with pytest.raises(SystemExit, match="edits: drafts changed an answer"):
        compare("edits", lambda: ({"a": [1, 2]}, 1.0), lambda: ({"a": [1, 3]}, 0.5), 1)


def test_there_are_texts_of_each_kind() -> None:
    assert all(prompts for prompts in texts().values())
