"""Damaged input for everything that reads: what comes is read, or refused in one sentence, and nothing is left behind.

`make test` tries a few inputs of each target, `make fuzz` (`python -m tests.fuzz`) as many as are asked for.
"""
