import re
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_provider_icechunk.format.patterns import pattern_found

ATOMS = st.sampled_from(
    [
        "a",
        "b",
        "_",
        ".",
        "[ab]",
        "[^a]",
        r"\d",
        r"\W",
        "(a|b)",
        "(?:ab)",
        "[a-c0-9_]",
        r"\.",
        "[]a]",
        "[^]a]",
        "[a-]",
        r"[\d_]",
        r"\b",
        r"\s",
    ]
)
REPEATS = st.sampled_from(["", "", "*", "+", "?", "{2}", "{1,3}", "{0,}", "*?", "+?"])
BRANCHES = st.lists(st.tuples(ATOMS, REPEATS), max_size=5).map(
    lambda parts: "".join(atom + ("" if atom == r"\b" else repeat) for atom, repeat in parts)
)
PATTERNS = st.tuples(
    st.sampled_from(["", "^", "(?i)"]),
    st.lists(BRANCHES, min_size=1, max_size=3).map("|".join),
    st.sampled_from(["", "$"]),
).map("".join)


@settings(deadline=None, max_examples=400)
@given(PATTERNS, st.text(alphabet="abABx_.19]- /", max_size=10))
def test_agrees_with_the_standard_library_on_regular_patterns(pattern, text):
    assert pattern_found(pattern, text) == bool(re.search(pattern, text))


@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "(a|a)*b", ".*.*.*.*.*.*x", "(a?){30}a{30}b", "(((a*)*)*)*b"]
)
def test_answers_patterns_that_explode_elsewhere(pattern):
    assert not pattern_found(pattern, "a" * 4000 + "!")


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        ")",
        "[",
        "[]",
        "a{2",
        "*a",
        "a{3,2}",
        r"(a)\1",
        "(?=a)",
        "(?<=a)b",
        "(?!b)a",
        r"\p{L}",
        "(" * 3000,
        "a{999}{999}",
        "[z-a]",
        "[a&&b]",
        "\\",
        "(?x)a",
        "a" * 5000,
    ],
)
def test_a_pattern_that_is_none_is_found_nowhere(pattern):
    assert not pattern_found(pattern, "a" * 6 + string.ascii_lowercase)


def test_a_text_of_unreasonable_length_is_not_searched():
    assert not pattern_found("a", "a" * 100_000)


def test_named_groups_and_line_ends_are_those_of_the_official_library():
    assert pattern_found("(?P<first>a)(?<second>b)", "xaby")
    assert not pattern_found("a$", "a\n")
    assert not pattern_found("a.b", "a\nb")
