"""Programs written for the official library: its own test suites, with our API in its place."""

import json

import pytest

from tests.official.suites import COUNTS, SUITES, by_cause, compare
from tools.official2 import find_python
from tools.seaweedfs import binary


@pytest.mark.long
@pytest.mark.timeout(7200)
@pytest.mark.skipif(find_python() is None, reason="needs Python 3.12")
@pytest.mark.skipif(binary() is None, reason="needs SeaweedFS")
@pytest.mark.parametrize("suite", sorted(SUITES))
def test_as_many_official_tests_pass_as_before_and_every_other_has_a_cause(suite: str) -> None:
    found = compare(suite)
    counts = json.loads(COUNTS.read_text())[suite]
    assert len(found.passed_officially) >= counts["official"]
    assert by_cause(suite, found.failed).get("", []) == []
    assert len(found.passed_here) >= counts["here"]
