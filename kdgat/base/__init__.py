"""What every part of kdgat stands on: configuration, files, hashes, processor cores, errors, machine code of kernels.

A base: it imports nothing else of the house.
"""
