"""What a job asks for: walltime, memory, cores and GPUs, as people write them and as numbers.

The notation is that of `sbatch` (https://slurm.schedmd.com/sbatch.html, options --time and --mem).
"""

import re
from typing import Annotated, Any, Final

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from kdgat.base import Config, UserError

_WALLTIME_FIX: Final = (
    "write hours:minutes:seconds as 16:00:00, days-hours:minutes:seconds as 2-00:00:00, or minutes as 90"
)
_MEMORY_FIX: Final = "write a whole number with M, G or T, as 85G or 1536M"
# sbatch: minutes, minutes:seconds, hours:minutes:seconds, days-hours, days-hours:minutes, days-hours:minutes:seconds
_WALLTIME: Final = re.compile(r"(?:([0-9]+)-)?([0-9]+)(?::([0-9]+))?(?::([0-9]+))?")
_MEMORY: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)([MGTmgt]?)")
_MIB_PER_UNIT: Final = {"T": 1024**2, "G": 1024, "M": 1, "": 1}
_DAY_S: Final = 86_400
_LONGEST_S: Final = 366 * _DAY_S  # beyond that somebody has mistaken the unit
_LARGEST_MIB: Final = 1024**3  # a pebibyte, likewise


def parse_walltime(text: str | int) -> int:
    """Read a walltime in seconds; a bare number is minutes, as `sbatch` has it.

    Raises:
        UserError: if it has no such form, is zero, or is beyond a year.
    """
    found = _WALLTIME.fullmatch(str(text).strip()) if _is_text_or_int(text) else None
    if found is None:
        raise UserError(f"walltime={text!r} cannot be read: {_WALLTIME_FIX}")
    given = [int(part) for part in found.groups() if part is not None]
    if found[1] is not None:
        days, hours, minutes, seconds = (*given, 0, 0, 0)[:4]
        parts = [("hours", hours, 24), ("minutes", minutes, 60), ("seconds", seconds, 60)]
    else:
        days, hours, minutes, seconds = 0, *[(0, given[0], 0), (0, *given), tuple(given)][len(given) - 1]
        parts = [("minutes", minutes, 60)] if len(given) == 3 else []
        parts += [("seconds", seconds, 60)]
    total_s = days * _DAY_S + hours * 3600 + minutes * 60 + seconds
    if not 0 < total_s <= _LONGEST_S:
        raise UserError(f"walltime={text!r} is {'longer than a year' if total_s else 'no time'}: {_WALLTIME_FIX}")
    for name, value, limit in parts:
        if value >= limit:
            raise UserError(
                f"walltime={text!r} has {value} {name}, which must be below {limit}: "
                f"write {format_walltime(total_s)} if that is meant"
            )
    return total_s


def format_walltime(walltime_s: int) -> str:
    """Write seconds as HH:MM:SS, and from a day on as D-HH:MM:SS."""
    days, rest = divmod(walltime_s, _DAY_S)
    clock = f"{rest // 3600:02}:{rest // 60 % 60:02}:{rest % 60:02}"
    return f"{days}-{clock}" if days else clock


def parse_memory(text: str | int) -> int:
    """Read an amount of memory in MiB; a bare number is MiB, as `sbatch` has it.

    Raises:
        UserError: if it has no such form, is zero, or is beyond a pebibyte.
    """
    found = _MEMORY.fullmatch(str(text).strip()) if _is_text_or_int(text) else None
    if found is None:
        raise UserError(f"memory={text!r} cannot be read: {_MEMORY_FIX}")
    mib = float(found[1]) * _MIB_PER_UNIT[found[2].upper()]
    if "." in found[1]:
        hint = f"write {format_memory(round(mib))}" if mib >= 1 else _MEMORY_FIX
        raise UserError(f"memory={text!r} is no whole number, which Slurm wants: {hint}")
    if not 1 <= mib <= _LARGEST_MIB:
        raise UserError(f"memory={text!r} is {'more than a pebibyte' if mib else 'no memory'}: {_MEMORY_FIX}")
    return int(mib)


def format_memory(memory_mib: int) -> str:
    """Write MiB in the largest unit that leaves a whole number: 128G, 1536M."""
    for unit, mib in (("T", 1024**2), ("G", 1024)):
        if memory_mib % mib == 0:
            return f"{memory_mib // mib}{unit}"
    return f"{memory_mib}M"


def _is_text_or_int(value: Any) -> bool:
    return isinstance(value, str | int) and not isinstance(value, bool)


def _normalise_walltime(value: Any) -> str:
    return format_walltime(parse_walltime(value))


def _normalise_memory(value: Any) -> str:
    return format_memory(parse_memory(value))


def _refuse_truth(value: Any) -> Any:
    if isinstance(value, bool):  # pydantic takes true for 1
        raise UserError(f"{value!r} is no number: write one, as 8")
    return value


def _check_gpu_type(value: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", value) is None:
        raise UserError(f"gpu_type={value!r} cannot stand in --gres=gpu:TYPE:1: write its name alone, as v100")
    return value


# The patterns are for JSON schemas, by which a server refuses what only its flow would read, later.
_WALLTIME_SCHEMA: Final = {"type": "string", "pattern": rf"^\s*{_WALLTIME.pattern}\s*$"}
_MEMORY_SCHEMA: Final = {"type": "string", "pattern": rf"^\s*{_MEMORY.pattern}\s*$"}
WalltimeText = Annotated[str, BeforeValidator(_normalise_walltime), WithJsonSchema(_WALLTIME_SCHEMA)]
MemoryText = Annotated[str, BeforeValidator(_normalise_memory), WithJsonSchema(_MEMORY_SCHEMA)]
NumCores = Annotated[int, Field(ge=1), BeforeValidator(_refuse_truth)]
NumGpus = Annotated[int, Field(ge=0), BeforeValidator(_refuse_truth)]
GpuType = Annotated[str, AfterValidator(_check_gpu_type)]


class Resources(Config):
    """Hold what one job asks for, every value decided.

    >>> Resources(walltime_s=57_600, memory_mib=131_072, cores=8, gpus=1, gpu_type="v100").describe()
    '16:00:00, 128G, 8 cores, 1 GPU (v100)'
    """

    walltime_s: int = Field(gt=0)
    memory_mib: int = Field(gt=0)
    cores: NumCores = 1
    gpus: NumGpus = 0
    gpu_type: GpuType | None = None

    def describe(self) -> str:
        """Write them in one line: `16:00:00, 128G, 8 cores, 1 GPU (v100)`."""
        parts = [format_walltime(self.walltime_s), format_memory(self.memory_mib)]
        parts.append("1 core" if self.cores == 1 else f"{self.cores} cores")
        if self.gpus:
            kind = f" ({self.gpu_type})" if self.gpu_type else ""
            parts.append(f"{self.gpus} GPU{'' if self.gpus == 1 else 's'}{kind}")
        return ", ".join(parts)


class Amounts(Config):
    """Hold amounts as people write them; a key that is None was not said."""

    walltime: WalltimeText | None = Field(
        None,
        description=(
            "hours:minutes:seconds, days-hours:minutes:seconds, or minutes; null: the site's default; --walltime"
        ),
    )
    memory: MemoryText | None = Field(
        None, description="with M, G or T, as 85G; null: the site's default, or what a plan predicts; --memory"
    )
    cores: NumCores | None = Field(None, description="processor cores; null: the site's default; --cores")
    gpus: NumGpus | None = Field(
        None,
        description=(
            "GPUs, on all of which a stage trains; left out where the site has none; null: the site's default; --gpus"
        ),
    )

    @property
    def walltime_s(self) -> int | None:
        """Return the walltime in seconds."""
        return None if self.walltime is None else parse_walltime(self.walltime)

    @property
    def memory_mib(self) -> int | None:
        """Return the memory in MiB."""
        return None if self.memory is None else parse_memory(self.memory)


class ResourceRequest(Amounts):
    """Hold what somebody asks for; a key that is None was not said.

    >>> asked = ResourceRequest(walltime=90, memory="1024")
    >>> asked.explicit_values()
    {'walltime': '01:30:00', 'memory': '1G'}
    >>> asked.over(ResourceRequest(walltime="16:00:00", cores=4)).explicit_values()
    {'walltime': '01:30:00', 'memory': '1G', 'cores': 4}
    """

    gpu_type: GpuType | None = Field(None, description="which GPU, as v100; null: the site's")
    adaptive: bool | None = Field(
        None, description="true: ask for less, too, where earlier attempts took less; null: the site's default"
    )

    def over(self, other: "ResourceRequest") -> "ResourceRequest":
        """Return both requests as one; this one wins where it says something."""
        return ResourceRequest(**{**other.model_dump(), **self.explicit_values()})

    def explicit_values(self) -> dict[str, Any]:
        """Return the keys that were said, with their values."""
        return self.model_dump(exclude_none=True)
