"""Store of labelled assignment problems: one HDF5 file, with the matrices in it or with their seeds alone.

Every key is a column with one entry per record, so that `len(file["n"])` is the number of records. `C`, `u`, `v`,
`rows` and `cols` have entries of any length, so that sizes may be mixed. `dense` files hold `C` as float64: a matrix of
somebody's own must come back as it was, and its label proves the optimum of exactly these numbers. `seeded` files hold
no `C`: it is generated again when read and compared with a hash of its content, which makes 34.6 GB about 0.1 GB.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any, Final, Literal

import h5py
import numpy as np
from numpy.typing import NDArray

from kdgat.base import UserError, hdf5, sync_to_disk
from kdgat.base.files import remove_tree, replacing, temporary_path
from kdgat.base.kept import refuse_newer
from kdgat.base.memory import require_memory
from kdgat.lap.instances.distributions import DISTRIBUTIONS, Instance, generate
from kdgat.lap.instances.records import (
    HASH_BYTES,
    Record,
    StoredRecord,
    content_hash,
    decode_parameters,
    label,
    split_costs,
    to_stored,
)
from kdgat.stage import package_version

Storage = Literal["dense", "seeded"]
STORAGES: Final = ("seeded", "dense")

FORMAT_KEY: Final = "format"
FORMAT: Final = "kdgat assignment problems"
SCHEMA_VERSION_KEY: Final = "schema_version"
SCHEMA_VERSION: Final = 2
STORAGE_KEY: Final = "storage"
NUM_RECORDS_KEY: Final = "records"
WRITTEN_WITH_KEY: Final = "written_with"

FILE_FORMAT: Final = "v110"  # the first whose metadata have checksums: older ones, damaged, can crash HDF5

N, SEED, FAMILY, PARAMETERS, CONTENT = "n", "seed", "family", "parameters", "content"
NOISE_STD, TAG, OPTIMUM, COSTS = "noise_std", "tag", "cost", "C"
U, V, ROWS, COLUMNS = "u", "v", "rows", "cols"

_TEXT: Final = h5py.string_dtype()
_KINDS: Final[dict[str, Any]] = {
    N: np.dtype("<i4"),
    SEED: np.dtype("<u8"),
    FAMILY: _TEXT,
    PARAMETERS: _TEXT,
    NOISE_STD: np.dtype("<f8"),
    TAG: _TEXT,
    CONTENT: np.dtype(f"S{2 * HASH_BYTES}"),
    OPTIMUM: np.dtype("<f8"),
    U: h5py.vlen_dtype(np.dtype("<f8")),
    V: h5py.vlen_dtype(np.dtype("<f8")),
    ROWS: h5py.vlen_dtype(np.dtype("<i4")),
    COLUMNS: h5py.vlen_dtype(np.dtype("<i4")),
    COSTS: h5py.vlen_dtype(np.dtype("<f8")),
}
# The attribute of StoredRecord that each column holds.
_FIELDS: Final = {
    N: "n",
    SEED: "seed",
    FAMILY: "family",
    PARAMETERS: "parameters",
    NOISE_STD: "noise_std",
    TAG: "tag",
    CONTENT: "content",
    OPTIMUM: "optimum",
    U: "u",
    V: "v",
    ROWS: "rows",
    COLUMNS: "columns",
    COSTS: "costs",
}
_ARRAYS: Final = (U, V, ROWS, COLUMNS, COSTS)
_CHUNK: Final = 256  # records whose places HDF5 keeps together
_BUFFER_BYTES: Final = 16 << 20  # of records written at once; a larger record goes alone


class LapStore:
    """Read a store of schema 2; opening reads the short columns, each record is read when asked for.

    Make one with `LapStore.open(path)`. No file stays open: a store can be forked, and pickling sends the path.
    """

    def __init__(self, path: Path, storage: Storage, written_with: str, columns: dict[str, NDArray[Any]]) -> None:
        """Hold what `open` has read and checked."""
        self.path = path
        self.storage = storage
        self.written_with = written_with
        self._sizes: NDArray[np.int64] = columns[N].astype(np.int64)
        self._seeds: NDArray[np.uint64] = columns[SEED]
        self._families: NDArray[np.object_] = columns[FAMILY]
        self._contents: NDArray[Any] = columns[CONTENT]

    @classmethod
    def open(cls, path: Path | str) -> LapStore:
        """Open a store. UserError says why if the file is none, is truncated, or has another schema."""
        path = Path(path)
        with open_hdf5(path) as file, damage_named(path):
            _check_schema(path, file)
            # Those that were never written take nothing in the file.
            require_memory(path, sum(file[name].nbytes for name in (N, SEED, CONTENT, FAMILY)))
            columns = {name: file[name][:] for name in (N, SEED, CONTENT)}
            columns[FAMILY] = np.asarray(file[FAMILY].asstr()[:], dtype=object)
            storage = str(file.attrs[STORAGE_KEY])
            written_with = str(file.attrs.get(WRITTEN_WITH_KEY, "an unknown version"))
        return cls(path, "dense" if storage == "dense" else "seeded", written_with, columns)

    def __len__(self) -> int:
        """Return the number of records."""
        return len(self._sizes)

    def sizes(self) -> NDArray[np.int64]:
        """Return n of every record."""
        return self._sizes.copy()

    def families(self) -> list[str]:
        """Return the family of every record."""
        return [str(name) for name in self._families]

    def seeds(self) -> list[int]:
        """Return the seed of every record."""
        return [int(seed) for seed in self._seeds]

    def contents(self) -> list[str]:
        """Return the content hash of every record."""
        return [self.content(index) for index in range(len(self))]

    def content(self, index: int) -> str:
        """Return the content hash of a record, as it was when written."""
        with damage_named(self.path):
            return bytes(self._contents[self._place(index)]).decode("ascii")

    def is_generated(self) -> bool:
        """Return whether every record has a seed that brings it back."""
        if self.storage == "seeded":
            return True
        with open_hdf5(self.path) as file, damage_named(self.path):
            return all(len(text) > 0 for text in file[PARAMETERS][:])

    def indices(self, size: int | None = None, family: str | None = None) -> NDArray[np.int64]:
        """Return the places of the records of a size, of a family, or of both."""
        chosen = np.ones(len(self), dtype=bool)
        if size is not None:
            chosen &= self._sizes == size
        if family is not None:
            chosen &= self._families == family
        return np.flatnonzero(chosen)

    def stored(self, index: int) -> StoredRecord:
        """Return the columns of a record as they stand in the file."""
        return next(self.stored_records([index]))

    def stored_records(self, indices: Iterable[int]) -> Iterator[StoredRecord]:
        """Return the columns of several records, one by one; the file is open in the meantime."""
        with open_hdf5(self.path) as file:
            with damage_named(self.path):
                columns = {name: file[name] for name in _KINDS if name in file}
            for index in indices:
                yield self._read(columns, self._place(index))

    def record(self, index: int) -> Record:
        """Return a record with its costs; UserError if they are not those that were labelled."""
        stored = self.stored(index)
        cost, mask = self._restore(stored, self._place(index))
        instance = Instance(
            stored.family, stored.seed, cost, mask, stored.noise_std, stored.tag, self._parameters(stored)
        )
        rows, columns = stored.rows.astype(np.int64), stored.columns.astype(np.int64)
        return Record(instance, stored.u, stored.v, rows, columns, stored.optimum, stored.content)

    def cost(self, index: int) -> tuple[NDArray[np.float64], NDArray[np.bool_] | None]:
        """Return costs and mask of a record; UserError if they are not those that were labelled."""
        return self._restore(self.stored(index), self._place(index))

    def __reduce__(self) -> tuple[Callable[[Path], LapStore], tuple[Path]]:
        """Pickle as a path to open."""
        return LapStore.open, (self.path,)

    def _place(self, index: int) -> int:
        place = int(index) + len(self) if index < 0 else int(index)
        if not 0 <= place < len(self):
            raise UserError(
                f"{self.path}: there is no record {index}; "
                + (f"give an index from 0 to {len(self) - 1}" if len(self) else "the file holds none")
            )
        return place

    def _parameters(self, stored: StoredRecord) -> dict[str, Any] | None:
        with damage_named(self.path):
            return decode_parameters(stored.parameters)

    def _read(self, columns: dict[str, h5py.Dataset], place: int) -> StoredRecord:
        values: dict[str, Any] = dict.fromkeys(_KINDS)
        if COSTS in columns:
            self._require_memory(place)
        with damage_named(self.path):
            values |= {name: column[place] for name, column in columns.items()}
            for name in (FAMILY, PARAMETERS, TAG, CONTENT):
                values[name] = bytes(values[name]).decode()
        values |= {N: int(values[N]), SEED: int(values[SEED])}
        values |= {OPTIMUM: float(values[OPTIMUM]), NOISE_STD: float(values[NOISE_STD])}
        record = StoredRecord(**{field: values[name] for name, field in _FIELDS.items()})
        for name in (U, V, ROWS, COLUMNS):
            if len(values[name]) != record.n:
                raise UserError(
                    f"{self.path}: record {place}: {name} has {len(values[name])} entries, n is {record.n}; "
                    "write the file again"
                )
        if record.costs is not None and len(record.costs) != record.n**2:
            raise UserError(
                f"{self.path}: record {place}: C has {len(record.costs)} entries, n is {record.n}; write the file again"
            )
        return record

    def _require_memory(self, place: int) -> None:
        """Refuse a record whose costs have no room; a small one is not worth the question."""
        num_bytes = 8 * int(self._sizes[place]) ** 2
        if num_bytes > _BUFFER_BYTES:
            require_memory(self.path, num_bytes, f"record {place}")

    def _restore(self, stored: StoredRecord, place: int) -> tuple[NDArray[np.float64], NDArray[np.bool_] | None]:
        if stored.costs is not None:
            cost, mask = split_costs(stored.costs, stored.n)
            cause = "the content was damaged or edited"
        else:
            self._require_memory(place)
            cost, mask = _regenerate(self.path, stored, place)
            cause = f"this kdgat or numpy ({_versions()}) draws otherwise than the one that wrote it"
        found = content_hash(cost, mask)
        if found != stored.content:
            raise UserError(
                f"{self.path}: record {place} ({stored.family}, n={stored.n}, seed={stored.seed}): its costs hash to "
                f"{found}, not {stored.content}: {cause} ({self.written_with}); generate the file again"
            )
        return cost, mask


def write_store(
    path: Path | str,
    records: Iterable[Instance | Record | StoredRecord],
    storage: Storage = "seeded",
    *,
    on_record: Callable[[StoredRecord], None] | None = None,
) -> int:
    """Label and write records one by one, replacing `path` only when the file is complete and on disk.

    Memory holds one instance at a time. Records that are labelled already are not solved again. Returns how many were
    written. UserError names a record that has no seed to be drawn from (`seeded`) or no costs (`dense`); that error
    and those of the iterator and of the solver leave the old file in place.
    """
    if storage not in STORAGES:
        raise UserError(f"storage {storage!r} is unknown: choose {' or '.join(STORAGES)}")
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_abandoned(path)
    with replacing(path) as temporary:
        with temporary.open("w+b", buffering=0) as target:
            sink = _Sink(target)
            try:
                with hdf5.open_hdf5(sink, "w", libver=FILE_FORMAT) as file:
                    writer = _Writer(file, storage)
                    for item in records:
                        stored = _to_stored(path, item, writer.num_taken, is_dense=storage == "dense")
                        writer.append(stored)
                        sink.check()
                        if on_record is not None:
                            on_record(stored)
                        del item, stored  # before the next one is made
                    writer.finish()
            except (OSError, RuntimeError):
                sink.check()  # HDF5 may have met what it believes to have written
                raise
            sink.check()
        sync_to_disk(temporary)
    sync_to_disk(path.parent)
    return writer.num_records


def open_hdf5(path: Path) -> h5py.File:
    """Open an HDF5 file for reading; UserError says what is wrong if it is none."""
    if not path.is_file():
        raise UserError(f"{path}: no such file; generate it first (kdgat lap generate), or correct the path")
    try:
        return hdf5.open_hdf5(path)
    except OSError as error:
        if hdf5.is_hdf5(path):
            raise UserError(f"{path}: damaged or truncated ({error}); copy or generate it again") from error
        raise UserError(f"{path}: not an HDF5 file; give one written by kdgat lap generate") from error


@contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """Raise UserError for whatever HDF5 and h5py raise where a file is damaged, which is nearly anything."""
    try:
        yield
    except UserError:
        raise
    except (ArithmeticError, LookupError, MemoryError, OSError, RuntimeError, TypeError, ValueError) as error:
        raise UserError(f"{path}: damaged or truncated ({error}); copy or generate it again") from error


def remove_abandoned(path: Path) -> None:
    """Remove what writers of a file or folder left that were killed on this machine and could not clean up."""
    prefix = temporary_path(path).name.rsplit(".", 3)[0] + "."
    for entry in path.parent.glob(".*.tmp"):
        owner = entry.name.removeprefix(prefix).split(".")[0]
        if entry.name.startswith(prefix) and owner.isdigit() and not _is_alive(int(owner)):
            remove_tree(entry)


def _is_alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


class _Writer:
    """Append records to an open file, several at a time if they are small."""

    def __init__(self, file: h5py.File, storage: Storage) -> None:
        self.num_records = 0
        self._file = file
        self._waiting: list[StoredRecord] = []
        self._waiting_bytes = 0
        self._names = [name for name in _KINDS if name != COSTS or storage == "dense"]
        for name in self._names:
            file.create_dataset(name, shape=(0,), maxshape=(None,), chunks=(_CHUNK,), dtype=_KINDS[name])
        file.attrs[FORMAT_KEY] = FORMAT
        file.attrs[SCHEMA_VERSION_KEY] = SCHEMA_VERSION
        file.attrs[STORAGE_KEY] = storage
        file.attrs[WRITTEN_WITH_KEY] = _versions()

    @property
    def num_taken(self) -> int:
        """Return how many records were given, those that wait too."""
        return self.num_records + len(self._waiting)

    def append(self, record: StoredRecord) -> None:
        self._waiting.append(record)
        self._waiting_bytes += record.num_bytes
        if self._waiting_bytes >= _BUFFER_BYTES or len(self._waiting) >= _CHUNK:
            self._flush()

    def finish(self) -> None:
        self._flush()
        self._file.attrs[NUM_RECORDS_KEY] = self.num_records

    def _flush(self) -> None:
        start, stop = self.num_records, self.num_records + len(self._waiting)
        for name in self._names:
            dataset = self._file[name]
            dataset.resize((stop,))
            values = [getattr(record, _FIELDS[name]) for record in self._waiting]
            if name in _ARRAYS:
                for place, value in enumerate(values, start):
                    dataset[place] = value
            elif values:
                dataset[start:stop] = values
        self._file.flush()
        self.num_records = stop
        self._waiting.clear()
        self._waiting_bytes = 0


class _Sink:
    """The file below HDF5. After a failed write it takes everything and keeps nothing, and `check` raises the failure.

    HDF5 itself, where the disk is full, can neither go on nor close the file, and crashes the process in the end.
    """

    def __init__(self, target: FileIO) -> None:
        self._target = target
        self._failure: BaseException | None = None

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def write(self, data: memoryview) -> int:
        rest = memoryview(data).cast("B")
        try:
            while len(rest) and self._failure is None:
                rest = rest[self._target.write(rest) :]
        except BaseException as failure:  # Ctrl-C, too: an exception does not find its way through HDF5
            self._failure = failure
        return len(data)

    def read(self, size: int = -1) -> bytes | None:
        return self._target.read(size)

    def readinto(self, buffer: memoryview) -> int:
        return self._target.readinto(buffer)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        return self._target.seek(offset, whence)

    def tell(self) -> int:
        return self._target.tell()

    def truncate(self, size: int) -> int:
        try:
            if self._failure is None:
                self._target.truncate(size)
        except OSError as failure:
            self._failure = failure
        return size

    def flush(self) -> None:
        """Do nothing: no write waits here."""


def _to_stored(path: Path, item: Instance | Record | StoredRecord, number: int, *, is_dense: bool) -> StoredRecord:
    if isinstance(item, StoredRecord):
        stored = item
        if is_dense and stored.costs is None:
            raise UserError(f"{path}: record {number} comes without its costs: write it with storage seeded")
    else:
        stored = to_stored(label(item) if isinstance(item, Instance) else item, is_dense=is_dense)
    if not is_dense and not stored.parameters:
        raise UserError(
            f"{path}: record {number} ({stored.family}, n={stored.n}) was not generated and cannot be drawn from a "
            "seed: write it with storage dense"
        )
    return stored


def _check_schema(path: Path, file: h5py.File) -> None:
    if file.attrs.get(FORMAT_KEY) != FORMAT:
        legacy = COSTS in file and FORMAT_KEY not in file.attrs
        fix = "rewrite it with kdgat lap merge" if legacy else "give a file written by kdgat lap generate"
        raise UserError(f"{path}: HDF5, but {FORMAT_KEY} is not {FORMAT!r}: {fix}")
    refuse_newer(file.attrs, path, known=SCHEMA_VERSION)
    version = file.attrs.get(SCHEMA_VERSION_KEY)
    if version != SCHEMA_VERSION:
        raise UserError(
            f"{path}: {SCHEMA_VERSION_KEY} is {version}, this kdgat reads {SCHEMA_VERSION}; generate it again"
        )
    storage = file.attrs.get(STORAGE_KEY)
    if storage not in STORAGES:
        raise UserError(f"{path}: {STORAGE_KEY} is {storage!r}, not {' or '.join(STORAGES)}; generate it again")
    expected = file.attrs.get(NUM_RECORDS_KEY)
    for name, kind in _KINDS.items():
        if name == COSTS and storage == "seeded":
            continue
        dataset = file.get(name)
        if not isinstance(dataset, h5py.Dataset):
            raise UserError(f"{path}: column {name} is missing; generate it again")
        if dataset.dtype != kind or dataset.shape != (expected,):
            raise UserError(
                f"{path}: column {name} is {dataset.dtype} of shape {dataset.shape}, expected {kind} of shape "
                f"({expected},); generate it again"
            )


def _regenerate(path: Path, stored: StoredRecord, place: int) -> tuple[NDArray[np.float64], NDArray[np.bool_] | None]:
    if stored.family not in DISTRIBUTIONS:
        raise UserError(
            f"{path}: record {place}: family {stored.family!r} is unknown to this kdgat, and the file holds seeds "
            "alone; generate it with a kdgat that knows the family and --storage dense"
        )
    try:
        instance = generate(stored.family, stored.n, stored.seed, **(decode_parameters(stored.parameters) or {}))
    except (UserError, json.JSONDecodeError, TypeError) as error:
        raise UserError(f"{path}: record {place}: {error}; generate the file again") from error
    return instance.cost, instance.mask


def _versions() -> str:
    return f"kdgat {package_version('kdgat') or 'not installed'}, numpy {np.__version__}"
