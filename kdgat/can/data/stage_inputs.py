"""What the stages of the family share: mapping stores."""

from kdgat.can.data.pool import PooledStores
from kdgat.canbus.features.schema import SCHEMA
from kdgat.graphs.store import GraphStore
from kdgat.stage.directory import input_path
from kdgat.stage.directory import RunDirectory
from kdgat.stage.spec import StageSpec


def open_pool(spec: StageSpec, directory: RunDirectory, required: str, optional: str) -> PooledStores:
    """Map a store of recorded windows and, where there is one with windows in it, its injected companion."""
    paths = {required: input_path(spec, directory, required)}
    if optional in spec.inputs:
        path = input_path(spec, directory, optional)
        if GraphStore.open(path, SCHEMA).num_graphs:
            paths[optional] = path
    return PooledStores.open(paths)
