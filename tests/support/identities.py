"""The names of all run directories of every preset, with inputs that are always the same.

`python -m tests.support.identities` writes them anew. Do that only for a change that is meant to make finished stages
be trained again, and say so in its commit: everybody's runs begin anew then.
"""

import hashlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import kdgat
from kdgat.family import find_family
from kdgat.run import PlannedStage
from kdgat.run.plan import make_spec
from kdgat.stage import StageInput, StageSpec

GOLDEN = Path(__file__).with_suffix(".json")
GIVEN: dict[str, dict[str, Any]] = {
    "can": {"data": {"dataset": "synthetic", "data_root": "data"}},
    "lap": {},
    "trees": {},
}
PACKAGE = Path(kdgat.__file__).parent
PRESETS = {name: sorted(path.stem for path in (PACKAGE / name / "presets").glob("*.yaml")) for name in GIVEN}


def directory_names(family_name: str, preset: str) -> dict[str, str]:
    """Return the run directory's name of every stage that a preset plans, by name in the plan."""
    family = find_family(family_name)
    run = family.plan(family.config.from_preset(preset, GIVEN[family_name]))
    return {planned.name: _spec(family_name, planned).directory_name() for planned in run.plan}


def _spec(family: str, planned: PlannedStage) -> StageSpec:
    inputs = {
        name: StageInput(path=name, sha256=hashlib.sha256(f"{one.stage}/{one.artifact}".encode()).hexdigest())
        for name, one in planned.inputs.items()
    }
    return make_spec(family, replace(planned, inputs={}), {}, inputs)


if __name__ == "__main__":
    names = {family: {preset: directory_names(family, preset) for preset in PRESETS[family]} for family in GIVEN}
    GOLDEN.write_text(json.dumps(names, indent=1) + "\n", encoding="utf-8")
