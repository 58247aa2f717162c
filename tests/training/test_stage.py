"""Several fits in one stage."""

from pathlib import Path

from kdgat.stage import Finished, RunDirectory
from kdgat.training import SeveralFits


def test_each_fit_has_a_folder_and_a_name_of_its_own(tmp_path: Path) -> None:
    fits = SeveralFits(RunDirectory(tmp_path))
    assert fits.directory_of("small").path == tmp_path / "weights/small"
    assert fits.directory_of("small").path.is_dir()  # a stage that is resumed asks again
    small = Finished(metrics={"loss": 2.0}, artifacts={"weights": "weights/small/weights.safetensors"})
    large = Finished(metrics={"loss": 1.0}, artifacts={"weights": "weights.safetensors", "model": "model.json"})
    fits.add("small", small)
    fits.add("large", large, {"rows": 3.0})
    assert fits.metrics == {"small_loss": 2.0, "large_rows": 3.0}
    assert fits.artifacts == {
        "weights-small": "weights/small/weights.safetensors",
        "weights-large": "weights.safetensors",
    }
