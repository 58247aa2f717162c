from pathlib import Path
from typing import Any, cast

import pytest

from kdgat.report.content import read_run
from kdgat.run.directory import OutputDirectory, RunIndex, StageRecord, StageState
from kdgat.stage import Finished, RunDirectory, StageSpec


@pytest.mark.parametrize("text", [b"", b'{"attempts": [', b"\0" * 40, b"[]"])
def test_a_damaged_provenance_is_named_as_missing_and_the_rest_is_shown(text: bytes, tmp_path: Path) -> None:
    output = OutputDirectory(tmp_path)
    directory = RunDirectory(output.stages_path / "line").create(StageSpec(family="toy", stage="line", seed=0))
    directory.write_outcome(Finished())
    directory.provenance_path.write_bytes(text)
    record = StageRecord(name="evaluation", stage="evaluation", scale="small", seed=0, state=StageState.FINISHED)
    record = record.model_copy(update={"directory": str(directory.path.relative_to(output.path))})
    output.write_index(RunIndex(family="toy", config={}, stages=[record]))
    output.results_path.write_text("{}")
    found = read_run(tmp_path, lambda path: cast(Any, None))
    assert [stage.attempts for stage in found.stages] == [[]]
    (sentence,) = found.missing
    assert "provenance.json is damaged" in sentence
    assert "remove it" in sentence
