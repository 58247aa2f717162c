"""`kdgat night`, as far as it goes without a server; tests/flows/test_nightly.py runs one."""

from pathlib import Path

import pytest

from flows.deployment.installation import Installation
from kdgat.cli.night import read_rule
from kdgat.registry import PromotionRule
from tests.support.command_line import kdgat


def test_a_rule_is_read_from_words() -> None:
    rule = read_rule(["accept=not_worse", "margin=0.001", "held_kinds=[suppression, dos]"])
    assert rule == PromotionRule(accept="not_worse", margin=0.001, held_kinds=("suppression", "dos"))
    assert read_rule([]) == PromotionRule()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("my_car",), "no folder {home}/data/my_car; did you mean 'my_cars'?"),
        (("my_cars", "--data-root", "/absent"), "/absent: data root not found"),
        (
            ("my_cars", "--inbox", "{home}/nowhere"),
            "--inbox {home}/nowhere: no such folder: correct it, or make it",
        ),
        (("my_cars", "--promotion", "marign=0.1"), "--promotion: unknown key 'marign': did you mean 'margin'?"),
        (("my_cars", "--promotion", "margin"), "--promotion margin: write KEY=VALUE"),
        (("my_cars", "--promotion", "margin=2"), "--promotion: margin=2: write 1.0 or less"),
        (("my_cars", "-O", "start_from=runs/a"), "config.start_from=runs/a: the night chooses it"),
        (("my_cars", "-O", "stages=[normal]"), "needs the stage evaluation"),
        (("my_cars", "--profile", "{home}/car.json"), "{home}/car.json is no file: make it with `kdgat profile`"),
        (("my_cars", "--walltime", "01:00:00"), "with --site local stages are processes of this machine"),
    ],
)
def test_mistakes_are_one_line_before_anything_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], expected: str
) -> None:
    monkeypatch.setenv("KDGAT_HOME", str(tmp_path))
    (tmp_path / "data" / "my_cars").mkdir(parents=True)
    status, out, err = kdgat("night", *(word.format(home=tmp_path) for word in words))
    assert (status, out) == (1, "")
    assert err.startswith("error: ")
    assert expected.format(home=tmp_path) in err
    assert err.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_without_paths_it_is_the_night_of_the_deployment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KDGAT_HOME", str(tmp_path / "home"))
    Installation.find({"KDGAT_HOME": str(tmp_path / "home"), "KDGAT_DATA_ROOT": str(tmp_path / "elsewhere")}).write()
    (tmp_path / "elsewhere").mkdir()
    assert f"no folder {tmp_path}/elsewhere/hcrl_sa" in kdgat("night", "hcrl_sa").stderr
