"""Numbers of the source that may only fall: `ceilings.toml` holds them, `test_layout.py` compares.

`python -m tests.ceilings` lowers the file to today's numbers, and refuses to raise any.
"""

import ast
import builtins
import sys
import tomllib
from collections import Counter
from pathlib import Path

from tests.support.imports import ROOT, Source, circles

PATH = Path(__file__).with_suffix(".toml")
USUAL_MODULES = 15  # of a folder that the file does not name
SLACK = {"lines": 200, "words": 300}  # that a ceiling may stay above its number; all others are equal
# Inside kdgat.can, each imports those below it alone. The modules of kdgat.can itself are above the library.
LAYERS = {
    "nightly": 6,
    "detection": 5,
    "evaluation": 4,
    "training": 3,
    "models": 2,
    "data": 1,
}

Ceilings = dict[str, dict[str, int]]


def measured(source: Source) -> Ceilings:
    """Return today's numbers by section and name."""
    pages = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    return {
        "numbers": {
            "modules": len(source.paths),
            "lines": sum(len(text.splitlines()) for text in source.texts.values()),
            "words": sum(len(page.read_text(encoding="utf-8").split()) for page in pages),
            "exceptions": len(exception_classes(source)),
            "imports_past_a_face": imports_past_a_face(source),
        },
        "modules": {
            folder: number
            for folder, number in sorted(Counter(map(source.folder, source.paths)).items())
            if number > USUAL_MODULES
        },
        "upward_imports": upward_imports(source),
        "circles": {" ".join(circle): len(circle) for circle in circles(source.graph(for_types=True))},
    }


def imports_past_a_face(source: Source) -> int:
    """Count imports of a module, not a face, from another folder."""
    return sum(
        not source.is_face(one.target) and source.folder(one.importer) != source.folder(one.target)
        for one in source.imports
    )


def exception_classes(source: Source) -> set[str]:
    """Return the classes that derive, directly or not, from an exception of Python or of a library."""
    bases = {
        f"{name}.{node.name}": [ast.unparse(base).rpartition(".")[2] for base in node.bases]
        for name, tree in source.trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef)
    }
    known = {
        name for name, kind in vars(builtins).items() if isinstance(kind, type) and issubclass(kind, BaseException)
    }
    found: set[str] = set()
    while more := {name for name, above in bases.items() if known & set(above)} - found:
        found |= more
        known |= {name.rpartition(".")[2] for name in more}
    return found


def upward_imports(source: Source) -> dict[str, int]:
    """Count, inside kdgat.can, imports of a higher layer, and of the modules of kdgat.can itself by the library."""
    found: Counter[str] = Counter()
    for one in source.imports:
        importer, target = (_part_of_can(source.folder(name)) for name in (one.importer, one.target))
        if importer in LAYERS and (
            LAYERS.get(target, 0) > LAYERS[importer] or (target == "can" and LAYERS[importer] == 1)
        ):
            found[f"{importer} to {target}"] += 1
    return dict(sorted(found.items()))


def _part_of_can(folder: str) -> str:
    parts = folder.split(".")
    return "" if parts[:2] != ["kdgat", "can"] else parts[2] if len(parts) > 2 else "can"


def recorded() -> Ceilings:
    """Return the ceilings of the file."""
    found: Ceilings = tomllib.loads(PATH.read_text(encoding="utf-8"))
    return found


def above(numbers: Ceilings, ceilings: Ceilings) -> list[str]:
    """Return a line per number that is above its ceiling."""
    return [
        f"{section}: {name}: {number}, ceiling {ceilings.get(section, {}).get(name, _without(section))}"
        for section, found in numbers.items()
        for name, number in found.items()
        if number > ceilings.get(section, {}).get(name, _without(section))
    ]


def below(numbers: Ceilings, ceilings: Ceilings) -> list[str]:
    """Return a line per ceiling that is above its number by more than the slack."""
    return [
        f"{section}: {name}: {numbers[section].get(name, 'usual')}, ceiling {ceiling}"
        for section, found in ceilings.items()
        for name, ceiling in found.items()
        if ceiling - numbers[section].get(name, _without(section)) > SLACK.get(name, 0)
    ]


def lowered(numbers: Ceilings, ceilings: Ceilings) -> Ceilings:
    """Return the ceilings, each that is above its number at that number, and none that is no longer needed."""
    return {
        section: {
            name: min(ceiling, numbers[section][name]) for name, ceiling in found.items() if name in numbers[section]
        }
        for section, found in ceilings.items()
    }


def write(ceilings: Ceilings) -> None:
    """Write the file, a line per number."""
    lines = ["# Numbers that may only fall, as tests/ceilings.py counts them. To lower: python -m tests.ceilings"]
    for section, found in ceilings.items():
        lines += ["", f"[{section}]", *(f'"{name}" = {number}' for name, number in found.items())]
    PATH.write_text("\n".join(lines) + "\n", encoding="utf-8")


def _without(section: str) -> int:
    return USUAL_MODULES if section == "modules" else 0


def main() -> None:
    """Lower the file to today's numbers; exit with 1 and the names of those that are above."""
    numbers, ceilings = measured(Source()), recorded()
    write(lowered(numbers, ceilings))
    if raised := above(numbers, ceilings):
        sys.exit("\n".join(["above their ceilings, which are never raised here:", *raised]))


if __name__ == "__main__":
    main()
