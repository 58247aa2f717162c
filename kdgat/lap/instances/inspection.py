"""State what a file of assignment problems holds, and whether its labels are right."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from kdgat.assignment import CertificateError
from kdgat.base import UserError
from kdgat.lap.instances.label import Problem, check_assignment, check_label
from kdgat.lap.instances.records import Record
from kdgat.lap.instances.schema1 import Schema1Store, open_store
from kdgat.lap.instances.store import SCHEMA_VERSION


@dataclass
class FileInspection:
    """What a file holds; `problems` has one line for each record whose costs or labels are wrong."""

    path: Path
    schema_version: int
    storage: str
    written_with: str
    num_bytes: int
    num_records: int
    counts: dict[tuple[str, int], int]  # by family and size
    num_duplicates: int | None  # unknown for the first schema
    num_checked: int = 0
    problems: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Return plain data."""
        return {
            "path": str(self.path),
            "schema_version": self.schema_version,
            "storage": self.storage,
            "written_with": self.written_with,
            "num_bytes": self.num_bytes,
            "num_records": self.num_records,
            "counts": [
                {"family": family, "size": size, "count": count} for (family, size), count in self.counts.items()
            ],
            "num_duplicates": self.num_duplicates,
            "num_checked": self.num_checked,
            "problems": self.problems,
        }


def inspect_store(path: Path) -> FileInspection:
    """Count the records of a file by family and size. UserError if it cannot be read."""
    store = open_store(path)
    pairs = zip(store.families(), (int(size) for size in store.sizes()), strict=True)
    is_first = isinstance(store, Schema1Store)
    return FileInspection(
        path=path,
        schema_version=1 if is_first else SCHEMA_VERSION,
        storage=store.storage,
        written_with="unknown" if isinstance(store, Schema1Store) else store.written_with,
        num_bytes=path.stat().st_size,
        num_records=len(store),
        counts=dict(sorted(Counter(pairs).items())),
        num_duplicates=None if isinstance(store, Schema1Store) else len(store) - len(set(store.contents())),
    )


def check_records(
    inspection: FileInspection, sample: int | None = None, *, on_record: Callable[[], None] | None = None
) -> None:
    """Check costs against their hash and labels against the costs, for `sample` records or all.

    The sample is spread evenly over the file. A label is right if its matching has the cost that is noted and its
    duals are feasible and reach that cost: weak duality proves it, no solver is asked. Notes what is wrong in the
    inspection.
    """
    store = open_store(inspection.path)
    count = len(store) if sample is None else min(sample, len(store))
    for index in np.unique(np.linspace(0, len(store) - 1, count).round().astype(int)):
        before = store.num_relabelled if isinstance(store, Schema1Store) else 0
        try:
            record = store.record(int(index))
            if isinstance(store, Schema1Store) and store.num_relabelled > before:
                inspection.problems.append(
                    f"record {index} ({record.family}, n={record.n}): no labels, or wrong ones; kdgat lap merge solves"
                )
            else:
                check_record(record, f"record {index} ({record.family}, n={record.n})")
        except (UserError, CertificateError) as error:
            inspection.problems.append(str(error).removeprefix(f"{inspection.path}: "))
        inspection.num_checked += 1
        if on_record is not None:
            on_record()


def check_record(record: Record, name: str) -> None:
    """Raise CertificateError if the label does not prove its optimum."""
    problem = Problem(name, record.cost, record.mask, record.u, record.v, record.optimum)
    check_label(problem)
    check_assignment(problem, "the label", record.rows, record.columns)
