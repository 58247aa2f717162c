"""What a finished run hands to people: `results.json`, the report, and the artifacts in the Prefect UI."""

from flows.execution import Execution


def publish_results(execution: Execution) -> str:
    """Publish."""
    return ""
