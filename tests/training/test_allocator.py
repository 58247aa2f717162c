import os
import subprocess
import sys

import pytest

from kdgat.training import use_expandable_segments
from kdgat.training.allocator import ALLOCATOR_VARIABLES, EXPANDABLE_SEGMENTS

# Allocates, writes and frees a block again and again; prints the page faults of all but the first rounds.
SCRIPT = """
import resource, sys, numpy as np
from kdgat.training.allocator import keep_freed_memory
if sys.argv[1] == "kept":
    assert keep_freed_memory()
for _ in range(3):
    np.ones(40_000_000, np.uint8)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    np.ones(40_000_000, np.uint8)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def page_faults(mode: str) -> int:
    result = subprocess.run([sys.executable, "-c", SCRIPT, mode], capture_output=True, text=True, check=True)
    return int(result.stdout)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="glibc only")
@pytest.mark.processes
def test_freed_blocks_are_used_again_without_new_pages() -> None:
    assert page_faults("kept") < page_faults("default") / 5


def test_cuda_grows_its_segments_unless_somebody_has_decided_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ALLOCATOR_VARIABLES:
        monkeypatch.delenv(name, raising=False)
    use_expandable_segments()
    assert os.environ["PYTORCH_CUDA_ALLOC_CONF"] == EXPANDABLE_SEGMENTS
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64")
    use_expandable_segments()
    assert os.environ["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb:64"
