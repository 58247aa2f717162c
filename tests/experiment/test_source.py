"""A file of one's own is imported as it is now; what was planned keeps the text that it was planned with."""

import inspect
from pathlib import Path

import pytest

from kdgat.experiment.config import ExperimentConfig
from kdgat.experiment.declaration import Experiment, ExperimentError
from kdgat.experiment.plan import plan_experiment
from kdgat.experiment.source import Source, load_experiment, read_source


def loaded(path: Path) -> Experiment:
    return load_experiment(read_source(str(path)))


FILE = """
from lightning import LightningModule
from kdgat.experiment import Experiment
{top}

class Net(LightningModule):
    pass


def data():
    {within}
    return sizes_of_rings.splits()


experiment = Experiment(Net, data)
"""
BESIDE = "def splits():\n    return [{}], [{}]\n"


def write(folder: Path, top: str, within: str) -> tuple[Path, Path]:
    """Write a file and the module beside it that it imports."""
    file, beside = folder / "net.py", folder / "sizes_of_rings.py"
    file.write_text(FILE.format(top=top, within=within))
    beside.write_text(BESIDE.format(1, 2))
    return file, beside


@pytest.mark.parametrize(("top", "within"), [("import sizes_of_rings", ""), ("", "import sizes_of_rings")])
def test_what_was_planned_is_what_is_trained(tmp_path: Path, top: str, within: str) -> None:
    file, beside = write(tmp_path, top, within)
    planned = plan_experiment(ExperimentConfig.from_preset("quick", {"source": str(file)}))[0]
    beside.write_text(BESIDE.format(33, 44))
    assert loaded(file).data() == ([33], [44])
    assert load_experiment(Source.of(planned.execution)).data() == ([1], [2])
    file.unlink()
    beside.unlink()
    assert load_experiment(Source.of(planned.execution)).data() == ([1], [2])


def test_a_module_of_a_computed_name_is_found_beside_the_file(tmp_path: Path) -> None:
    file, _ = write(tmp_path, "", "sizes_of_rings = __import__('sizes_of_' + 'rings')")
    assert loaded(file).data() == ([1], [2])


def test_what_lies_beside_the_file_is_found(tmp_path: Path) -> None:
    file, _ = write(tmp_path, "from pathlib import Path", "return Path(__file__).with_name('sizes.txt').read_text()")
    (tmp_path / "sizes.txt").write_text("7")
    assert loaded(file).data() == "7"


def test_a_module_of_a_package_is_read_with_what_it_imports(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "ring_nets"
    (package / "inner").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "inner" / "__init__.py").write_text("")
    (package / "inner" / "losses.py").write_text("def half(x):\n    return x / 2\n")
    net = source.read_text().replace("import torch\n", "import torch\nfrom .inner.losses import half\n", 1)
    (package / "net.py").write_text(net.replace("return loss", "return half(loss)"))
    monkeypatch.syspath_prepend(tmp_path)
    read = read_source("ring_nets.net:experiment")
    assert {Path(path).relative_to(tmp_path).as_posix() for path, _ in read.files} == {
        "ring_nets/net.py", "ring_nets/__init__.py", "ring_nets/inner/__init__.py", "ring_nets/inner/losses.py",
    }  # fmt: skip
    assert load_experiment(read).stages[0].name == "small"


@pytest.mark.parametrize(
    ("text", "what"),
    [("x = 1\n", "no Experiment"), ("def (:\n", "line 1")],
)
def test_a_file_without_an_experiment_is_refused(tmp_path: Path, text: str, what: str) -> None:
    (tmp_path / "empty_file.py").write_text(text)
    with pytest.raises(ExperimentError, match=what):
        loaded(tmp_path / "empty_file.py")


def test_what_is_not_there_is_refused_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(ExperimentError, match=r"nothing\.py is no file"):
        loaded(tmp_path / "nothing.py")
    with pytest.raises(ExperimentError, match="no module no_such_package"):
        read_source("no_such_package.nets:experiment")


def test_what_reads_the_source_text_reads_what_was_planned(source: Path) -> None:
    text = source.read_text()
    read = read_source(str(source))
    source.write_text(text.replace("mse_loss", "l1_loss"))
    assert "mse_loss" in inspect.getsource(load_experiment(read).module)


def test_a_file_may_begin_with_a_mark_of_its_bytes(source: Path) -> None:
    source.write_text(source.read_text(), encoding="utf-8-sig")
    assert loaded(source).stages[0].name == "small"
