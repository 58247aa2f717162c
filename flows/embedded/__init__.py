"""A Prefect API of a command's own, on the loopback, for who has configured none."""
