"""Caches of other programs are no recordings: what they were made from is asked for."""

import pickle
from pathlib import Path

import pytest

from kdgat.canbus import RecordingError, read_recording
from kdgat.canbus.folders import survey_folder


@pytest.mark.parametrize("name", ["graphs.pkl", "train_01__graphs.pt", "vgae.ckpt"])
def test_a_cache_is_refused_with_what_to_give_instead(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(pickle.dumps([1.0]))
    with pytest.raises(RecordingError, match="not taken over: give the recordings that it was made from"):
        read_recording(tmp_path / name)
    content = survey_folder(tmp_path)
    assert (content.recordings, content.passed_over) == ([], {})
    assert list(content.notes())[-1] == (
        f"{name} holds Python objects of another program, which are not taken over: recordings are needed"
    )
