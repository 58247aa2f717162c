"""Start and end a private Slurm from the shell: `python -m tests.slurm up DIR` and `down DIR`."""

import argparse
import shlex
import sys
from pathlib import Path

from tests.slurm.configuration import ClusterError
from tests.slurm.slurm import PrivateSlurm


def main(arguments: list[str] | None = None) -> int:
    """Run `up`, which prints what the shell should evaluate, or `down`; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.slurm", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="boot a cluster and print `export SLURM_CONF=...`")
    up.add_argument("directory", type=Path)
    up.add_argument("--nodes", type=int, default=3)
    up.add_argument("--kill-wait", type=int, default=30, help="seconds from SIGTERM to SIGKILL")
    down = commands.add_parser("down", help="end exactly what `up` started")
    down.add_argument("directory", type=Path)
    options = parser.parse_args(arguments)
    try:
        if options.command == "up":
            _up(options.directory, options.nodes, options.kill_wait)
        else:
            _down(options.directory)
    except ClusterError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _up(directory: Path, num_nodes: int, kill_wait_s: int) -> None:
    cluster = PrivateSlurm.running(directory)
    if cluster is None:
        cluster = PrivateSlurm.boot(directory, num_nodes, kill_wait_s=kill_wait_s)
    else:
        print(f"runs already: {', '.join(cluster.nodes)}", file=sys.stderr)
    if not cluster.has_memory_limits:
        print(f"no memory limits: {cluster.no_memory_limits_because}", file=sys.stderr)
    if not cluster.has_gpu_devices:
        print("GPUs are links to /dev/zero and its like: device files cannot be made here", file=sys.stderr)
    print(f"export SLURM_CONF={shlex.quote(cluster.environment['SLURM_CONF'])}")


def _down(directory: Path) -> None:
    if not PrivateSlurm.exists(directory):
        print(f"nothing runs in {directory}", file=sys.stderr)
        return
    PrivateSlurm.attached(directory).stop()


if __name__ == "__main__":
    sys.exit(main())
