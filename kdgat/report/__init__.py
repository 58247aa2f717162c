"""The frame of every report: one HTML file that opens from disk without a network.

In: sections of a family (text, tables, figures) and what the stages of a run logged. Out: the page, with training
curves and provenance, which are the same for all families; nothing here names a family. Read `document.py` first, then
`style.py`.
"""

from typing import TYPE_CHECKING

from kdgat.base.lazy import lazy_names

if TYPE_CHECKING:
    from kdgat.report.content import RunContent as RunContent
    from kdgat.report.document import Document as Document
    from kdgat.report.document import Section as Section
    from kdgat.report.document import provenance as provenance
    from kdgat.report.style import BLACK as BLACK
    from kdgat.report.style import BLUE as BLUE
    from kdgat.report.style import GREY as GREY
    from kdgat.report.style import ORANGE as ORANGE
    from kdgat.report.style import PURPLE as PURPLE
    from kdgat.report.style import VERMILLION as VERMILLION
    from kdgat.report.style import Key as Key
    from kdgat.report.style import Picture as Picture
    from kdgat.report.style import blank as blank

__all__, __getattr__, __dir__ = lazy_names(__name__)
