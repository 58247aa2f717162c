import json
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from kdgat.cli.config import described
from kdgat.family import family_config, find_family
from tests.support.command_line import Answer

NEEDED = {"can": ("--dataset", "hcrl_sa", "--data-root", "data"), "lap": (), "trees": ()}


def origins(text: str) -> dict[str, str]:
    """Return what stands behind the keys of a printed configuration; of a key in several sections, the first."""
    found: dict[str, str] = {}
    for line in text.splitlines():
        key, _, rest = line.strip().partition(":")
        if " # " in rest:
            found.setdefault(key, rest.rpartition(" # ")[2])
    return found


@pytest.mark.parametrize("family", NEEDED)
def test_what_is_shown_is_a_file_that_means_the_same(family: str, tmp_path: Path, kdgat: Callable[..., Answer]) -> None:
    words = (family, *NEEDED[family], "--preset", "full", "--seeds", "4", "-O", "training.max_epochs=3")
    shown = kdgat("config", "show", *words, status=0).stdout
    path = tmp_path / "my.yaml"
    path.write_text(shown)
    again = kdgat("config", "show", family, "--config", path, status=0).stdout
    assert yaml.safe_load(again) == yaml.safe_load(shown)
    config = family_config(find_family(family), None, {}, None, None, path)
    assert (config.preset, config.seeds, config.training.max_epochs) == ("full", (4,), 3)


@pytest.mark.parametrize("family", NEEDED)
def test_what_is_explained_is_a_file_that_means_the_same(
    family: str, tmp_path: Path, kdgat: Callable[..., Answer]
) -> None:
    words = (family, *NEEDED[family], "--preset", "full", "--seeds", "4")
    path = tmp_path / "my.yaml"
    path.write_text(kdgat("config", "show", *words, "--explain", status=0).stdout)
    assert "  # passes over the training data at most\n" in path.read_text()
    plain = kdgat("config", "show", *words, status=0).stdout
    again = kdgat("config", "show", family, "--config", path, status=0).stdout
    assert yaml.safe_load(again) == yaml.safe_load(plain)


def test_each_value_says_where_it_comes_from(tmp_path: Path, kdgat: Callable[..., Answer]) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("training: {weight_decay: 0.5, gradient_clip: 2.0}\nwindows:\n  size: 64\n")
    words = ("--config", path, "--dataset", "x", "--seeds", "1", "-O", "training.gradient_clip=3")
    found = origins(kdgat("config", "show", "can", *words, status=0).stdout)
    assert found["weight_decay"] == str(path)
    assert found["gradient_clip"] == "-O"
    assert found["dataset"] == "option"
    assert found["seeds"] == "option"
    assert found["batch_size"] == "preset quick"
    assert found["warmup_fraction"] == "default"


def test_a_preset_that_is_given_wins_over_the_files_and_the_files_over_the_usual_one(
    tmp_path: Path, kdgat: Callable[..., Answer]
) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("preset: tutorial\n")

    def shown(*words: object) -> tuple[str, str]:
        text = kdgat("config", "show", "trees", *words, status=0).stdout
        return yaml.safe_load(text)["preset"], origins(text)["preset"]

    assert shown() == ("quick", "default")
    assert shown("--config", path) == ("tutorial", str(path))
    assert shown("--config", path, "--preset", "quick") == ("quick", "option")
    assert "quick if none is named." in " ".join(kdgat("config", "show", "trees", "--help", status=0).stdout.split())


@pytest.mark.parametrize("words", [(), ("--preset", "quick")], ids=["of the file", "given"])
def test_an_estimate_names_the_command_that_trains_what_it_is_for(
    words: tuple[str, ...], tmp_path: Path, kdgat: Callable[..., Answer]
) -> None:
    (tmp_path / "my.yaml").write_text("preset: tutorial\n")
    given = ("--config", str(tmp_path / "my.yaml"), *words)
    answer = kdgat("estimate", "trees", *given, "--json", status=0, folder=tmp_path)
    expected = ["kdgat", "train", "trees", *given, "--out", "runs/trees"]
    assert json.loads(answer.stdout)["command"].split() == expected


def test_a_section_that_a_layer_sets_as_a_whole_is_that_layers() -> None:
    [_, line] = described({"a": {"b": 1}}, {"first": ["a.b"], "second": ["a"]})
    assert line.endswith("# second")


def test_paths_in_a_file_are_taken_from_its_folder(tmp_path: Path, kdgat: Callable[..., Answer]) -> None:
    folder = tmp_path / "study"
    folder.mkdir()
    (folder / "my.yaml").write_text("data: {dataset: mine, data_root: recordings}\n")
    config = family_config(find_family("can"), "quick", {}, None, None, folder / "my.yaml")
    assert config.model_dump()["data"]["data_root"] == str(folder / "recordings")


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"training: {max_epoch: 3}\n", "did you mean 'max_epochs'"),
        (b"training: {\n", "my.yaml is no YAML: "),
        ("training: {}".encode("utf-16"), "is text in UTF-16: save it as UTF-8"),
        (b"preset: quik\n", "choose one of"),
    ],
    ids=["key", "cut", "utf-16", "preset"],
)
def test_a_wrong_file_is_one_line_with_the_fix(
    content: bytes, words: str, tmp_path: Path, kdgat: Callable[..., Answer]
) -> None:
    path = tmp_path / "my.yaml"
    path.write_bytes(content)
    answer = kdgat("plan", "lap", "--config", path, status=1)
    assert words in answer.stderr
    assert f"--config {path}" in answer.stderr
    assert answer.stderr.count("\n") == 1


def test_a_mistake_beside_a_file_is_not_said_to_be_in_it(tmp_path: Path, kdgat: Callable[..., Answer]) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("seeds: [0]\n")
    for words in (("-O", "training.max_epochs=0"), ("--preset", "quik")):
        assert str(path) not in kdgat("plan", "lap", "--config", path, *words, status=1).stderr


def test_what_training_requires_may_stand_in_the_file(tmp_path: Path, kdgat: Callable[..., Answer]) -> None:
    path = tmp_path / "my.yaml"
    path.write_text(f"data: {{dataset: mine, data_root: '{tmp_path}'}}\n")
    answer = kdgat("train", "can", "--config", path, "--out", tmp_path / "out", status=1)
    assert "mine" in answer.stderr, "it is read, and the dataset is looked for"


@pytest.mark.parametrize("content", ["training:\n", "data:\n", "training: 3\n", "data: [1]\n", "windows:\n"])
def test_a_section_without_keys_is_no_traceback(tmp_path: Path, kdgat: Callable[..., Answer], content: str) -> None:
    path = tmp_path / "my.yaml"
    path.write_text(content)
    for words in ((), ("--dataset", "x", "--data-root", tmp_path)):
        answer = kdgat("plan", "can", "--config", path, *words)
        assert answer.status in (0, 1)
        assert answer.status == 0 or (answer.stderr.startswith("error: ") and answer.stderr.count("\n") == 1)
