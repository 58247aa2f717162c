"""Ten minutes on a GPU: what of kdgat computes there, how fast, and whether it survives.

In: a machine with a GPU and the training dependencies alone. Out: `gpu_check.json`, written anew after each part, and
`gpu_check.md`, the same as a page. Each part is a process of its own with a limit of time, so that a fault of a
kernel, or a wait for ever, costs one part. Read `check.py` first.
"""
