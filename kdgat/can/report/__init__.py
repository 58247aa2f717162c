"""The report of a CAN run: figures, tables and the page."""
