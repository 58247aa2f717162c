"""A plan as a flowchart in Mermaid's language, which Markdown on GitHub, GitLab and documentation sites draws."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kdgat.run.plan import PlannedStage


def flowchart(plan: Sequence[PlannedStage], states: Mapping[str, str] | None = None) -> str:
    """Return the stages of a plan as boxes, with an arrow from each to those that need it.

    Args:
        plan: stages, each after those that it depends on.
        states: by name of the stage, written below it; None where there is no run yet.

    >>> print(flowchart([PlannedStage("prepare", "prepare", "all", 0, {})], {"prepare": "finished"}))
    flowchart TD
        s0["prepare<br/>finished"]
    """
    ids = {planned.name: f"s{number}" for number, planned in enumerate(plan)}
    lines = ["flowchart TD"]
    for name, id in ids.items():
        state = (states or {}).get(name, "")
        lines.append(f'    {id}["{name}{"<br/>" + state if state else ""}"]')
    lines += [f"    {ids[need]} --> {ids[planned.name]}" for planned in plan for need in planned.depends_on]
    return "\n".join(lines)
