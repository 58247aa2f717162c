"""The process of an embedded Prefect API: it serves on the socket that it inherits, and ends when its parent has."""

import os
import shutil
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import Final

from flows.embedded.database import EmbeddedDatabase
from flows.log_tail import trim
from kdgat.stage import garbage_kept

PARENT_POLL_S: Final = 1.0
KEEP_INTERVAL_S: Final = 600.0  # what a machine that stops loses of what Prefect shows
END_S: Final = 10.0


def main(parent: int, descriptor: int, database: EmbeddedDatabase, log: Path) -> None:
    """Serve until a signal comes or the parent is gone; then nobody else keeps the database."""
    with garbage_kept():
        import uvicorn
        from prefect.server.api.server import create_app
    app = create_app(ephemeral=True, final=True)  # only the services that a single flow run needs
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="on"))

    def leave() -> None:
        database.keep()
        shutil.rmtree(database.folder, ignore_errors=True)

    def attend() -> None:
        keep_at = time.monotonic() + KEEP_INTERVAL_S
        while os.getppid() == parent:
            time.sleep(PARENT_POLL_S)
            if time.monotonic() > keep_at:
                keep_at += KEEP_INTERVAL_S
                database.keep()
                trim(log)
        server.should_exit = True
        time.sleep(END_S)
        leave()  # the server hangs
        os._exit(1)

    threading.Thread(target=attend, daemon=True).start()
    signal.signal(signal.SIGTERM, lambda number, frame: None)  # uvicorn, which heeds it, sends it again at its end
    server.run([socket.socket(fileno=descriptor)])
    if os.getppid() != parent:
        leave()


if __name__ == "__main__":
    _, parent, descriptor, folder, kept, log = sys.argv
    main(int(parent), int(descriptor), EmbeddedDatabase(Path(folder), Path(kept)), Path(log))
