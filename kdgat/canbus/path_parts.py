"""Which names may stand in a path: a dataset's is a folder's, a scenario's and a recording's are parts of a file's."""


def is_path_part(text: str) -> bool:
    """Tell whether a name is one part of a path, and no hidden one: what it names stays in the folder it belongs to.

    >>> [is_path_part(name) for name in ("can-train-and-test_v1.5", "", "..", "a/b", "a\\0b")]
    [True, False, False, False, False]
    """
    return bool(text.strip()) and "/" not in text and not text.startswith(".") and text.isprintable()


def require_dataset_name(name: str) -> str:
    """Return a dataset's name; ValueError with what it cannot be part of and the fix where it cannot name a folder."""
    if not is_path_part(name):
        raise ValueError(
            f"dataset={name!r} cannot be part of a file name, and names a folder of the data root; use letters, "
            "digits, -, _ and ., the last one not first"
        )
    return name
