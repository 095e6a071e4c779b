"""Marker secrets at level DEBUG through every operator, sensor and trigger: found nowhere."""

import asyncio
import logging
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from airflow.sdk.exceptions import TaskDeferred
from support.airflow_contexts import make_context
from support.between import standing_before
from support.provider_classes import AT, DATASET, listed, required

from airflow_provider_icechunk import api
from airflow_provider_icechunk.engine.pipelines.transaction import open_for
from airflow_provider_icechunk.hooks.icechunk import IcechunkHook
from airflow_provider_icechunk.notifications.tag import IcechunkTagNotifier
from airflow_provider_icechunk.operators.change import IcechunkAttributesOperator
from airflow_provider_icechunk.operators.spark import IcechunkSparkSubmitOperator

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(300)]
KEY, SECRET, TOKEN = "marker-key-51", "marker-secret-52", "marker-token-53"
BUCKET = "engine"
REGION = "us-east-1"
PREFIX = f"below-{uuid4().hex}"
"""One for all tests: the repository is made once."""
VALUES = {
    "repository": "weather", "branch": "dev", "tag": "v1", "source": "dev", "message": "m",
    "path": "x", "older_than": "30d", "snapshot_id": "1CECHNKREP0F1RSTCMT0",
    "dataset": DATASET, "at": AT, "target": "copy", "array": "x", "chunks": [1],
    "checks": [{"check": "missing", "array": "x", "most": 0}],
}  # fmt: skip


class Store:
    """An S3 server that `icechunk_default` leads to, with keys that are easy to find."""

    def __init__(self, endpoint: str, connect: Callable[..., str]) -> None:
        self.endpoint = endpoint
        self.prefix = PREFIX
        self._connect = connect
        self.lead_to(endpoint)

    def lead_to(self, endpoint: str) -> None:
        extra = {
            "endpoint_url": endpoint, "allow_http": True, "force_path_style": True,
            "region": REGION, "session_token": TOKEN, "prefix": self.prefix,
        }  # fmt: skip
        self._connect(host=BUCKET, login=KEY, password=SECRET, extra=extra)

    @contextmanager
    def denying(self) -> Iterator[None]:
        """From here on every request is refused."""
        with standing_before(self.endpoint) as server:
            server.denies = True
            self.lead_to(server.address)
            yield
            assert server.methods, "nothing was asked"


@pytest.fixture
def store(
    moto_endpoint: str,
    connect: Callable[..., str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Store:
    connect("spark_default", conn_type="spark", host="local[1]")
    environment = {
        "AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_SESSION_TOKEN": TOKEN,
        "AWS_DEFAULT_REGION": REGION, "TEST_JOBS": str(Path(__file__).parent / "jobs"),
        "TEST_FILES": str(tmp_path),
    }  # fmt: skip
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return Store(moto_endpoint, connect)


@pytest.fixture
def logs(caplog: pytest.LogCaptureFixture) -> Callable[[], str]:
    """All that any logger said at any level, also those below the root that are not ours."""
    caplog.set_level(logging.DEBUG)
    for name in ("airflow", "airflow_provider_icechunk", "botocore", "boto3", "urllib3", "task"):
        caplog.set_level(logging.DEBUG, name)
    return lambda: caplog.text


def check(**texts: str) -> None:
    for place, text in texts.items():
        for secret in (SECRET, TOKEN):
            assert secret not in text, place


def build(made: type[Any], session: dict[str, Any]) -> Any:
    """An operator or sensor with plausible arguments."""
    given = {name: {**VALUES, "session": session}[name] for name in required(made)}
    if made is IcechunkAttributesOperator:
        given["attributes"] = {"/": {"title": "any"}}
    if made is IcechunkSparkSubmitOperator:
        given["writes"] = [{"array": "x", "generator": "index"}]
    return made(task_id="task", **given)


def session() -> dict[str, Any]:
    """A session in a repository that is there."""
    hook = IcechunkHook()
    if not hook.exists("weather"):
        hook.create("weather")
    work = open_for(hook.open("weather"), branch="main", job="job").work
    return hook.describe_session("weather", work)


@pytest.mark.parametrize("made", listed("operators", "sensors"), ids=lambda one: str(one.__name__))
def test_a_refused_request_tells_no_secret(
    made: type[Any], store: Store, logs: Callable[[], str]
) -> None:
    task = build(made, session())
    with store.denying(), pytest.raises(Exception) as caught:
        task.execute(make_context())
    told = "".join(traceback.format_exception(caught.value))
    assert "no permission" in told or "access" in told.lower(), told
    check(exception=told + repr(caught.value), logs=logs(), task=repr(vars(task)))
    assert "botocore" in logs()


@pytest.mark.parametrize("made", listed("triggers"), ids=lambda one: str(one.__name__))
def test_a_trigger_keeps_and_tells_no_secret(
    made: type[Any], store: Store, logs: Callable[[], str]
) -> None:
    from airflow.models.trigger import Trigger

    session()
    given = {name: VALUES[name] for name in required(made)}
    trigger = made(**given, poll_interval=0.01)
    if hasattr(trigger, "once"):
        trigger.once = True

    async def first() -> str:
        async for event in trigger.run():
            return repr(event)
        return ""

    with store.denying():
        event = asyncio.run(first())
    assert "error" in event
    row = Trigger.from_object(trigger)
    check(event=event, row=repr(row.kwargs), vars=repr(vars(trigger)), logs=logs())
    assert KEY not in event + repr(row.kwargs)


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize("made", listed("sensors"), ids=lambda one: str(one.__name__))
def test_a_deferred_sensor_hands_no_secret_to_the_triggerer(
    made: type[Any], logs: Callable[[], str]
) -> None:
    from airflow.models.trigger import Trigger

    sensor = build(made, session())
    sensor.deferrable = True
    with pytest.raises(TaskDeferred) as caught:
        sensor.execute(make_context())
    row = Trigger.from_object(caught.value.trigger)
    check(row=repr(row.kwargs), exception=repr(caught.value), logs=logs())
    assert KEY not in repr(row.kwargs)


def test_the_notifier_tells_no_secret(store: Store, logs: Callable[[], str]) -> None:
    session()
    notifier = IcechunkTagNotifier(repository="weather", tag="noted")
    notifier({})
    with store.denying(), pytest.raises(api.IcechunkError) as caught:
        notifier.notify({})
    check(exception="".join(traceback.format_exception(caught.value)), logs=logs())


def stored_texts(run_id: str) -> dict[str, str]:
    """All that Airflow keeps of a run: results, rendered fields, events, the Dag itself."""
    from airflow.models.asset import AssetEvent
    from airflow.models.renderedtifields import RenderedTaskInstanceFields
    from airflow.models.serialized_dag import SerializedDagModel
    from airflow.models.trigger import Trigger
    from airflow.models.xcom import XComModel
    from airflow.utils.session import create_session
    from sqlalchemy import select

    rendered = RenderedTaskInstanceFields
    wanted = {
        "results": select(XComModel.value).where(XComModel.run_id == run_id),
        "rendered": select(rendered.rendered_fields).where(rendered.run_id == run_id),
        "events": select(AssetEvent.extra).where(AssetEvent.source_run_id == run_id),
        "dags": select(SerializedDagModel._data),
    }
    with create_session() as session:
        texts = {name: repr(session.scalars(query).all()) for name, query in wanted.items()}
        rows = [row.kwargs for row in session.scalars(select(Trigger))]
    return texts | {"triggers": repr(rows)}


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("name", ["transaction", "everything"])
def test_a_run_leaves_no_secret_anywhere(
    name: str,
    airflow_home: Path,
    store: Store,
    logs: Callable[[], str],
    capfd: pytest.CaptureFixture[str],
) -> None:
    from airflow.dag_processing.dagbag import DagBag

    bag = DagBag(airflow_home / "dags" / f"{name}.py")
    assert not bag.import_errors
    dag = bag.dags[name]
    if name == "everything":
        used = {type(task) for task in dag.tasks}
        assert set(listed("operators", "sensors")) <= used, "the Dag has to use every class"
    finished = dag.test()
    output = capfd.readouterr()
    texts = stored_texts(finished.run_id)
    texts |= {"log": logs(), "out": output.out, "err": output.err}
    files = [file.read_text(errors="replace") for file in airflow_home.rglob("*.log")]
    check(**texts, files="".join(files))
    assert finished.state == "success"
    assert "work_unit" in texts["results"]
    assert KEY not in texts["results"] + texts["rendered"] + texts["events"]
    if name == "transaction":
        return
    assert "submitted with: " in output.out + output.err + logs()
    storage = api.s3_storage(
        bucket=BUCKET, prefix=f"{store.prefix}/{name}", endpoint_url=store.endpoint,
        allow_http=True, force_path_style=True, region=REGION, access_key_id=KEY,
        secret_access_key=SECRET,
    )  # fmt: skip
    repository = api.Repository.open(storage)
    history = list(repository.ancestry(branch="main"))
    assert finished.run_id in [info.message for info in history]
    # What a commit and a publication made is in the events of their outlets.
    events = texts["events"]
    assert sum(f"'snapshot_id': '{info.id}'" in events for info in history) == 2
