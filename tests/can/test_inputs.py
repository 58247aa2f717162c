"""Recordings as inputs of `prepare`."""

from pathlib import Path

from kdgat.can.config import DataConfig
from kdgat.can.inputs import recording_inputs
from kdgat.can.simulation.synthetic import write_dataset


def test_every_recording_is_an_input_whatever_is_held_out(tmp_path: Path) -> None:
    folder = write_dataset(tmp_path, "synthetic", "tiny")  # DoS-alder both trains and tests
    paths = {str(path) for path in folder.iterdir()}
    for hold_out in ((), ("alder",)):
        inputs = recording_inputs(DataConfig(dataset="synthetic", data_root=str(tmp_path), hold_out=hold_out))
        assert {source.path for source in inputs.values()} == paths
    names = [key.removeprefix("test/held_out/") for key in inputs if key.startswith("test/")]
    assert {"attack-free-alder", "test_01_known_vehicle_known_attack/DoS-alder", "train_02_with_attacks/DoS-alder"} <= {
        *names
    }
