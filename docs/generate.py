"""Pages of the site that are made when it is built: the home page, and the reference, from the code that it describes.

A hook of MkDocs (`mkdocs.yml`). Nothing that it writes is kept in the repository, so nothing can be out of date; what
the code has and this file does not describe (an exit status, a variable) stops the build with its name.
"""

import importlib
import io
import json
import posixpath
import re
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final

import typer
import typer.main
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from typer.cli import get_docs_for_click

from kdgat.base.configuration import read_yaml
from kdgat.cli import stage
from kdgat.cli.config import as_yaml, keys_of
from kdgat.cli.main import COMMAND_GROUPS, build_application
from kdgat.container.contents import read_pins
from kdgat.container.variants import VARIANTS
from kdgat.family.protocol import Family
from kdgat.family.registry import find_family
from kdgat.stage.families import BUILT_IN

ROOT: Final = Path(__file__).parents[1]
SOURCES: Final = ("kdgat", "flows")
PRESETS: Final = ("quick", "full")
LINK: Final = re.compile(r"(?<=\]\()(?![a-z]+:|#)([^)\s#]+)")

# Files of the repository that a page of the site stands for.
PAGES: Final = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
    "LICENSE": "license.md",
    "CITATION.cff": "citation.md",
    "deployments/sites/example.yaml": "reference/sites.md",
}

# What a person may set, then what kdgat sets for its own processes and jobs.
VARIABLES: Final = {
    "KDGAT_ACCOUNT": "Account that jobs are charged to, instead of the site file's. `--account` wins over it.",
    "KDGAT_APPTAINER": "Path of the `apptainer` program, where it is not in `PATH`.",
    "KDGAT_AUTH": "`make deploy`: 1 (default) protects the server with a password; 0 does not.",
    "KDGAT_CACHE_ROOT": "Folder on a fast disk. Stages copy their inputs there before they read them.",
    "KDGAT_DATA_ROOT": "`make deploy`: folder that holds the folders of the datasets.",
    "KDGAT_HOME": "`make deploy`: folder of the installation (`~/.kdgat`).",
    "KDGAT_INBOX": "`make deploy`: folder for new recordings, one subfolder per dataset.",
    "KDGAT_NIGHTLY_CRON": "`make deploy`: when nights start, as a cron line (`0 2 * * *`).",
    "KDGAT_NOTIFY": "`make deploy`: who gets a message after nights; an address, or a notification block.",
    "KDGAT_OUTPUTS": "`make deploy`: folder of the runs' output directories.",
    "KDGAT_PORT": "`make deploy`: port of the Prefect server (4200, or the next free one).",
    "KDGAT_REGISTRY": "Folder of the model registry.",
    "KDGAT_SERVER_START_TIMEOUT_S": "Seconds to wait for the embedded Prefect server (180).",
    "KDGAT_SITE": "`make deploy`: where stages run unless a run names another site (`local`).",
    "KDGAT_SITES": "Folder with your site files. It is searched first.",
    "KDGAT_TAKE_OVER": "`make deploy`: name of a machine that is gone, whose installation this one takes over.",
    "KDGAT_TIMEZONE": "`make deploy`: time zone of the nightly schedule.",
}
INTERNAL_VARIABLES: Final = {
    "KDGAT_GPUS": "Number of GPUs that an attempt was given.",
    "KDGAT_IMAGE": "Path of the image that a job runs in.",
    "KDGAT_IMAGE_SHA256": "Digest of that image.",
    "KDGAT_IMAGE_STAMP": "Size and time of the image file when it was checked.",
    "KDGAT_IMAGE_STARTED": "Size and time of the image file that the node started.",
    "KDGAT_NODE_LOCAL": "The job's folder on the node's own disk.",
    "KDGAT_PARENT_PROCESS": "Process that a stage must not outlive.",
    "KDGAT_REVISION": "Git revision, where a process cannot see the checkout.",
    "KDGAT_SCRATCH": "The job's folder on the site's scratch filesystem.",
    "KDGAT_SERVICE": "Marks the server and the worker of an installation.",
    "KDGAT_WORKER": "Who started a worker: `make deploy` or systemd.",
}

# Constant that holds a status -> the commands that end with it, and its meaning.
STATUSES: Final = {
    "kdgat.cli.main:EXIT_USER_ERROR": (
        "every command",
        "A mistake, or nothing could be judged; the last line names it and the fix.",
    ),
    "kdgat.cli.main:EXIT_USAGE": ("every command", "Wrong usage: an unknown command or option."),
    "kdgat.cli.flow_run:EXIT_FAILED": ("`train`, `night`, `sweep`", "At least one stage failed."),
    "kdgat.run.end:EXIT_STOPPED": (
        "`train`, `night`, `sweep`",
        "Stopped by Ctrl-C, SIGTERM, SIGHUP or a cancellation. The same command resumes the run.",
    ),
    "kdgat.cli.detect:EXIT_ALARMS": ("`detect`", "At least one alarm."),
    "kdgat.cli.detect:EXIT_INTERRUPTED": ("`detect`", "Ctrl-C ended the reading of a finished log."),
    "kdgat.cli.lap:EXIT_BAD_LABELS": ("`lap inspect --check`", "A label is wrong."),
    "kdgat.stage.outcome:EXIT_FINISHED": ("`stage run`", "The stage has finished."),
    "kdgat.stage.outcome:EXIT_FAILED": ("`stage run`", "The stage failed; `outcome.json` has the reason."),
    "kdgat.stage.outcome:EXIT_ENVIRONMENT": (
        "`stage run`",
        "Its surroundings failed: a full disk, a locked or missing directory, a broken GPU. Run it again later.",
    ),
    "kdgat.stage.outcome:EXIT_PAUSED": ("`stage run`", "Paused with a checkpoint. Run it again to resume."),
    "flows.deployment.__main__:EXIT_NOT_RUNNING": (
        "`python -m flows.deployment status`",
        "Server or worker is down.",
    ),
    "flows.deployment.__main__:EXIT_INTERRUPTED": ("`make deploy`, `make undeploy`", "Stopped by Ctrl-C."),
}


@dataclass(frozen=True)
class Key:
    """One key of a YAML file that explains itself by comments."""

    name: str  # dotted
    value: str  # as written
    comment: str


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the pages that are made from the repository's own files and from the code."""
    for path, page in PAGES.items():
        if path.endswith(".md"):
            text = (ROOT / path).read_text(encoding="utf-8")
            files.append(File.generated(config, page, content=relinked(text, "", "")))
    for path, title in {"LICENSE": "License", "CITATION.cff": "How to cite"}.items():
        text = f"# {title}\n\n```text\n{(ROOT / path).read_text(encoding='utf-8')}\n```\n"
        files.append(File.generated(config, PAGES[path], content=text))
    for path in sorted((ROOT / "docs").rglob("*.ipynb")):
        page = str(path.relative_to(ROOT / "docs").with_suffix(".md"))
        files.append(File.generated(config, page, content=notebook_page(path)))
    for page, text in reference_pages().items():
        files.append(File.generated(config, page, content=text))
    return files


def notebook_page(path: Path) -> str:
    """Return the cells of a notebook as a page, with a link to the notebook itself."""
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    texts = ["".join(cell["source"]) for cell in cells]
    blocks = [
        f"```python\n{text}\n```" if cell["cell_type"] == "code" else text
        for cell, text in zip(cells, texts, strict=True)
    ]
    return "\n\n".join([*blocks, f"This page as a notebook: [{path.name}]({path.name})\n"])


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Let links to files of the repository lead to the pages that stand for them."""
    if page.file.generated_by:
        return markdown
    folder = posixpath.dirname(page.file.src_uri)
    return relinked(markdown, posixpath.join("docs", folder), folder)


def relinked(text: str, place: str, folder: str) -> str:
    """Rewrite relative links from a file of the repository to pages of the site.

    Args:
        text: Markdown.
        place: folder of the file in the repository; "" is its root.
        folder: folder of its page on the site; "" is its root.
    """

    def page_of(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(place, match[1]))
        page = PAGES.get(path, path.removeprefix("docs/"))
        return posixpath.relpath(page, folder or ".")

    return LINK.sub(page_of, text)


def reference_pages() -> dict[str, str]:
    """Return the pages of the reference by their path on the site."""
    pages = {"reference/commands.md": commands_page(), "reference/sites.md": sites_page()}
    for name in BUILT_IN:
        pages[f"reference/configuration-{name}.md"] = configuration_page(find_family(name))
    pages["reference/images.md"] = images_page()
    pages["reference/exit-statuses.md"] = statuses_page()
    pages["reference/environment.md"] = variables_page()
    return pages


def commands_page() -> str:
    """Return every command with its arguments and options, as typer knows them."""
    parts = [
        "# Commands\n",
        "Every command has `--help`. `--debug` adds a traceback to an error message. Options that take several values"
        " take them in a row: `--seeds 0 1 2`.\n",
        "| command | does |\n|---|---|",
        *(f"| [`kdgat {name}`](#kdgat-{name}) | {group.help} |" for name, group in COMMAND_GROUPS.items()),
        "",
    ]
    for name in COMMAND_GROUPS:
        if name == "stage":  # the one command that argparse reads, because jobs start without typer
            parts.append(_stage_command())
            continue
        root = typer.main.get_command(build_application(name, [name]))
        command = root.commands[name]  # type: ignore[attr-defined]
        text = get_docs_for_click(
            obj=command, ctx=typer.Context(root, info_name="kdgat"), name=name, indent=1, call_prefix="kdgat"
        )
        parts.append(_without_help_option(text))
    return "\n".join(parts)


def _without_help_option(text: str) -> str:
    return re.sub(r"\* `--help`: Show this message and exit\.\n", "", text).replace("**Options**:\n\n\n", "")


def _stage_command() -> str:
    shown = io.StringIO()
    try:
        with redirect_stdout(shown):
            stage.run(["run", "--help"])
    except SystemExit:
        pass
    help_text = re.sub(r"^usage: \S+ ", "usage: kdgat ", shown.getvalue())
    return f"## `kdgat stage`\n\n{COMMAND_GROUPS['stage'].help}\n\n### `kdgat stage run`\n\n```text\n{help_text}```\n"


def configuration_page(family: Family) -> str:
    """Return every key of a family's configuration with its default, its presets' values and its meaning."""
    folder = resources.files(family.config.preset_package) / "presets"
    others = {name: flat(read_yaml((folder / f"{name}.yaml").read_text(encoding="utf-8"))) for name in PRESETS}
    parts = [
        f"# Configuration: `{family.name}`\n",
        f"Keys of a run of {family.title}. Set one with `-O key=value`, or several in a file with `--config FILE`."
        f" `kdgat config show {family.name}` prints the values of your command and their origins.\n",
    ]
    head = "| key | default | " + " | ".join(PRESETS) + " | |\n|---|---|" + "---|" * len(PRESETS) + "---|"
    single: list[str] = []
    for key in keys_of(family.config):
        if key.is_section:
            parts += [f"\n## {key.name}\n", f"{key.meaning}\n", head] if "." not in key.name else []
            continue
        values = (as_yaml(key.value), *(others[name].get(key.name, "") for name in PRESETS))
        row = _row(f"`{key.name}`", *(f"`{value}`" if value else "" for value in values), key.meaning)
        (parts if "." in key.name else single).append(row)
    parts += ["\n## Keys without a section\n", head, *single]
    return "\n".join(parts) + "\n"


def sites_page() -> str:
    """Return every key of a site file."""
    rows = [
        "# Site files\n",
        "A site file describes a cluster for `--site NAME`. Copy `deployments/sites/example.yaml` to"
        " `~/.config/kdgat/sites/NAME.yaml` and leave out every key that you do not need."
        " `kdgat site show NAME` prints the result. See [On a SLURM cluster](../cluster.md).\n",
        "| key | example | |\n|---|---|---|",
    ]
    example = (ROOT / "deployments" / "sites" / "example.yaml").read_text(encoding="utf-8")
    for _, keys in sections(example):
        rows += [_row(f"`{key.name}`", f"`{key.value}`", key.comment) for key in keys]
    return "\n".join(rows) + "\n"


def images_page() -> str:
    """Return what the locks of the images have in common, how many packages each has, and in what they differ."""
    pins = {
        name: read_pins((ROOT / "containers" / f"{variant.file_stem}.lock").read_text(encoding="utf-8"))
        for name, variant in VARIANTS.items()
    }
    names = sorted({name for found in pins.values() for name in found})
    alike = [name for name in names if len({found.get(name) for found in pins.values()}) == 1]
    others = [name for name in names if name not in alike]
    return "\n".join(
        [
            "# Images\n",
            "Packages of the [container images](../image.md), by their locks.\n",
            _row("", *pins),
            "|---|" + "---|" * len(pins),
            _row("packages", *(str(len(found)) for found in pins.values())),
            *(_row(f"`{name}`", *(found.get(name, "") for found in pins.values())) for name in others),
            "\n## The same in all\n",
            ", ".join(f"`{name}` {pins['cpu'][name]}" for name in alike) + "\n",
        ]
    )


def sections(text: str) -> Iterator[tuple[Key, list[Key]]]:
    """Split a commented YAML file into its top-level sections; a key without a section is one of its own.

    >>> [(section, (key,))] = [(s.name, k) for s, k in sections("# Data.\\ndata:\\n  seed: 0  # of the draws\\n")]
    >>> section, key.name, key.value, key.comment
    ('data', 'data.seed', '0', 'of the draws')
    """
    line_of_key = re.compile(r"^( *)([\w.-]+):(?: +(?!#)(.*?))?(?: +# (.*))?$")
    path: list[str] = []
    current: tuple[Key, list[Key]] | None = None
    before: list[str] = []
    for line in text.splitlines():
        if line.startswith("# "):
            before.append(line[2:])
            continue
        match = line_of_key.match(line)
        if match is None:
            before = before if line.strip() else []
            continue
        indent, name, value, comment = match.groups()
        path = [*path[: len(indent) // 2], name]
        key = Key(".".join(path), value or "", comment or "")
        if not indent:
            if current:
                yield current
            introduction = " ".join(before) if not value or not comment else ""
            current, before = (Key(name, "", introduction or (comment if not value else "") or ""), []), []
        if value and current:
            current[1].append(key)
    if current:
        yield current


def flat(content: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Return nested values by dotted key, as YAML writes them on one line."""
    found: dict[str, str] = {}
    for name, value in content.items():
        if isinstance(value, dict):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = as_yaml(value)
    return found


def statuses_page() -> str:
    """Return the exit statuses of all programs; a constant that is not described stops the build."""
    constant = re.compile(r"^(EXIT_[A-Z_]+)\b.*=", re.MULTILINE)
    in_code = {
        f"{'.'.join(path.relative_to(ROOT).with_suffix('').parts)}:{name}"
        for path, text in source_files()
        for name in constant.findall(text)
    }
    _refuse_difference("STATUSES", in_code, STATUSES)
    rows: dict[tuple[str, str], int] = {("every command", "Done, or (`detect`) no alarm."): 0}
    for reference, row in STATUSES.items():
        module, _, name = reference.partition(":")
        rows[row] = getattr(importlib.import_module(module), name)
    lines = [f"| {rows[row]} | {row[0]} | {row[1]} |" for row in sorted(rows, key=lambda row: (rows[row], row))]
    introduction = "A command that a signal ends has no status of its own; a shell shows 128 and the signal's number.\n"
    return "\n".join(["# Exit statuses\n", introduction, "| status | of | meaning |\n|---|---|---|", *lines, ""])


def variables_page() -> str:
    """Return the environment variables that the code reads; one that is not described stops the build."""
    in_code = {name for _, text in source_files() for name in re.findall(r'"(KDGAT_[A-Z0-9_]+)"', text)}
    _refuse_difference("VARIABLES", in_code, {**VARIABLES, **INTERNAL_VARIABLES})
    return "\n".join(
        [
            "# Environment variables\n",
            "For you to set. Those of `make deploy` are kept in `installation.env`; see"
            " [Deployments](../deployments.md).\n",
            *_table(VARIABLES),
            "\nkdgat also respects `PREFECT_API_URL`, `OMP_NUM_THREADS`, `CUDA_VISIBLE_DEVICES`, `NO_COLOR` and"
            " `SLURM_JOB_END_TIME`.\n",
            "## Set by kdgat\n",
            "For its own processes and jobs. Do not set these.\n",
            *_table(INTERNAL_VARIABLES),
            "",
        ]
    )


def source_files() -> Iterator[tuple[Path, str]]:
    """Yield the modules of the distribution with their text."""
    for package in SOURCES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path, path.read_text(encoding="utf-8")


def _row(*cells: str) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _table(rows: Mapping[str, str]) -> list[str]:
    return ["| variable | |", "|---|---|", *(f"| `{name}` | {text} |" for name, text in sorted(rows.items()))]


def _refuse_difference(name: str, in_code: set[str], described: Mapping[str, Any]) -> None:
    missing, gone = sorted(in_code - set(described)), sorted(set(described) - in_code)
    if missing or gone:
        raise PluginError(f"docs/generate.py: {name} lacks {missing}, and has {gone}, which the code does not have")
