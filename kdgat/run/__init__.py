"""A run of a family: what its plan consists of, its output directory, and how far it is."""
