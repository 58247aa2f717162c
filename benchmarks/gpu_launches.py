"""What a training step asks of a GPU, counted on a pretended one: launches, uploads and waits, before and after.

Both rows of a network are made in one run: batches gathered from the host's memory and sent, as training did, and from
columns on the device, as it does now where they fit. No GPU is needed, and nothing here is a time.

    python -m benchmarks.gpu_launches
"""

from tests.pretended_cuda import library

library.load()  # before torch

from kdgat.gpu.networks import NETWORKS  # noqa: E402
from kdgat.gpu.step import Stepper, make_stepper  # noqa: E402
from kdgat.graphs import ColumnStore  # noqa: E402
from tests.pretended_cuda.device import pretended_cuda  # noqa: E402

STEPS = 2


def main() -> None:
    """Print a table for benchmarks/README.md."""
    print("| a step | batches from | launches | uploads | sent, kB | waits |\n|---|---|---|---|---|---|")
    for name, network in NETWORKS.items():
        size = network.batches[0]
        for place in ("host", "device"):
            stepper = make_stepper(name, "cpu")
            columns = network.columns()
            with pretended_cuda() as seen:
                stepper = Stepper(stepper.module, columns, size, "cuda", "32-true")
                if place == "host":
                    stepper.store = ColumnStore(columns)
                stepper.learn(stepper.batch(0))
                seen.clear()
                for step in range(1, 1 + STEPS):
                    stepper.learn(stepper.batch(step))
                found = (seen.launches, seen.uploads.total(), seen.bytes_sent / 1e3, seen.waits.total())
            launches, uploads, sent, waits = (number / STEPS for number in found)
            print(f"| {name}, {size} | {place} | {launches:,.0f} | {uploads:.0f} | {sent:,.1f} | {waits:.0f} |")


if __name__ == "__main__":
    main()
