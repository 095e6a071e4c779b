"""Programs written for the official library: its own test suites, with our API in its place."""

import json

import pytest

from tests.official.suites import COUNTS, SUITES, by_cause, passed, run
from tools.official2 import find_python
from tools.seaweedfs import binary


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.skipif(find_python() is None, reason="needs Python 3.12")
@pytest.mark.skipif(binary() is None, reason="needs SeaweedFS")
@pytest.mark.parametrize("suite", sorted(SUITES))
def test_as_many_official_tests_pass_as_before(suite: str) -> None:
    outcomes = run(suite)
    print(*(f"{count:5} {cause}" for cause, count in by_cause(outcomes).most_common()), sep="\n")
    assert passed(outcomes) >= json.loads(COUNTS.read_text()).get(suite, 1)
