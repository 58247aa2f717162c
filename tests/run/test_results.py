import json
from pathlib import Path

import pytest

from kdgat.run import RunError
from kdgat.run.results import RunResults, origin


class Example(RunResults):
    family: str = "example"
    values: list[float]


def example() -> Example:
    return Example(**origin({"preset": "quick"}), seeds=[0], values=[1.0, 2.5])


def test_results_are_read_as_they_were_written(tmp_path: Path) -> None:
    example().write(tmp_path / "results.json")
    found = Example.read(tmp_path / "results.json")
    assert (found.values, found.preset, found.family) == ([1.0, 2.5], "quick", "example")
    assert '"values": [ 1.0, 2.5 ]' in (tmp_path / "results.json").read_text()


def test_what_no_json_can_hold_is_refused_before_the_file_is_touched(tmp_path: Path) -> None:
    example().write(tmp_path / "results.json")
    with pytest.raises(ValueError, match="nan"):
        example().model_copy(update={"values": [float("nan")]}).write(tmp_path / "results.json")
    assert Example.read(tmp_path / "results.json").values == [1.0, 2.5]


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"{", "is damaged"),
        (b"\xff\xfe", "is damaged"),
        (b"[]", "is not what this kdgat writes"),
        (b'{"schema_version": 2}', "written by a newer kdgat .*: update kdgat"),
        (b'{"schema_version": 1, "created": "", "seeds": [0]}', "values: required"),
    ],
)
def test_a_damaged_file_is_named_with_what_is_wrong(tmp_path: Path, content: bytes, reason: str) -> None:
    (tmp_path / "results.json").write_bytes(content)
    with pytest.raises(RunError, match=reason) as raised:
        Example.read(tmp_path / "results.json")
    assert str(tmp_path / "results.json") in str(raised.value)


def test_a_missing_file_is_named_with_the_fix(tmp_path: Path) -> None:
    with pytest.raises(RunError, match="does not exist: run the training command"):
        Example.read(tmp_path / "results.json")


def test_the_schema_describes_the_file(capsys: pytest.CaptureFixture[str]) -> None:
    Example.print_schema()
    assert set(json.loads(capsys.readouterr().out)["properties"]) >= {"family", "seeds", "values"}
