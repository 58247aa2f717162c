"""Nothing but a change that is meant to may give a stage another identity: its users would train it again."""

import json

import pytest

from tests.support.identities import GIVEN, GOLDEN, PRESETS, directory_names


@pytest.mark.parametrize(("family", "preset"), [(family, preset) for family in GIVEN for preset in PRESETS[family]])
def test_run_directories_of_every_preset_keep_their_names(family: str, preset: str) -> None:
    assert directory_names(family, preset) == json.loads(GOLDEN.read_text(encoding="utf-8"))[family][preset]
