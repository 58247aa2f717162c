"""A file of one's own is imported as it is now, and a digest moves with what a result depends on, and only then."""

import sys
from pathlib import Path

import pytest

from kdgat.experiment.code import code_digest
from kdgat.experiment.declaration import ExperimentError
from kdgat.experiment.source import load_experiment, read_source


def digests(source: Path) -> tuple[str, str]:
    read = read_source(str(source))
    experiment = load_experiment(read)
    return code_digest(experiment.module, read), code_digest(experiment.data, read)


def changed(source: Path, old: str, new: str) -> tuple[bool, bool]:
    """Change the file, and return whether the digests of module and data moved."""
    before = digests(source)
    text = source.read_text()
    assert old in text
    source.write_text(text.replace(old, new))
    after = digests(source)
    return before[0] != after[0], before[1] != after[1]


def test_comments_and_docstrings_move_no_digest(source: Path) -> None:
    assert changed(source, '"""Sums of', '# a comment\n"""Other sums of') == (False, False)


def test_a_change_of_the_module_moves_its_digest_alone(source: Path) -> None:
    assert changed(source, "mse_loss", "l1_loss") == (True, False)


def test_a_change_of_what_the_data_function_calls_moves_its_digest_alone(source: Path) -> None:
    assert changed(source, "x.sum()", "x.mean()") == (False, True)


def test_stages_and_settings_are_no_part_of_the_digests(source: Path) -> None:
    assert changed(source, '"max_epochs": 2', '"max_epochs": 5') == (False, False)


def test_a_module_beside_the_file_is_part_of_what_imports_from_it(source: Path) -> None:
    (source.parent / "losses_of_rings.py").write_text("def mse_loss(a, b):\n    return ((a - b) ** 2).mean()\n")
    source.write_text(
        source.read_text()
        .replace("import torch\n", "import torch\nfrom losses_of_rings import mse_loss\n", 1)
        .replace("torch.nn.functional.mse_loss", "mse_loss")
    )
    before = digests(source)
    (source.parent / "losses_of_rings.py").write_text("def mse_loss(a, b):\n    return (a - b).abs().mean()\n")
    after = digests(source)
    assert (before[0] != after[0], before[1] != after[1]) == (True, False)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("        loss = self.error(batch)", "        import losses_of_rings\n        loss = self.error(batch)"),
        ("import torch\n", "import torch\ntry:\n    import losses_of_rings as mse\nexcept ImportError:\n    pass\n"),
    ],
)
def test_what_is_tried_or_imported_within_a_function_is_part_of_it(source: Path, old: str, new: str) -> None:
    beside = source.parent / "losses_of_rings.py"
    beside.write_text("mse = 1\n")
    source.write_text(source.read_text().replace(old, new, 1).replace("return loss", "return mse and loss"))
    before = digests(source)
    beside.write_text("mse = 22\n")
    after = digests(source)
    assert (before[0] != after[0], before[1] != after[1]) == (True, False)


def test_a_setting_of_torch_at_the_top_is_part_of_all(source: Path) -> None:
    assert changed(source, "\n\nclass Net", "\ntorch.set_flush_denormal(False)\n\nclass Net") == (True, True)


TOP = "class Net(LightningModule):"
DATA = "def data(graphs"


@pytest.mark.parametrize(
    ("top", "data", "old", "new"),
    [
        ("from functools import partial\n", "    partial(data, 24),\n    stages", "data, 24", "data, 12"),
        ("NETS = []\n\ndef register(made):\n    NETS.append(made)\n    return made\n\n@register\nclass Other:\n"
         "    size = 1\n", "    data,\n    stages", "size = 1", "size = 2"),
        ("SIZES = {}\nfor key in ('a', 'b'):\n    SIZES[key] = 2\n", "    data,\n    stages", "= 2", "= 3"),
        ("def sum(x):\n    return x + 1\n", "    data,\n    stages", "x + 1", "x + 2"),
    ],
    ids=["arguments of a partial", "a register", "a loop", "a shadowed builtin"],
)  # fmt: skip
def test_what_changes_a_result_from_afar_moves_the_digest_of_data(
    source: Path, top: str, data: str, old: str, new: str
) -> None:
    text = source.read_text().replace("    data,\n    stages", data).replace(TOP, f"{top}\n\n{TOP}")
    source.write_text(text.replace("y=x.sum().view(1)", "y=sum(x).sum().view(1)"))
    assert changed(source, old, new)[1]


def test_decorators_hide_no_code(source: Path) -> None:
    source.write_text(source.read_text().replace(DATA, f"@torch.no_grad()\n{DATA}"))
    assert changed(source, "graphs // 2], rings", "graphs // 3], rings")[1]


def test_all_that_a_star_imports_is_part_of_it(source: Path) -> None:
    beside = source.parent / "losses_of_rings.py"
    beside.write_text("factor = 1\n")
    text = source.read_text().replace("import torch\n", "import torch\nfrom losses_of_rings import *\n", 1)
    source.write_text(text.replace("return loss", "return factor * loss"))
    before = digests(source)
    beside.write_text("factor = 22\n")
    assert digests(source)[0] != before[0]


@pytest.mark.parametrize("function", ["lambda batch: batch", "(lambda: lambda batch: batch)()"])
def test_what_has_no_name_is_refused(source: Path, function: str) -> None:
    source.write_text(source.read_text() + f"\n\nNAMELESS = {function}\n")
    read = read_source(str(source))
    module = load_experiment(read).module
    with pytest.raises(ExperimentError, match="write a def or a class at the top"):
        code_digest(vars(sys.modules[module.__module__])["NAMELESS"], read)
