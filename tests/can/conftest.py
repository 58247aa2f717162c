"""Recordings and a run of one small network that tests read and do not change."""

from pathlib import Path

import pytest

from kdgat.canbus.simulation import write_dataset
from kdgat.run import OutputDirectory
from tests.can.small_runs import small_config, train_here


@pytest.fixture(scope="session")
def data_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("data")
    write_dataset(root, "synthetic", "tiny")
    return root


@pytest.fixture(scope="session")
def trained_run(data_root: Path, tmp_path_factory: pytest.TempPathFactory) -> OutputDirectory:
    return train_here(tmp_path_factory.mktemp("trained"), small_config(data_root))
