"""One installation of server, worker and deployments: where everything of it lies, from environment, file or default.

`installation.env` in the installation's home is what shells, systemd units and `deployments/prefect.yaml` read.
"""

import hashlib
import os
import secrets
import shlex
import sys
import zoneinfo
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Self

import psutil
from pydantic import AfterValidator, Field, field_validator

import kdgat
from flows.deployment.overdue import home_of
from kdgat.base import Config, ConfigurationError, UserError, validate_config, write_bytes_atomically
from kdgat.base.files import make_private_folder

HOME_VARIABLE: Final = "KDGAT_HOME"
DATABASE_VARIABLE: Final = "PREFECT_SERVER_DATABASE_CONNECTION_URL"
OLD_DATABASE_VARIABLE: Final = "PREFECT_API_DATABASE_CONNECTION_URL"  # its name in Prefect 2, still read
NOTIFY_VARIABLE: Final = "KDGAT_NOTIFY"
PREFECT: Final = (sys.executable, "-P", "-m", "prefect", "--no-prompt")
PREFECT_FILE: Final = Path("deployments", "prefect.yaml")
INSTALLED_PREFECT_FILE: Final = Path(sys.prefix, "share", "kdgat", "prefect.yaml")  # where a wheel puts it
SERVER_AUTH_VARIABLE: Final = "PREFECT_SERVER_API_AUTH_STRING"
CLIENT_AUTH_VARIABLE: Final = "PREFECT_API_AUTH_STRING"
POOL: Final = "kdgat"
HOST: Final = "127.0.0.1"
HEARTBEAT_S: Final = 30  # the shortest that Prefect allows
RETENTION_DAYS: Final = 90  # how long the server shows a run that has ended
WORKER_POLL_S: Final = 5  # how long a run may wait for the worker to look
SYNTHETIC: Final = "synthetic"  # the dataset that is made here
# On which the write-ahead log of SQLite does not work.
NETWORK_FILESYSTEMS: Final = frozenset(
    (
        *("nfs", "nfs4", "lustre", "gpfs", "beegfs", "beegfs_nodev", "ceph", "fuse.ceph", "cifs", "smb3"),
        *("panfs", "wekafs", "glusterfs", "fuse.glusterfs", "fuse.sshfs", "afs"),
    )
)
LOCAL: Final = Path("/var/tmp")  # on a disk of each machine, and kept when it starts again
DATABASE: Final = "prefect.db"
_HEADER: Final = """\
# Written by `make deploy`. Values set in its environment win over those in here, and are then written here.
# For a shell: set -a; . {path}; set +a
"""


_Folder = Annotated[Path, AfterValidator(lambda path: path.expanduser().absolute())]


class Installation(Config):
    """Hold where an installation keeps what, and how it is reached; aliases are the variables that say it."""

    # What follows from the home stands before what can be wrong: pydantic would complain of it as well.
    home: _Folder = Field(alias=HOME_VARIABLE)
    data_root: _Folder = Field(default_factory=lambda known: known["home"] / "data", alias="KDGAT_DATA_ROOT")
    outputs: _Folder = Field(default_factory=lambda known: known["home"] / "outputs", alias="KDGAT_OUTPUTS")
    registry: _Folder = Field(default_factory=lambda known: known["home"] / "registry", alias="KDGAT_REGISTRY")
    inbox: _Folder = Field(default_factory=lambda known: known["home"] / "inbox", alias="KDGAT_INBOX")
    database: str = Field(
        default_factory=lambda known: f"sqlite+aiosqlite:///{default_database(known['home'])}",
        alias=DATABASE_VARIABLE,
    )
    site: str = Field("local", alias="KDGAT_SITE")
    port: int = Field(4200, ge=1, le=65535, alias="KDGAT_PORT")
    nightly_cron: str = Field("0 2 * * *", alias="KDGAT_NIGHTLY_CRON")
    timezone: str = Field(default_factory=lambda: machine_timezone(), alias="KDGAT_TIMEZONE")
    notify: str = Field("", alias=NOTIFY_VARIABLE)  # who is told how nights went: an address, or a block's TYPE/NAME
    auth: bool = Field(True, alias="KDGAT_AUTH")  # whether the server answers only to those who know the string
    auth_string: str = Field("", alias=SERVER_AUTH_VARIABLE)  # USER:PASSWORD

    @field_validator("timezone")
    @classmethod
    def _check_timezone(cls, name: str) -> str:
        if name not in zoneinfo.available_timezones():
            raise ValueError("it is no time zone: write its name, as Europe/Vienna")
        return name

    @classmethod
    def find(cls, environment: Mapping[str, str] = os.environ) -> Self:
        """Put an installation together from the environment, its file, and defaults, in this order.

        Raises:
            UserError: naming variable, value and fix.
        """
        home = home_of(environment)
        written = _read(home / "installation.env")
        given = {name: value for name, value in environment.items() if value}
        if written.get("KDGAT_AUTH") == "0":  # the default of earlier versions: nobody has chosen it
            if written.items() <= given.items():  # nor has a shell that has read that file
                del given["KDGAT_AUTH"]
            del written["KDGAT_AUTH"]
        listed = {DATABASE_VARIABLE: environment.get(OLD_DATABASE_VARIABLE), **written}
        listed |= given
        # From the file alone: the environment may have that of another server.
        listed |= {HOME_VARIABLE: str(home), SERVER_AUTH_VARIABLE: written.get(SERVER_AUTH_VARIABLE)}
        variables = {field.alias for field in cls.model_fields.values() if field.alias}
        try:
            found = validate_config(cls, {name: listed[name] for name in variables & set(listed) if listed[name]})
        except ConfigurationError as error:
            raise UserError(str(error).removeprefix(f"{cls.__name__}: ")) from error
        if found.auth and not found.auth_string:
            return found.model_copy(update={"auth_string": new_auth_string()})
        return found

    @property
    def path(self) -> Path:
        """Return the file that says all this."""
        return self.home / "installation.env"

    @property
    def checkout(self) -> Path:
        """Return the folder that holds `flows`: the checkout, or site-packages."""
        return Path(kdgat.__file__).parents[1]

    @property
    def url(self) -> str:
        """Return the address of the server's API."""
        return f"http://{HOST}:{self.port}/api"

    def environment(self) -> dict[str, str]:
        """Return the variables for server, worker and runs: nothing leaves this machine, dead runs are noticed."""
        values = self.model_dump(by_alias=True) | {CLIENT_AUTH_VARIABLE: self.auth_string}
        values["KDGAT_AUTH"] = "on" if self.auth else "off"
        secret = () if self.auth else (SERVER_AUTH_VARIABLE, CLIENT_AUTH_VARIABLE)
        own = {name: str(value) for name, value in values.items() if name not in secret}
        # Any page of the web could have the user's browser ask the loopback; only the UI's own may.
        pages = ",".join(f"http://{name}:{self.port}" for name in (HOST, "localhost"))
        return own | {
            "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": pages,
            "PREFECT_HOME": str(self.home / "prefect"),
            "PREFECT_API_URL": self.url,
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
            "DO_NOT_TRACK": "1",
            "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": str(HEARTBEAT_S),
            # In memory, who holds a dataset's limit would be forgotten by a server that is killed, and never freed.
            "PREFECT_SERVER_CONCURRENCY_LEASE_STORAGE": "prefect.server.concurrency.lease_storage.filesystem",
            # Events that wait 5 s to be written are unknown to who asks meanwhile: `--watch` would wait forever for the
            # end of a run that is cancelled at once, as where another one has the dataset.
            "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_BATCH_SIZE": "1",
            # By default `--watch` prints that a run has failed, and no line of its log that says why.
            "PREFECT_SERVER_LOGS_STREAM_OUT_ENABLED": "true",
            "PREFECT_SERVER_LOGS_STREAM_PUBLISHING_ENABLED": "true",
            "PREFECT_WORKER_QUERY_SECONDS": str(WORKER_POLL_S),
            # With `flow_runs`, a run goes with its task runs, logs and artifacts; by default they stay for ever.
            "PREFECT_SERVER_SERVICES_DB_VACUUM_ENABLED": "events,flow_runs",
            "PREFECT_SERVER_SERVICES_DB_VACUUM_RETENTION_PERIOD": str(RETENTION_DAYS * 86_400),
        }

    def write(self) -> None:
        """Write the file, readable for its owner alone: it may hold passwords of the database and of the API."""
        from kdgat.canbus.catalog import load_catalog

        inboxes = [self.inbox / dataset for dataset in load_catalog(None)]
        self.make_home()
        for path in (self.home / "prefect", self.outputs, self.registry, *inboxes):
            path.mkdir(parents=True, exist_ok=True)
        if self.has_moved_database:
            make_own_folder(own_folder(self.home).parent)
            make_own_folder(own_folder(self.home))
        lines = [f"{name}={shlex.quote(value)}\n" for name, value in self.environment().items()]
        content = _HEADER.format(path=shlex.quote(str(self.path))) + "".join(lines)
        if not self.path.is_file() or self.path.read_text(encoding="utf-8") != content:
            write_bytes_atomically(self.path, content.encode(), mode=0o600)
        self.path.chmod(0o600)

    @property
    def has_moved_database(self) -> bool:
        """Tell whether the database lies on a disk of this machine because the home is on a network filesystem."""
        return self.database.endswith(f"//{own_folder(self.home) / DATABASE}")

    def describe_moved_database(self) -> str:
        """Say where the database is if it is not in the home; else empty."""
        if not self.has_moved_database:
            return ""
        return (
            f"note: {self.home} lies on a network filesystem ({filesystem_of(self.home)}), on which SQLite may be "
            f"damaged: the database is {own_folder(self.home) / DATABASE}, on a disk of this machine. Another machine "
            f"would begin with an empty one; {DATABASE_VARIABLE} names another file, or PostgreSQL"
        )

    def make_home(self) -> None:
        """Make the home, for its owner alone; one that is there stays as it is."""
        self.home.parent.mkdir(parents=True, exist_ok=True)
        self.home.mkdir(mode=0o700, exist_ok=True)


def default_database(home: Path, network: frozenset[str] = NETWORK_FILESYSTEMS) -> Path:
    """Return where the database of an installation lies if nobody says it: in its home, if that is on a disk."""
    is_elsewhere = filesystem_of(home) in network and filesystem_of(LOCAL) not in network
    return own_folder(home) / DATABASE if is_elsewhere else home / "prefect" / DATABASE


def own_folder(home: Path) -> Path:
    """Return the folder for what an installation keeps on a disk of the machine, below one of the user."""
    return LOCAL / f"kdgat-{os.getuid()}" / hashlib.sha256(os.fsencode(home)).hexdigest()[:8]


def make_own_folder(path: Path) -> None:
    """Make a folder for its owner alone, for the database; UserError if somebody else has made it, or opened it."""
    try:
        make_private_folder(path)
    except PermissionError as error:
        raise UserError(
            f"{path} is not a folder for you alone: somebody else has made it, or opened it. Name another place for "
            f"the database, {DATABASE_VARIABLE}=sqlite+aiosqlite:////DISK/prefect.db"
        ) from error


def find_prefect_file(checkout: Path) -> Path:
    """Return the file with the deployments: the checkout's, or the one that a wheel has brought.

    Raises:
        UserError: if there is neither.
    """
    for path in (checkout / PREFECT_FILE, INSTALLED_PREFECT_FILE):
        if path.is_file():
            return path
    raise UserError(
        f"{checkout / PREFECT_FILE} and {INSTALLED_PREFECT_FILE} are missing: "
        "install kdgat into a virtual environment, or use a checkout with `make install`"
    )


def new_auth_string() -> str:
    """Make what a server asks for: a name, a colon, and what nobody guesses."""
    return f"kdgat:{secrets.token_urlsafe(24)}"


def describe() -> dict[str, Any]:
    """State what `deployments/prefect.yaml` calls `{{ installation.KEY }}`; a build step of `prefect deploy`.

    `has_DATASET` tells for each dataset of the catalog whether its recordings are there.
    """
    from kdgat.canbus.catalog import load_catalog

    here = Installation.find()
    present = {f"has_{name}": entry.folder_in(here.data_root).is_dir() for name, entry in load_catalog(None).items()}
    return {
        "checkout": str(here.checkout),
        **{name: str(getattr(here, name)) for name in ("data_root", "outputs", "registry", "inbox")},
        **{name: getattr(here, name) for name in ("site", "nightly_cron", "timezone")},
        **present,
    }


def machine_timezone() -> str:
    """Return the name of this machine's time zone, UTC where it says none."""
    target = str(Path("/etc/localtime").resolve())
    name = os.environ.get("TZ") or target.rpartition("zoneinfo/")[2]
    return name if name in zoneinfo.available_timezones() else "UTC"


def _read(path: Path) -> dict[str, str]:
    found = {}
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    for number, line in enumerate(lines, 1):
        if line.strip() and not line.lstrip().startswith("#"):
            try:
                (word,) = shlex.split(line)
                name, value = word.split("=", 1)
            except ValueError as error:
                text = f"{path}, line {number}: {line!r} is no NAME=VALUE: quote a value with spaces"
                raise UserError(text) from error
            if value:
                found[name] = value
    return found


def filesystem_of(path: Path) -> str:
    """Return the kind of the filesystem that a path lies on, as `mount` names it; empty if that is not known."""
    kinds = {Path(mount.mountpoint): mount.fstype for mount in psutil.disk_partitions(all=True)}
    resolved = path.resolve()
    return next((kinds[folder] for folder in (resolved, *resolved.parents) if folder in kinds), "")


def warn_of_database(address: str, network: frozenset[str] = NETWORK_FILESYSTEMS) -> str:
    """Return what a person should know of a database at this address; empty: nothing."""
    from sqlalchemy.engine import make_url

    url = make_url(address)
    kind = filesystem_of(Path(url.database)) if url.get_backend_name() == "sqlite" and url.database else ""
    if kind not in network:
        return ""
    return (
        f"note: {url.database} lies on a network filesystem ({kind}), on which SQLite may damage it: name a file on "
        f"a disk of this machine, {DATABASE_VARIABLE}=sqlite+aiosqlite:////DISK/prefect.db, or use PostgreSQL"
    )


def without_passwords(database: str) -> str:
    """Return the address of a database as it may be shown.

    Raises:
        UserError: if it is no address; it may hold a password, and is not repeated.
    """
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    try:
        url = make_url(database)
    except (ArgumentError, ValueError) as error:
        raise UserError(
            f"{DATABASE_VARIABLE} is no address of a database: write postgresql+asyncpg://USER:PASSWORD@HOST/DATABASE"
        ) from error
    secret = [key for key in url.query if "pass" in key.lower()]
    return url.difference_update_query(secret).render_as_string(hide_password=True)
