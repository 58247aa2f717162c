"""What a family of models is to the rest: planning, telling, and optional faces.

In: the name of a family. Out: the object that its package exports as `family.FAMILY`, by which the commands, flows and
reports of every family are written once. Compute is not here: `kdgat stage run` calls `<package>.stages.run`.
Read `protocol.py` first; docs/architecture.md shows what a new family consists of.
"""
