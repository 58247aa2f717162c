"""What `pyproject.toml` cannot say: a wheel brings the JSON schemas of results, made from the code that writes them."""

import subprocess
import sys
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

RESULTS = ("kdgat.can.evaluation.results", "kdgat.lap.evaluation.results")


class BuildWithSchemas(build_py):
    """Put a schema beside each of these modules; in a checkout, `python -m MODULE` prints it."""

    def run(self) -> None:
        """Build the package, and no schema where it is installed from the checkout, in place."""
        super().run()
        if self.editable_mode:
            return
        for module in RESULTS:
            schema = subprocess.run([sys.executable, "-m", module], capture_output=True, check=True).stdout
            Path(self.build_lib, *module.split(".")).with_suffix(".schema.json").write_bytes(schema)


setup(cmdclass={"build_py": BuildWithSchemas})
