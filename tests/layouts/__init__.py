"""Files as each released layout has them, made once and read by every later version; `FOLDER/1` is the first."""

from pathlib import Path

FOLDER = Path(__file__).parent / "files"
