"""`python -m kdgat.can.evaluation.scoring_process FD`: score windows that come through a socket, one core, no torch."""

import signal
import sys
from multiprocessing.connection import Connection

# Before anything is loaded: signals to the group of processes are the business of the one that started this.
for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, signal.SIG_IGN)

from kdgat.base import UserError  # noqa: E402
from kdgat.can.models.runtime import Network  # noqa: E402
from kdgat.stage import garbage_kept  # noqa: E402
from kdgat.stage.process import leave  # noqa: E402


def main() -> None:
    """Take networks as a list of models; then answer `Windows` after `Windows` with the logits of each.

    An error is sent in their place. The other end closes the socket to end this process, or ends itself.
    """
    with garbage_kept(), Connection(int(sys.argv[1])) as connection:  # arrays are no garbage
        try:
            networks = [Network(model) for model in connection.recv()]
            while True:
                windows = connection.recv()
                try:
                    connection.send([network.score(windows)[0] for network in networks])
                except UserError as error:
                    connection.send(error)
        except (EOFError, ConnectionError):
            leave(0)


if __name__ == "__main__":
    main()
