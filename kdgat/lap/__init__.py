"""Linear assignment: exact solver, learned warm starts, progressive training by matrix size."""
