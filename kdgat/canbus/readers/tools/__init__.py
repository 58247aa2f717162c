"""Logs of tools that are read a line after the other in Python, and files that are known and not read.

In: the first lines of a file. Out: what reads its lines, or an error that names the tool and what to do. `tables.py`
knows tools by the header of their table, `words.py` by the look of their lines; both state what a line holds by
`frames.py`. `foreign.py` knows what is no log, or none that can be read. `sqlite.py` reads python-can's database.
"""

from collections.abc import Callable, Sequence

from kdgat.canbus.readers.tools.foreign import refuse_foreign
from kdgat.canbus.readers.tools.frames import ReadLine, ToolLines
from kdgat.canbus.readers.tools.tables import find_table
from kdgat.canbus.readers.tools.words import find_form

__all__ = ["ReadLine", "ToolLines", "find_tool", "refuse_foreign"]


def find_tool(lines: Sequence[str]) -> Callable[[], ReadLine] | None:
    """Find the tool that has written the first lines of a file; return what makes the reader of its lines."""
    return find_table(lines) or find_form(lines)
