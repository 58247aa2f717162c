"""What differs between clusters, in one YAML file per site: how jobs are submitted there and how large they may be."""

import logging
import os
import re
import shlex
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

import yaml
from pydantic import Field, field_validator, model_validator

import kdgat
from kdgat.base import Config, ConfigurationError, UserError, validate_config
from kdgat.base.configuration import describe_yaml_error, read_yaml
from kdgat.base.files import read_utf8
from kdgat.base.text import suggest
from kdgat.cluster.resources import Amounts, GpuType, MemoryText, NumCores, ResourceRequest, WalltimeText
from kdgat.cluster.slurm import CONFIGURATION, missing_configuration
from kdgat.stage.gpus import memory_of

LOCAL: Final = "local"
SITES_VARIABLE: Final = "KDGAT_SITES"
ACCOUNT_VARIABLE: Final = "KDGAT_ACCOUNT"  # whom jobs are charged to, above what a site file says
# What a site file may leave to a person's environment; a word of the file stands above it.
PERSONAL_KEYS: Final = {"SBATCH_ACCOUNT": "account", "SBATCH_QOS": "qos", "SBATCH_PARTITION": "partition"}
PERSONAL_DIRECTIVES: Final = {
    "SBATCH_CONSTRAINT": ("--constraint", "-C"),
    "SBATCH_RESERVATION": ("--reservation", "--reservation"),
}
_TEMPLATE: Final = "example"  # explains every key
_TEST_PREFIX: Final = "slurm-test"  # of sites of the test cluster
_SITES_FOLDER: Final = Path("deployments", "sites")
# What a job's script says already: a second, different word about it would be a contradiction.
_DIRECTIVES_OF_KEYS: Final = {
    "-t": "resources.STAGE.walltime", "--time": "resources.STAGE.walltime",
    "--mem": "resources.STAGE.memory", "--mem-per-cpu": "resources.STAGE.memory",
    "-c": "resources.STAGE.cores", "--cpus-per-task": "resources.STAGE.cores",
    "-G": "resources.STAGE.gpus", "--gpus": "resources.STAGE.gpus",
    "--gres": "gpu_request", "--gpus-per-node": "gpu_request",
    "-A": "account", "--account": "account", "-p": "partition", "--partition": "partition", "-q": "qos", "--qos": "qos",
}  # fmt: skip
# Two jobs of one stage at a time would write into one run directory; an array or a requeue makes a second one.
_FORBIDDEN_DIRECTIVES: Final = (
    "--requeue", "--no-requeue", "-d", "--dependency", "-a", "--array", "-n", "--ntasks", "-N", "--nodes",
    "-J", "--job-name", "--signal", "-o", "--output", "-e", "--error",
)  # fmt: skip
# With these `sbatch` does not do what is expected of it: hand in one job here, say its number, and be done.
_ON_ANOTHER_CLUSTER: Final = "jobs of other clusters are neither watched nor ended from here: run kdgat on that cluster"
_WAITS: Final = "sbatch would come back only after the job has ended, which kdgat must watch meanwhile"
_SAYS_NO_NUMBER: Final = "kdgat reads the number of the job from what sbatch prints"
_ENVIRONMENT: Final = "jobs get the environment of the command that hands them in; set variables in prologue"
_HARMFUL_DIRECTIVES: Final = {
    "-M": _ON_ANOTHER_CLUSTER, "--clusters": _ON_ANOTHER_CLUSTER,
    "-W": _WAITS, "--wait": _WAITS,
    "--parsable": _SAYS_NO_NUMBER, "-Q": _SAYS_NO_NUMBER, "--quiet": _SAYS_NO_NUMBER,
    "--test-only": "no job would be handed in",
    "--export": _ENVIRONMENT, "--export-file": _ENVIRONMENT,
}  # fmt: skip
# Variables that mean the same on each node and here.
_OF_ALL_NODES: Final = re.compile(r"\$\{?(HOME|USER)\b\}?")
_MODULE: Final = re.compile(r"[A-Za-z0-9][\w./+@:=-]*")

logger = logging.getLogger(__name__)

Text = Annotated[str, Field(min_length=1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]


class SiteError(UserError):
    """A site is unknown, or cannot be used from here; the text names it and the fix."""


class Limits(Amounts):
    """Hold what a site grants at most; None is no limit."""

    jobs: int = Field(32, ge=1)  # of one run, at a time


class WatcherRequest(Config):
    """Hold what the job asks for in which a detached command watches the others; the site's limits bound it."""

    walltime: WalltimeText = "1-00:00:00"  # then the next one takes over
    memory: MemoryText = "4G"
    cores: NumCores = 1


class Site(Config):
    """Hold what has to be known of a cluster; `deployments/sites/example.yaml` explains every key.

    >>> site = Site(name="pitzer", scheduler="slurm", account="PAS0001", limits={"walltime": "7-00:00:00"})
    >>> site.limits.walltime_s
    604800
    >>> Site(name="pitzer", scheduler="slurm", directives=["-N 2"]).directives  # doctest: +IGNORE_EXCEPTION_DETAIL
    Traceback (most recent call last):
    pydantic_core.ValidationError: '-N 2' is decided for each job by kdgat
    """

    name: Text
    scheduler: Literal["local", "slurm"] = "local"
    account: Text | None = None
    qos: Text | None = None
    partition: Text | None = None
    gpu_partition: Text | None = None
    gpu_request: Literal["gres", "gpus-per-node", "shard", "mps"] = "gres"
    gpu_share: int | None = Field(None, ge=1)
    gpu_type: GpuType | None = None
    bigger_gpu_types: tuple[GpuType, ...] = ()
    scratch: Text | None = None
    node_local: Text = "/tmp"
    staging: Literal["none", "node_local", "scratch"] = "none"
    modules: tuple[str, ...] = ()
    python: Text | None = None
    image: Text | None = None
    prologue: tuple[Text, ...] = ()
    epilogue: tuple[Text, ...] = ()
    directives: tuple[str, ...] = ()
    interface: Text | None = None
    defaults: ResourceRequest = ResourceRequest()
    limits: Limits = Limits()
    start_timeout_s: Seconds = 3600.0
    on_start_timeout: Literal["wait", "stop"] = "wait"
    submit_timeout_s: Seconds = 86_400.0
    readable_by: Literal["user", "group", "all"] = "user"
    poll_interval_s: Seconds = 5.0
    report_timeout_s: Seconds = 300.0
    silence_timeout_s: Seconds = 60.0
    stall_timeout_s: Seconds = 900.0
    on_lost_flow: Literal["detach", "stop"] = "detach"
    watcher: WatcherRequest = WatcherRequest()
    history: Text | None = None

    @property
    def umask(self) -> int:
        """Return what is taken from the permissions of the files of a run."""
        return {"user": 0o077, "group": 0o027, "all": 0o022}[self.readable_by]

    def partition_of(self, num_gpus: int) -> str | None:
        """Return where jobs with so many GPUs wait; None where Slurm chooses."""
        return (self.gpu_partition if num_gpus else None) or self.partition

    @contextmanager
    def creating_files(self) -> Iterator[None]:
        """Let files that this process, and what it starts, creates meanwhile be read by whom the site says."""
        previous = os.umask(self.umask)
        try:
            yield
        finally:
            os.umask(previous)

    @field_validator("name", "account", "qos", "partition", "gpu_partition")
    @classmethod
    def _refuse_spaces(cls, value: str | None) -> str | None:
        if value is not None and (not value.strip() or re.search(r"\s", value)):
            raise ValueError("it becomes one word of a Slurm directive: write it without spaces")
        return value

    @field_validator("modules")
    @classmethod
    def _check_modules(cls, modules: tuple[str, ...]) -> tuple[str, ...]:
        for module in modules:
            if not _MODULE.fullmatch(module):
                name = module.removeprefix("module load ").strip()
                raise ValueError(f"{module!r} is no name of a module: write {name!r} as one name per line of the list")
        return modules

    @field_validator("directives")
    @classmethod
    def _check_directives(cls, directives: tuple[str, ...]) -> tuple[str, ...]:
        for directive in directives:
            if not directive.startswith("-") or "\n" in directive:
                raise ValueError(
                    f"{directive!r} is no option of sbatch: write it as --constraint=48core, without #SBATCH"
                )
            for option in _options(directive):
                if option in _DIRECTIVES_OF_KEYS:
                    raise ValueError(f"{directive!r} has a key of its own: set {_DIRECTIVES_OF_KEYS[option]} instead")
                if option in _FORBIDDEN_DIRECTIVES:
                    raise ValueError(f"{directive!r} is decided for each job by kdgat: leave it out")
                if option in _HARMFUL_DIRECTIVES:
                    raise ValueError(f"{directive!r}: {_HARMFUL_DIRECTIVES[option]}: leave it out")
        return directives

    @model_validator(mode="after")
    def _check_staging(self) -> Self:
        if self.staging == "scratch" and self.scratch is None:
            raise ValueError("staging: scratch needs the key scratch: name a fast folder that all nodes share")
        return self

    @model_validator(mode="after")
    def _check_gpu_share(self) -> Self:
        is_shared = self.gpu_request in ("shard", "mps")
        if is_shared != (self.gpu_share is not None):
            raise ValueError(
                f"gpu_request: {self.gpu_request} with gpu_share={self.gpu_share}: shard and mps need gpu_share, how "
                "many shards or what per cent of a GPU a stage gets; the others take whole GPUs"
            )
        if is_shared and (self.limits.gpus is None or self.limits.gpus > 1 or self.bigger_gpu_types):
            raise ValueError(
                f"gpu_request: {self.gpu_request} gives a part of one GPU, of whatever type: set limits.gpus to 1 and "
                "leave bigger_gpu_types out"
            )
        return self

    @model_validator(mode="after")
    def _check_bigger_gpu_types(self) -> Self:
        bigger = self.bigger_gpu_types
        if len(set(bigger)) < len(bigger):
            raise ValueError(f"bigger_gpu_types: {', '.join(bigger)}: a type stands twice: name each once")
        first = () if self.gpu_type is None or self.gpu_type in bigger else (self.gpu_type,)
        for smaller, larger in pairwise((*first, *bigger)):
            known, new = memory_of(smaller), memory_of(larger)
            if known is not None and new is not None and new[1] <= known[0]:
                raise ValueError(
                    f"bigger_gpu_types: {larger} has {new[1]} GB at most, and is asked for where the {known[0]} GB or "
                    f"more of {smaller} were too small: name types with more memory, the smallest first"
                )
        return self

    @model_validator(mode="after")
    def _check_image(self) -> Self:
        if self.image is not None and self.scheduler == "local":
            raise ValueError(
                "image: stages on this machine run in this Python; set scheduler: slurm, or leave image out"
            )
        return self

    @model_validator(mode="after")
    def _check_defaults(self) -> Self:
        for key, value, limit in (
            ("walltime", self.defaults.walltime_s, self.limits.walltime_s),
            ("memory", self.defaults.memory_mib, self.limits.memory_mib),
            ("cores", self.defaults.cores, self.limits.cores),
            ("gpus", self.defaults.gpus, self.limits.gpus),
        ):
            if value is not None and limit is not None and value > limit:
                given, allowed = getattr(self.defaults, key), getattr(self.limits, key)
                raise ValueError(f"defaults.{key}={given} is above limits.{key}={allowed}: lower it or raise the limit")
        return self


def load_site(name_or_path: str) -> Site:
    """Read a site by its name, or from a path that ends in `.yaml`.

    A name is looked for in `site_folders()`; the first file found counts.

    Raises:
        SiteError: if it is unknown (naming the nearest one and the folders searched) or its file is wrong (naming
            file, key, value and fix).
    """
    if name_or_path.endswith((".yaml", ".yml")) or "/" in name_or_path:
        path = Path(name_or_path).expanduser()
        if not path.is_file():
            raise SiteError(f"site {name_or_path}: there is no such file; give its path, or one of {_known_text()}")
        return read_site(path)
    found = find_sites()
    if name_or_path in found:
        return read_site(found[name_or_path])
    if name_or_path == LOCAL:  # an installation without the checkout's files still runs on this machine
        return Site(name=LOCAL)
    hint = suggest(name_or_path, [*found, LOCAL], f"known sites: {_known_text()}")
    folders = ", ".join(str(folder) for folder in site_folders())
    raise SiteError(f"site {name_or_path!r} is unknown: {hint} (searched: {folders}; see example.yaml for a new one)")


def site_folders() -> list[Path]:
    """Return the folders in which sites are looked for, the first one winning.

    Raises:
        SiteError: if $KDGAT_SITES names something that is no folder.
    """
    folders = []
    own = os.environ.get(SITES_VARIABLE)
    if own:
        folder = Path(own).expanduser()
        if not folder.is_dir():
            raise SiteError(
                f"{SITES_VARIABLE}={own} is no folder: let it name the one with your site files, or unset it"
            )
        folders.append(folder)
    folders += [
        Path.home() / ".config" / "kdgat" / "sites",
        Path.cwd() / _SITES_FOLDER,
        Path(kdgat.__file__).parents[1] / _SITES_FOLDER,  # the checkout, wherever the working folder is
        Path(sys.prefix) / "share" / "kdgat" / "sites",  # where a wheel puts them
    ]
    return list(dict.fromkeys(folders))


def find_sites() -> dict[str, Path]:
    """Return the file of every known site, by name."""
    found: dict[str, Path] = {}
    trusted = (Path.home(), Path(kdgat.__file__).parents[1], Path(sys.prefix))
    for folder in site_folders():
        for path in sorted(folder.glob("*.yaml")):
            # A site's lines run as this user: those of a stranger do not, whose folder one stands in.
            if not any(map(path.is_relative_to, trusted)) and path.stat().st_uid not in (0, os.getuid()):
                _say(f"{path} belongs to {path.owner()} and is left out: name it by its path to use it")
                continue
            found.setdefault(path.stem, path)
    return found


def read_site(path: Path) -> Site:
    """Read one site file; its name is the file's unless it says another."""
    try:
        content: Any = read_yaml(read_utf8(path))
    except UserError as error:
        raise SiteError(str(error)) from error
    except yaml.YAMLError as error:
        raise SiteError(f"{path} is no YAML: {describe_yaml_error(error)}") from error
    if not isinstance(content, dict):
        raise SiteError(f"{path} is not a mapping of keys to values: see example.yaml")
    try:
        site = validate_config(Site, {"name": path.stem, **content})
    except ConfigurationError as error:
        raise SiteError(f"{path}: {error}") from error
    return charged_to(with_personal_words(site), os.environ.get(ACCOUNT_VARIABLE))


def with_personal_words(site: Site) -> Site:
    """Take over from the environment what is meant for jobs of any kind, and the site's file leaves open."""
    if site.scheduler == LOCAL:
        return site
    stated = {option for directive in site.directives for option in _options(directive)}
    values: dict[str, Any] = {
        key: os.environ[name]
        for name, key in PERSONAL_KEYS.items()
        if os.environ.get(name) and not (getattr(site, key) or (key == "partition" and site.gpu_partition))
    }
    more = [
        f"{option}={shlex.quote(os.environ[name])}"
        for name, (option, short) in PERSONAL_DIRECTIVES.items()
        if os.environ.get(name) and not stated & {option, short}
    ]
    try:
        return validate_config(Site, {**site.model_dump(), **values, "directives": [*site.directives, *more]})
    except ConfigurationError as error:
        raise SiteError(f"site {site.name}, with SBATCH_* of the environment: {error}") from error


def _say_what_is_heeded(site: Site) -> None:
    """Say which options for sbatch the environment has: those that jobs get, and those that they do not."""
    own = {name: getattr(site, key) for name, key in PERSONAL_KEYS.items()}
    given = {name for name, value in own.items() if value and value == os.environ.get(name)}
    given |= {
        name
        for name, (option, _) in PERSONAL_DIRECTIVES.items()
        if f"{option}={shlex.quote(os.environ.get(name, ''))}" in site.directives
    }
    left = {name for name, value in os.environ.items() if name.startswith("SBATCH_") and value} - given
    if given:
        words = ", ".join(f"{name}={os.environ[name]}" for name in sorted(given))
        _say(f"site {site.name}: jobs get what the environment says: {words}")
    if left:
        _say(f"site {site.name}: site and command decide, not the environment: {', '.join(sorted(left))}")


@cache
def _say(sentence: str) -> None:
    """Say something once."""
    logger.warning("%s", sentence)


def charged_to(site: Site, account: str | None) -> Site:
    """Return a site whose jobs are charged to an account; the site as it is where none is named, or nothing charged.

    Raises:
        SiteError: if it is no name of an account.
    """
    if not account or site.scheduler == LOCAL:
        return site
    try:
        return validate_config(Site, {**site.model_dump(), "account": account})
    except ConfigurationError as error:
        raise SiteError(f"site {site.name}: {error}") from error


def require_usable(site: Site) -> None:
    """Refuse a site whose jobs could not be submitted from this machine.

    Raises:
        SiteError: naming what is missing and the fix.
    """
    if site.scheduler != "slurm":
        return
    if shutil.which("sbatch") is None:
        raise SiteError(
            f"site {site.name}: Slurm's sbatch is not in PATH on this machine: "
            f"run this on the cluster's login node, or add Slurm's folder to PATH, or use --site {LOCAL}"
        )
    if missing := missing_configuration():
        raise SiteError(
            f"site {site.name}: {missing}: run this on the cluster's login node, or "
            f"`export {CONFIGURATION}=/path/of/slurm.conf` (`make cluster-up` prints that line), or use --site {LOCAL}"
        )
    _say_what_is_heeded(site)
    if site.interface is not None:
        known = [name for _, name in socket.if_nameindex()]
        if site.interface not in known:
            raise SiteError(
                f"site {site.name}: interface={site.interface!r} is no network interface of this machine: "
                f"choose one of {', '.join(known)} by which its nodes reach it"
            )
    image = _OF_ALL_NODES.sub(lambda found: os.environ.get(found[1], found[0]), site.image or "")
    if image and "$" not in image and "://" not in image and not Path(image).is_file():
        raise SiteError(
            f"site {site.name}: image={image!r} is not there: build it (kdgat image build gpu), or correct its path"
        )


def _options(directive: str) -> list[str]:
    """Return the names of the options in one line: `-t` of -t10 and -t 10, `--mem` of --mem=1G."""
    try:
        tokens = shlex.split(directive)
    except ValueError as error:
        raise ValueError(f"{directive!r} is no option of sbatch ({error}): close the quotes") from error
    return [word.partition("=")[0] if word.startswith("--") else word[:2] for word in tokens if word.startswith("-")]


def is_for_users(name: str) -> bool:
    """Return whether a site is one that people run on: not the template, and none of the test cluster's."""
    return name != _TEMPLATE and not name.startswith(_TEST_PREFIX)


def _known_text() -> str:
    return ", ".join(sorted({*filter(is_for_users, find_sites()), LOCAL}))
