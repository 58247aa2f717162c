"""`python -m flows.deployment COMMAND`: what `make deploy`, its like, people and cron call."""

import argparse
import os
import sys

from flows.deployment import lifecycle
from flows.deployment.installation import Installation
from kdgat.base import say
from kdgat.stage.families import is_user_error

EXIT_NOT_RUNNING = 3  # as `systemctl status` has it
EXIT_INTERRUPTED = 130


def main(arguments: list[str] | None = None) -> int:
    """Do what was asked for; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m flows.deployment", description=lifecycle.__doc__)
    parser.add_argument("command", choices=["up", "down", "update", "status", "auth", "check", "stop-runs"])
    command = parser.parse_args(arguments).command
    try:
        if command == "up":
            _tell(lifecycle.next_commands(lifecycle.up(_tell)))
        elif command == "down":
            lifecycle.down(_tell)
        elif command == "update":
            lifecycle.update(_tell)
        elif command == "auth":
            _tell(Installation.find().auth_string)
        elif command == "stop-runs":
            lifecycle.stop_runs(_tell)
        elif not (lifecycle.check_nights if command == "check" else lifecycle.status)(_tell):
            return EXIT_NOT_RUNNING
    except KeyboardInterrupt:
        print("stopped", file=sys.stderr)
        return EXIT_INTERRUPTED
    except Exception as error:
        if not is_user_error(error):
            raise
        say(f"error: {error}")
        return 1
    return 0


def _tell(text: str) -> None:
    try:
        print(text, flush=True)
    except BrokenPipeError:  # nobody reads any more: no reason to leave things half done
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
