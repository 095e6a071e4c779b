"""`to_icechunk`, `store_dask` and `merge_sessions` on the processes of a real Dask cluster."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.official.suites import ROOT, SUITES, environment


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_workers_of_a_local_cluster_write_and_nothing_is_lost_in_silence(tmp_path: Path) -> None:
    python = environment(SUITES["icechunk-1.1.21"])
    script = Path(__file__).with_name("local_cluster.py")
    answer = subprocess.run(
        [str(python), str(script), str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr[-5000:]
    assert "all of it" in answer.stdout
