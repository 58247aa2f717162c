"""One labelled assignment problem as it stands in a file, and the hash by which equal problems are found."""

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kdgat.lap.instances.distributions import Instance

HASH_BYTES: Final = 16
_BLOCK_ENTRIES: Final = 1 << 17  # costs hashed at once: a copy of the whole matrix would be memory for nothing


@dataclass(frozen=True)
class StoredRecord:
    """The columns of one record; copied from file to file without drawing its costs again.

    `costs` is the flattened matrix, float64 [n * n] with +inf where a pair is forbidden, or None if it is drawn from
    the seed. `parameters` is JSON, empty for instances that cannot be drawn.
    """

    family: str
    n: int
    seed: int
    parameters: str
    noise_std: float
    tag: str
    content: str
    u: NDArray[np.float64]  # [n]
    v: NDArray[np.float64]  # [n]
    rows: NDArray[np.int32]  # [n]
    columns: NDArray[np.int32]  # [n]
    optimum: float
    costs: NDArray[np.float64] | None

    @property
    def num_bytes(self) -> int:
        """Return about how much memory the arrays take."""
        return 24 * self.n + (0 if self.costs is None else self.costs.nbytes)


@dataclass(frozen=True)
class Record:
    """An instance with its label: an optimal matching, its cost, and duals that prove it (u_i + v_j <= C_ij)."""

    instance: Instance
    u: NDArray[np.float64]  # [n]
    v: NDArray[np.float64]  # [n]
    rows: NDArray[np.int64]  # [n]
    columns: NDArray[np.int64]  # [n]
    optimum: float
    content: str

    @property
    def cost(self) -> NDArray[np.float64]:
        """Return the cost matrix, float64 [n, n]; 0 where forbidden."""
        return self.instance.cost

    @property
    def mask(self) -> NDArray[np.bool_] | None:
        """Return bool [n, n], True where a pair is forbidden; None if none is."""
        return self.instance.mask

    @property
    def n(self) -> int:
        """Return the number of rows."""
        return self.instance.n

    @property
    def family(self) -> str:
        """Return the name of the family."""
        return self.instance.family

    @property
    def seed(self) -> int:
        """Return the seed of the instance; 0 if it was not generated."""
        return self.instance.seed


def label(instance: Instance) -> Record:
    """Solve an instance exactly; raises what the solver raises for matrices that it cannot solve."""
    from kdgat.assignment import solve  # compiled code, which a training job does without

    # Of the optimal duals each method has its own: networks are trained on these, whatever becomes the default.
    solved = solve(instance.cost, mask=instance.mask, method="core")
    content = content_hash(instance.cost, instance.mask)
    return Record(instance, solved.u, solved.v, solved.rows, solved.columns, solved.cost, content)


def content_hash(cost: NDArray[np.float64], mask: NDArray[np.bool_] | None) -> str:
    """Hash a problem: equal for equal costs on equal allowed pairs, whatever stands where a pair is forbidden."""
    num_rows, num_columns = cost.shape
    digest = hashlib.blake2b(f"{num_rows} {num_columns}\n".encode(), digest_size=HASH_BYTES)
    is_masked = mask is not None and bool(mask.any())
    if mask is not None and is_masked:
        digest.update(np.packbits(mask).data)
    step = max(1, _BLOCK_ENTRIES // max(1, num_columns))
    for start in range(0, num_rows, step):
        block = np.add(cost[start : start + step], 0.0, dtype="<f8")  # a copy, in which -0 is 0
        if mask is not None and is_masked:
            block[mask[start : start + step]] = 0.0
        digest.update(np.ascontiguousarray(block).data)
    return digest.hexdigest()


def join_costs(cost: NDArray[np.float64], mask: NDArray[np.bool_] | None) -> NDArray[np.float64]:
    """Flatten costs and mask to one array with +inf where a pair is forbidden, as files hold them."""
    flat = cost.astype(np.float64).ravel()
    if mask is not None:
        flat[mask.ravel()] = np.inf
    return flat


def split_costs(flat: NDArray[np.float64], n: int) -> tuple[NDArray[np.float64], NDArray[np.bool_] | None]:
    """Undo `join_costs`; the mask is None if every pair is allowed."""
    cost = flat.reshape(n, n)
    mask = np.isposinf(cost)
    if not mask.any():
        return cost, None
    return np.where(mask, 0.0, cost), mask


def to_stored(record: Record, *, is_dense: bool) -> StoredRecord:
    """Turn a record into the columns of a file, with its costs or without."""
    instance = record.instance
    return StoredRecord(
        family=instance.family,
        n=instance.n,
        seed=instance.seed,
        parameters=encode_parameters(instance.parameters),
        noise_std=instance.noise_std,
        tag=instance.tag,
        content=record.content,
        u=record.u,
        v=record.v,
        rows=record.rows.astype(np.int32),
        columns=record.columns.astype(np.int32),
        optimum=record.optimum,
        costs=join_costs(instance.cost, instance.mask) if is_dense else None,
    )


def encode_parameters(parameters: dict[str, Any] | None) -> str:
    """Write the parameters of a family as JSON; nothing if the instance was not generated."""
    return "" if parameters is None else json.dumps(parameters, sort_keys=True)


def decode_parameters(text: str) -> dict[str, Any] | None:
    """Undo `encode_parameters`."""
    parameters: dict[str, Any] | None = json.loads(text) if text else None
    return parameters
