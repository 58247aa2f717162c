"""The documentation: its links, its site, its tutorials."""
