"""The report of a LAP run: figures and the page."""
