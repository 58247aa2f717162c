"""What the flows of nights do: `flows/nightly.py` and `flows/evaluation.py`, which deployments name, call it."""
