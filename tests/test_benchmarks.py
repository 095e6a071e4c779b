"""The benchmark harness: it measures, checks, reports and cleans up, at sizes of seconds."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks import environment, report
from benchmarks.__main__ import main
from benchmarks.model import (
    OFFICIAL_1,
    OFFICIAL_2,
    OURS,
    OURS_UNSYNCED,
    ZARR,
    Case,
    Goal,
    Measurement,
    Workload,
)
from benchmarks.runner import ROOT, Hours, Plan, RunError, Runner, plan, rotated
from benchmarks.workloads import ALL, named

TINY = {
    "virtual-set": 50,
    "commit-on-top": 50,
    "cold-read": 50,
    "merge": 200,
    "local-small-write": 5,
    "local-large-write": 2,
    "local-large-read": 2,
    "commits": 3,
    "rebase": 3,
    "new-arrays": 3,
    "collect": 10,
}
HERE = dict.fromkeys((OURS, OURS_UNSYNCED, OFFICIAL_1, ZARR), sys.executable)


def runner(folder: Path, **interpreters: str) -> Runner:
    return Runner(interpreters or HERE, {OFFICIAL_2: "not here"}, folder, None)


def local_case(workload: Workload, contender: str, folder: Path) -> Case:
    folder.mkdir()
    return Case(contender, TINY[workload.name], folder)


@pytest.mark.parametrize("name", TINY)
def test_every_local_workload_does_the_same_work_for_every_contender(
    name: str, tmp_path: Path
) -> None:
    workload = named(name)
    for contender in workload.contenders:
        if contender == OFFICIAL_2:
            continue
        case = local_case(workload, contender, tmp_path / contender)
        workload.prepare(case)
        for _ in range(2 if workload.repeatable else 1):
            state = workload.setup(case)
            workload.check(case, state, workload.run(case, state))


def test_a_measurement_is_a_process_that_answers_with_numbers(tmp_path: Path) -> None:
    found: list[Measurement] = []
    workload = named("commits")

    runner(tmp_path).run(Plan(workload, (2,), 1), found.append)

    assert [one.contender for one in found] == list(workload.contenders)
    assert [bool(one.skipped) for one in found] == [c == OFFICIAL_2 for c in workload.contenders]
    measured = [one for one in found if not one.skipped]
    assert all(one.seconds > 0 and one.peak_bytes > 2**20 for one in measured)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("longest", "rounds"), [(0.5, 7), (1.5, 2)])
def test_brief_rounds_are_repeated(
    longest: float, rounds: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = {OURS: 0.1, OFFICIAL_1: longest}
    monkeypatch.setattr(
        Runner, "start", lambda self, order, phase: {"seconds": seconds[order["contender"]]}
    )
    workload = replace(named("rebase"), contenders=(OURS, OFFICIAL_1))

    found = runner(tmp_path).run(Plan(workload, (10,), 2, most=7), lambda one: None)

    assert len(found) == rounds * len(workload.contenders)


def test_a_profile_names_the_functions_that_took_the_time(tmp_path: Path) -> None:
    work, profiles = tmp_path / "work", tmp_path / "profiles"
    work.mkdir()
    profiling = replace(runner(work), profiles=profiles)
    only_ours = replace(named("commits"), contenders=(OURS,))

    profiling.run(Plan(only_ours, (10,), 1), lambda one: None)

    (profile,) = profiles.iterdir()
    assert "_commit_each" in profile.read_text()


def test_a_failing_process_is_an_error_that_shows_what_it_said(tmp_path: Path) -> None:
    order = runner(tmp_path).fresh(named("commits"), OURS, 1) | {"size": "x"}

    with pytest.raises(RunError, match="TypeError"):
        runner(tmp_path).start(order, "measure")


def test_everybody_begins_a_round_once() -> None:
    contenders = (OURS, OFFICIAL_1, ZARR)

    firsts = [rotated(contenders, number)[0] for number in range(3)]

    assert sorted(firsts) == sorted(contenders)


def test_the_quick_form_measures_everything_once_at_one_size() -> None:
    quick = plan(ALL, quick=True, rounds=None)

    assert [one.workload for one in quick] == list(ALL)
    assert all(
        one.sizes == (one.workload.sizes[one.workload.quick],) and one.rounds == 1 for one in quick
    )


def test_the_thorough_form_measures_three_growing_sizes() -> None:
    for one in plan(ALL, quick=False, rounds=None, thorough=True):
        assert len(one.sizes) == 3
        assert list(one.sizes) == sorted(set(one.sizes))
        assert one.rounds >= 3
        assert not one.by_the_clock


def test_the_usual_form_measures_the_quick_size_and_the_largest_while_there_is_time() -> None:
    for one in plan(ALL, quick=False, rounds=None):
        assert one.sizes[-1] == one.workload.sizes[-1]
        assert set(one.sizes) == {one.workload.sizes[one.workload.quick], one.sizes[-1]}
        assert (one.rounds, one.most, one.by_the_clock) == (1, 5, True)


def test_time_is_shared_among_the_sizes_that_are_left() -> None:
    clock = iter([0.0, 0.0, 50.0, 150.0])
    hours = Hours(ends=100.0, sizes=4, clock=lambda: next(clock))

    shares = [hours.share() for _ in range(4)]

    # The second one begins at once, the third late, and for the last there is nothing left.
    assert shares == [25.0, pytest.approx(100 / 3), 75.0, 150.0]


def test_only_chooses_by_name() -> None:
    chosen = plan(ALL, quick=True, rounds=2, only=["merge"])

    assert [(one.workload.name, one.rounds) for one in chosen] == [("merge", 2)]


def test_a_number_of_rounds_is_kept_to() -> None:
    assert not any(one.most for one in plan(ALL, quick=False, rounds=2))
    assert any(one.most > one.rounds for one in plan(ALL, quick=False, rounds=None))


def test_an_unknown_name_is_answered_with_the_known_ones(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["--only", "nonsense"]) == 2
    assert "cold-read" in capsys.readouterr().out


def measurements(ours: float, theirs: float) -> list[Measurement]:
    return [
        Measurement("commits", contender, 100, seconds=seconds, peak_bytes=int(seconds * 2**20))
        for contender, center in ((OURS, ours), (OFFICIAL_1, theirs))
        for seconds in (center, center * 100, center / 100)
    ]


@pytest.mark.parametrize(("ours", "met"), [(1.9, True), (2.1, False)])
def test_a_goal_compares_medians(ours: float, met: bool) -> None:
    workload = replace(named("commits"), goals=(Goal(2.0, against=(OFFICIAL_1, OFFICIAL_2)),))

    first, second = report.verdicts([workload], report.figures(measurements(ours, 1.0)))

    assert first.ratio == pytest.approx(ours)
    assert first.met is met
    assert second.ratio is None
    assert second.met is None


def test_the_page_says_what_was_measured_where_and_whether_the_goal_was_met(
    tmp_path: Path,
) -> None:
    versions = {OURS: {"python": "3.11.0", "icechunk": "1.1.21"}, OFFICIAL_1: {"icechunk": "1.1"}}

    text = report.page(ALL, measurements(1.0, 1.0), versions, folder=tmp_path, plot="growth.png")

    assert "100 commits of one chunk" in text
    assert "| yes |" in text
    assert "- ours: python 3.11.0\n" in text
    assert "- icechunk 1: icechunk 1.1\n" in text
    assert "growth.png" in text


def far(name: str, ours: float, *, size: int = 4, theirs: float = 1.0) -> list[Measurement]:
    seconds = {OURS: ours, OFFICIAL_1: theirs, OFFICIAL_2: 1.0}
    return [Measurement(name, who, size, one, peak_bytes=1) for who, one in seconds.items()]


def test_the_page_counts_the_workloads_that_take_half_of_the_time_of_both_releases(
    tmp_path: Path,
) -> None:
    # At the largest size, and against the faster of the two releases.
    found = [*far("far-create", 0.4), *far("far-one", 0.5), *far("far-rebase", 0.4, theirs=0.7)]
    found += [*far("far-commits", 0.4), *far("far-commits", 0.9, size=30)]

    text = report.page(ALL, found, {}, folder=tmp_path, plot=None)

    assert "Of 4 workloads that are 20 ms away, 2 take at most 0.5 " in text


def test_the_page_names_every_size_at_which_a_release_is_faster(tmp_path: Path) -> None:
    found = [*far("rebase", 1.05, size=10), *far("rebase", 0.5, size=100)]
    found += [*far("commits", 1.15, size=100), *far("far-one", 1.2)]

    rows = report.behind(ALL, report.figures(found))
    text = report.page(ALL, found, {}, folder=tmp_path, plot=None)

    assert [(title, ratio) for title, _, ratio, _ in rows] == [
        *[("commit after a rebase over 10 commits", "1.05")] * 2,
        *[("20 ms away: open cold, read one of 4 chunks of 64 KiB, official files", "1.20")] * 2,
    ]
    assert "| icechunk 1 | 1.20 | <= 1.1 |" in text


def test_a_contender_that_failed_is_on_the_page_and_reaches_no_goal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(environment.VARIABLE, "/nowhere/python")

    def start(self: Runner, order: dict[str, object], phase: str) -> dict[str, object]:
        if order["contender"] == OFFICIAL_1:
            raise RunError("broken")
        return {"seconds": 1.0, "peak_bytes": 1}

    monkeypatch.setattr(Runner, "start", start)

    assert main(["--only", "rebase", "--quick", "--results", str(tmp_path)]) == 0

    text = (tmp_path / "RESULTS.md").read_text()
    assert "| 30 | icechunk 1 | skipped: failed |" in text
    assert "| not measured |" in text
    assert "broken" in capsys.readouterr().err


def test_the_plot_is_a_picture(tmp_path: Path) -> None:
    from benchmarks.plot import draw

    draw(ALL, report.figures(measurements(1.0, 2.0)), tmp_path / "growth.png")

    assert (tmp_path / "growth.png").read_bytes().startswith(b"\x89PNG")


def test_a_named_interpreter_without_the_package_is_refused_with_the_reason(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(environment.VARIABLE, str(tmp_path / "nothing"))

    answer = environment.second_python()

    assert isinstance(answer, str)
    assert environment.VARIABLE in answer


def test_without_a_named_interpreter_the_reason_says_who_makes_one(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(environment.VARIABLE, raising=False)

    answer = environment.second_python()

    assert isinstance(answer, str)
    assert "make bench" in answer


def test_different_releases_of_zarr_are_pointed_out() -> None:
    same = {OURS: {"zarr": "1", "icechunk": "1"}, OFFICIAL_2: {"zarr": "1", "icechunk": "2"}}

    assert report.uneven(same) == []
    (text,) = report.uneven(same | {OFFICIAL_2: {"zarr": "2"}})
    assert "zarr is not the same" in text


FORKED = """
import os, sys
from pathlib import Path
import zarr, boto3, airflow_provider_icechunk.api  # what the fork server has loaded
child = os.fork()
if child:
    sys.exit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
from benchmarks.model import OURS, Case
Case(OURS, 1, Path(), endpoint="http://127.0.0.1:9").import_everything()
from airflow_provider_icechunk.engine.storage.clouds.forks import usable
os._exit(0 if usable() else 1)
"""


def test_forked_writers_measure_the_native_client() -> None:
    """With what they load in another order they would measure boto3, and nothing would tell."""
    done = subprocess.run([sys.executable, "-c", FORKED], cwd=ROOT, check=False, timeout=60)
    assert done.returncode == 0


@pytest.mark.long
@pytest.mark.seaweedfs
def test_workloads_in_a_bucket_run_against_a_server_that_goes_away(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(environment.VARIABLE, "/nowhere/python")
    tiny = [replace(w, sizes=(1, 2, 3)) for w in ALL if w.place == "s3"]
    monkeypatch.setattr("benchmarks.__main__.ALL", tuple(tiny))
    monkeypatch.setattr("benchmarks.spark_report.wanted", lambda only: False)
    work = tmp_path / "work"
    work.mkdir()

    assert main(["--quick", "--folder", str(work), "--results", str(tmp_path / "out")]) == 0

    printed = capsys.readouterr()
    assert "failed" not in printed.err
    assert "icechunk 2 is skipped" in printed.out
    assert list(work.iterdir()) == []
    assert (tmp_path / "out" / "RESULTS.md").read_text().count("## ") > 3
