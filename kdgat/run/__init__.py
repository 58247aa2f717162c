"""A run of a family: what its plan consists of, its output directory, and how far it is.

In: a family's configuration and plan, with inputs as names. Out: specs with hashes for `kdgat.stage`, and an output
directory with `run.json`, the index of the stages; who executes them (a flow, this process) is left open. Read
`plan.py` first, then `directory.py`.
"""
