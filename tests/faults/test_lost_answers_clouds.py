"""Lost, broken and contradictory answers of Google Cloud Storage and Azure."""

from __future__ import annotations

import random
from collections.abc import Iterator
from urllib.parse import unquote

import pytest
from support import gcs_server
from support.arrays import GROUP, array, contents, put
from support.lossy import Asked, Fate, losing
from support.writers import Cloud

from airflow_provider_icechunk.engine.repository import Repository
from airflow_provider_icechunk.engine.storage.base import Absent, Lost, Storage, Written
from airflow_provider_icechunk.engine.storage.readback import PROBE_PREFIX
from airflow_provider_icechunk.exceptions import OutcomeUnknownError

KEY = "refs/branch.main/ref.json"


@pytest.fixture(params=["gcs", pytest.param("azure", marks=pytest.mark.long)])
def cloud(request: pytest.FixtureRequest) -> Iterator[Cloud]:
    if request.param == "azure":
        from support.azurite import CONTAINER
        from support.azurite import KEY as SECRET

        from tools.azurite import ACCOUNT

        server = request.getfixturevalue("azurite")
        url = f"az://{CONTAINER}/{server.fresh_prefix()}"
        yield Cloud(url, server.endpoint_url, SECRET, ACCOUNT)
        return
    with gcs_server.running() as state:
        yield Cloud(f"gs://{gcs_server.BUCKET}/repo", state.url, gcs_server.WRITER)


class Behind:
    """A cloud behind a server that loses answers as told."""

    def __init__(self, cloud: Cloud) -> None:
        self._cloud = cloud
        root, _, self._path = cloud.endpoint_url.removeprefix("http://").partition("/")
        self.server = f"http://{root}"

    def storage(self, url: str) -> Storage:
        where = f"{url}/{self._path}" if self._path else url
        cloud = self._cloud
        return Cloud(cloud.url, where, cloud.secret, cloud.account).storage()


class LosesAnswers:
    """Loses the answers of some conditional writes in every way there is."""

    WAYS = (Fate.LOSES_ANSWER, Fate.HALF_ANSWERED, Fate.FAULTS, Fate.SWALLOWED)

    def __init__(self, probability: float) -> None:
        self._random = random.Random(7)
        self._probability = probability
        self.lost = 0

    def __call__(self, asked: Asked) -> Fate:
        # A refusal that gets lost proves nothing, and the probe provokes refusals on purpose.
        judged = asked.is_conditional_write and PROBE_PREFIX not in unquote(asked.path)
        if not judged or self._random.random() >= self._probability:
            return Fate.PASSES
        self.lost += 1
        return self._random.choice(self.WAYS)


@pytest.mark.parametrize("commits", [20, pytest.param(200, marks=pytest.mark.long)])
def test_commits_whose_answers_get_lost_land_once_and_without_a_conflict(
    cloud: Cloud, commits: int
) -> None:
    session = Repository.create(cloud.storage()).writable_session("main")
    session.tree.put_document("/", GROUP)
    session.tree.put_document("/a", array([commits], [1]))
    session.commit("start")
    judge, behind = LosesAnswers(0.3), Behind(cloud)
    with losing(behind.server, judge) as url:
        repo = Repository.open(behind.storage(url))
        for number in range(commits):
            session = repo.writable_session("main")
            put(session, "/a", (number,), str(number).encode())
            session.commit(str(number))
    assert judge.lost > commits / 8
    history = [info.message for info in Repository.open(cloud.storage()).ancestry(branch="main")]
    assert history[:commits] == [str(number) for number in reversed(range(commits))]
    seen = contents(Repository.open(cloud.storage()).readonly_session("main"))
    assert all(seen[f"/a[{number}]"] == str(number).encode() for number in range(commits))


@pytest.mark.parametrize("way", [Fate.LOSES_ANSWER, Fate.HALF_ANSWERED, Fate.FAULTS])
def test_a_write_whose_answer_got_lost_is_recognized_as_ones_own(cloud: Cloud, way: Fate) -> None:
    told: list[Fate] = []

    def once(asked: Asked) -> Fate:
        if asked.is_conditional_write and not told:
            told.append(way)
            return way
        return Fate.PASSES

    behind = Behind(cloud)
    with losing(behind.server, once) as url:
        assert isinstance(behind.storage(url).put(KEY, b"ours", expect=Absent()), Written)
    assert told


def test_another_writer_after_a_lost_answer_leaves_the_outcome_open(cloud: Cloud) -> None:
    behind = Behind(cloud)
    other = cloud.storage()

    def overwrite(_: Asked) -> None:
        other.delete([KEY])
        other.put(KEY, b"theirs", expect=Absent())

    def lose(asked: Asked) -> Fate:
        return Fate.LOSES_ANSWER if asked.is_conditional_write else Fate.PASSES

    with losing(behind.server, lose, overwrite) as url:
        storage = behind.storage(url)
        with pytest.raises(OutcomeUnknownError, match="delete nothing"):
            storage.put(KEY, b"ours", expect=Absent())
    assert other.put(KEY, b"late", expect=Absent()) == Lost()
