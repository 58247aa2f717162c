"""Write files of the first schema, as tests need them."""

from collections.abc import Iterable
from pathlib import Path

import h5py
import numpy as np

from kdgat.lap.instances.records import Record

BIG = 1e6  # what such files have where a pair is forbidden


def write_schema1(path: Path, records: Iterable[Record], leave_out: Iterable[str] = ()) -> Path:
    """Append the records one by one, as the files came to be."""
    floats, whole, text = h5py.vlen_dtype(np.float64), h5py.vlen_dtype(np.int32), h5py.string_dtype("utf-8")
    kinds = {"C": floats, "u": floats, "v": floats, "rows": whole, "cols": whole, "family": text, "tag": text}
    kinds |= {"cost": np.float64, "n": np.int32, "noise_std": np.float32}
    with h5py.File(path, "w") as file:
        for name in set(kinds) - set(leave_out):
            file.create_dataset(name, shape=(0,), maxshape=(None,), dtype=kinds[name])
        for place, record in enumerate(records):
            cost = record.cost if record.mask is None else np.where(record.mask, BIG, record.cost)
            values = {"C": cost.ravel(), "u": record.u, "v": record.v, "rows": record.rows, "cols": record.columns}
            values |= {"cost": record.optimum, "n": record.n, "family": record.family}
            values |= {"noise_std": record.instance.noise_std, "tag": "old"}
            for name in file:
                file[name].resize((place + 1,))
                file[name][place] = values[name]
            file.attrs["records"] = place + 1
    return path
