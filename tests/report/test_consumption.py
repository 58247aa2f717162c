from typing import Any

import pytest

from kdgat.cluster.usage import Asked, Usage
from kdgat.report import Document, Section
from kdgat.report.consumption import consumption_section, with_consumption
from kdgat.report.content import StageContent
from kdgat.run import StageRecord, StageState

ASKED = Asked(walltime_s=7200, memory_mib=98_304, cores=8)
PROFILE = {
    "fit": "training",
    "steps": 4,
    "seconds": 0.4,
    "phases": {"loading": 0.2, "transfer": 0.0, "forward": 0.08, "backward": 0.1, "optimizer": 0.004},
    "operators": [{"name": "aten::mm", "calls": 12, "seconds": 0.05, "bytes": 3 << 20}],
}


def stage(profiles: tuple[dict[str, Any], ...] = (), **usage: Any) -> StageContent:
    record = StageRecord(name="normal-seed0", stage="normal", scale="large", seed=0, state=StageState.FINISHED)
    fields = {"time": 0.0, "run": "a", "family": "can", "stage": "normal", "device": "cpu", "wall_s": 3600.0}
    return StageContent(record, {}, [], [Usage(**{**fields, **usage})], list(profiles))


def test_what_was_taken_stands_beside_what_was_asked_for() -> None:
    section = consumption_section(
        [stage(rss_mib=90_000, asked=ASKED, queue_s=60.0, startup_s=6.0, done=9, unit_s=0.25)]
    )
    assert section is not None
    (table,) = section.tables
    _, (row,) = table.texts
    assert row[2:] == ["01:00:00", "50%", "90000M", "92%", "00:01:00", "6.0 s", "0.25"]
    assert section.paragraphs == []


def test_the_memory_of_a_gpu_is_what_tensors_took_what_was_held_for_them_and_what_was_free() -> None:
    section = consumption_section([stage(device="V100", gpu_mib=3000, gpu_reserved_mib=4096, gpu_free_mib=512)])
    assert section is not None
    header, (row,) = section.tables[0].texts
    assert dict(zip(header, row, strict=True)).items() >= {
        ("GPU memory", "3000M"), ("held by torch", "4G"), ("free at least", "512M")
    }  # fmt: skip


def test_memory_that_was_asked_for_in_vain_is_named_with_the_fix() -> None:
    section = consumption_section([stage(rss_mib=11_000, asked=ASKED)])
    assert section is not None
    assert section.paragraphs == [
        "normal-seed0 asked for 96G and took 11000 MiB: resources.normal.adaptive=true asks for what is needed."
    ]


def test_a_model_that_waits_for_its_data_is_named() -> None:
    section = consumption_section([stage((PROFILE,))])
    assert section is not None
    assert section.paragraphs == [
        "normal-seed0, training: 50% of a step go into loading its batch, during which the model waits."
    ]
    header, (phases,) = section.tables[1].texts
    assert dict(zip(header, phases, strict=True)) == {
        "Fit": "normal-seed0, training", "Milliseconds": "100", "Loading": "50%", "Transfer": "0%", "Forward": "20%",
        "Backward": "25%", "Optimizer": "1%", "The rest": "4%",
    }  # fmt: skip
    ((operators,),) = section.folded.values()
    assert operators.texts[1] == [["aten::mm", "12", "50", "3.0"]]


def test_a_stage_that_waited_for_data_and_a_gpu_with_little_to_do_are_named() -> None:
    waits = consumption_section([stage(done=100, unit_s=1.0, loading_s=45.0, gpu_busy=0.3)])
    idle = consumption_section([stage(done=100, unit_s=1.0, loading_s=5.0, gpu_busy=0.3)])
    assert waits is not None
    assert idle is not None
    assert waits.paragraphs == [
        "normal-seed0 spent 45% of its training on loading batches, during which the model waits."
    ]
    assert idle.paragraphs == [
        "The GPU of normal-seed0 had a kernel to run 30% of the time, however small: several stages on one GPU give it"
        " more, or larger batches (training.batch_size), which train otherwise."
    ]


@pytest.mark.parametrize("stages", [[], [stage(wall_s=0.0)]])
def test_where_nothing_is_known_there_is_no_section(stages: list[StageContent]) -> None:
    document = Document("a run", [Section("scores", "Scores"), Section("provenance", "Provenance")])
    assert with_consumption(document, stages) is document


def test_the_section_comes_before_the_last_one() -> None:
    document = Document("a run", [Section("scores", "Scores"), Section("provenance", "Provenance")])
    found = with_consumption(document, [stage()])
    assert [section.identifier for section in found.sections] == ["scores", "consumption", "provenance"]
