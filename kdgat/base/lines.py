"""Files of JSON lines that are appended to, of which a crash may cut a line short, and the next one follow it there."""

import json
import re


def whole_objects(line: bytes, first: str) -> list[bytes]:
    """Return what of a line can be read: all of it, or the whole objects in it whose first key matches `first`.

    >>> whole_objects(b'{"a": 1, "b{"a": 2}{"a": 3}', "a")
    [b'{"a": 2}', b'{"a": 3}']
    """
    text = line.decode(errors="replace")
    try:
        json.loads(line)
    except ValueError:
        found, start, beginning = [], 0, re.compile(rf'\{{\s*"(?:{first})"\s*:')
        while match := beginning.search(text, start):
            try:
                _, start = json.JSONDecoder().raw_decode(text, match.start())
                found.append(text[match.start() : start].encode())
            except ValueError:
                start = match.end()
        return found
    return [line]
