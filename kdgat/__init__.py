"""Train graph neural networks on a cluster that kills every job at its walltime."""

__version__ = "0.1.0"
