"""Conditions with patterns: bounded in time, and only they need RE2."""

import logging
import sys
import warnings

import pytest

from airflow_provider_icechunk.api import (
    ManifestConfig,
    ManifestPreloadCondition,
    ManifestPreloadConfig,
    ManifestSplitCondition,
    ManifestSplitDimCondition,
    Repository,
    RepositoryConfig,
    in_memory_storage,
)
from airflow_provider_icechunk.engine.format.config.conditions import (
    _compiled,
    dimension_matches,
    pattern_found,
)
from airflow_provider_icechunk.engine.format.config.model import ResolvedConfig
from airflow_provider_icechunk.exceptions import UnsupportedError


@pytest.fixture
def without_re2(monkeypatch: pytest.MonkeyPatch):
    _compiled.cache_clear()
    monkeypatch.setitem(sys.modules, "re2", None)
    yield
    _compiled.cache_clear()


@pytest.mark.parametrize(
    "pattern", ["(a+)+$", "(a|a)*b", ".*.*.*.*.*.*x", "(a?){30}a{30}b", "(((a*)*)*)*b"]
)
def test_patterns_that_explode_elsewhere_are_answered(pattern):
    assert not pattern_found(pattern, "a" * 100_000 + "!")


@pytest.mark.parametrize("pattern", ["(unclosed", r"(a)\1", "a{999}{999}", "(?=a)"])
def test_a_pattern_that_re2_refuses_matches_nothing_and_is_named_once(pattern):
    _compiled.cache_clear()
    condition = ManifestSplitCondition.name_matches(pattern)
    with pytest.warns(UserWarning, match="in the configuration matches nothing"):
        assert not condition.matches("/a")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not condition.matches("/a")


def test_names_and_line_ends_are_those_of_the_official_library():
    assert pattern_found("(?P<first>a)(?<second>b)", "xaby")
    assert pattern_found("^é.c$", "éüc")
    assert not pattern_found("a$", "a\n")
    assert not pattern_found("a.b", "a\nb")


def test_a_name_with_half_a_surrogate_pair_is_searched():
    name = ManifestSplitDimCondition.DimensionName("^x")
    assert dimension_matches(name, 0, "x\ud800")


@pytest.mark.usefixtures("without_re2")
def test_without_re2_the_error_names_the_pattern_and_the_extra():
    condition = ManifestSplitCondition.path_matches("^/group")
    with pytest.raises(
        UnsupportedError, match=r"'\^/group'.*airflow-provider-icechunk\[patterns\]"
    ):
        condition.matches("/group/data")


@pytest.mark.usefixtures("without_re2")
def test_conditions_without_patterns_need_no_re2():
    assert ManifestSplitCondition.AnyArray().matches("/a")
    assert dimension_matches(ManifestSplitDimCondition.Axis(0), 0, "x")
    assert ManifestPreloadCondition.num_refs(1, 3).matches("/a", 2)


@pytest.mark.usefixtures("without_re2")
def test_the_default_of_preloading_needs_no_re2():
    default = ResolvedConfig().preload_if
    assert [default.matches(path, 10) for path in ("/time", "/g/lat2", "/data")] == [
        True,
        True,
        False,
    ]


@pytest.mark.usefixtures("without_re2")
def test_a_reader_without_re2_reads_and_is_told_that_nothing_was_preloaded(caplog):
    import zarr

    preload = ManifestPreloadConfig(preload_if=ManifestPreloadCondition.name_matches("^a$"))
    config = RepositoryConfig(manifest=ManifestConfig(preload=preload))
    repository = Repository.create(in_memory_storage(), config=config)
    session = repository.writable_session("main")
    zarr.create_array(session.store, name="a", shape=(2000,), chunks=(1,), dtype="u1")[:] = 1
    session.commit("one array")
    with caplog.at_level(logging.WARNING):
        store = repository.readonly_session("main").store
    assert zarr.open_array(store, path="a", mode="r")[5] == 1
    assert "airflow-provider-icechunk[patterns]" in caplog.text
