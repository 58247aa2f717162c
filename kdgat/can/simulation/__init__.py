"""A simulated car: what its control units send, how the bus orders it, and what an attacker does to it."""
