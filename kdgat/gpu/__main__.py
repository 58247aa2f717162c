"""`python -m kdgat.gpu`: what `kdgat doctor gpu` does, where no command line is installed."""

import argparse
import sys
from pathlib import Path

from kdgat.gpu.check import PARTS, check_gpu


def main(arguments: list[str] | None = None) -> int:
    """Check the GPU of this machine, and return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m kdgat.gpu", description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("gpu_check"), help="folder for gpu_check.json and the page")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"), help="cpu: try the check itself")
    parser.add_argument("--part", action="append", choices=list(PARTS), help="only this part; several times for more")
    options = parser.parse_args(arguments)
    report = check_gpu(options.out, options.device, options.part or tuple(PARTS), say=print)
    return 1 if any(part["error"] for part in report["parts"].values()) else 0


if __name__ == "__main__":
    sys.exit(main())
