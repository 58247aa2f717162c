"""Tests on a CUDA device that is made of the processor's memory: `make test-cuda`, with a pytest of its own.

    python -m pytest -p tests.pretended_cuda.plugin tests/pretended_cuda tests/training

Any test can be run so: what trains on `accelerator: auto` then trains on a device that says `cuda:0`.
"""
