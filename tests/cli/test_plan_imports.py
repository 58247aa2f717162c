import subprocess
import sys

import pytest

HEAVY = ("torch", "torch_geometric", "lightning", "numba", "scipy", "h5py", "polars")
CODE = f"""
import sys
{{statement}}
loaded = [name for name in {HEAVY} if name in sys.modules]
sys.exit(f"loaded: {{{{', '.join(loaded)}}}}" if loaded else 0)
"""
PLAN = """
from kdgat.cli.main import main
try:
    main(["plan", "lap", "--preset", "full"])
except SystemExit as stop:
    assert not stop.code, stop.code
"""


@pytest.mark.parametrize(
    "statement",
    [PLAN, "import kdgat.lap.config, kdgat.lap.plan, kdgat.lap.specs, kdgat.lap.schedule"],
    ids=["command", "modules"],
)
def test_a_plan_of_lap_loads_nothing_that_computes(statement: str) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", CODE.format(statement=statement)], capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
