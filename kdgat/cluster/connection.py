"""Where the Dask scheduler of a run listens, and the key for it: one file, which each new scheduler writes anew."""

from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict, ValidationError

from kdgat.base.files import write_bytes_atomically

FILE_NAME: Final = "connection.json"


class Connection(BaseModel):
    """An address, and a certificate with its key: whoever has them can run code in the jobs of a run."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    address: str
    certificate: str
    key: str

    def write(self, path: Path) -> None:
        """Write it; at no time can anybody else read it."""
        write_bytes_atomically(path, self.model_dump_json().encode(), mode=0o600)


def read_connection(path: Path) -> Connection | None:
    """Read it; None where no scheduler has been yet."""
    try:
        return Connection.model_validate_json(path.read_bytes())
    except (OSError, ValidationError):
        return None
