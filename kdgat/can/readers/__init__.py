"""Readers of recorded CAN traffic, one module per kind of file."""
