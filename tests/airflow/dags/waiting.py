"""Sensors that hand over to the triggerer, and a consumer for each commit from outside."""

from typing import Any

from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_provider_icechunk.notifications.tag import IcechunkTagNotifier
from airflow_provider_icechunk.operators.repository import IcechunkCreateRepositoryOperator
from airflow_provider_icechunk.sensors.branch import IcechunkBranchSensor
from airflow_provider_icechunk.sensors.presence import IcechunkNodeSensor, IcechunkTagSensor
from airflow_provider_icechunk.triggers.branch import IcechunkBranchTrigger

# A connection in Airflow's tables, which the triggerer has to ask for.
STORED = {"icechunk_conn_id": "icechunk_stored"}
WAIT = {
    **STORED,
    "repository": "watched",
    "deferrable": True,
    "poke_interval": 2,
    "timeout": 900,
}

with DAG("waiting", schedule=None, catchup=False, params={"since": ""}):
    IcechunkBranchSensor(
        task_id="commit", since_snapshot_id="{{ params.since }}", message_matches="^wanted", **WAIT
    )
    IcechunkTagSensor(task_id="tag", tag="v1", **WAIT)
    IcechunkNodeSensor(task_id="node", path="late", minimum_shape=[2], **WAIT)

COMMITS = Asset(
    name="followed_main",
    uri="icechunk://test/followed?branch=main",
    watchers=[
        AssetWatcher(
            name="followed_main_commits",
            trigger=IcechunkBranchTrigger(
                repository="followed",
                start_from="beginning",
                poll_interval=1,
                watcher_id="followed_main",
                **STORED,
            ),
        )
    ],
)

with DAG("following", schedule=[COMMITS], catchup=False):

    @task
    def told(triggering_asset_events: Any = None) -> list[str]:
        """The snapshots that started this run."""
        return [
            event.extra["payload"]["snapshot_id"]
            for events in triggering_asset_events.values()
            for event in events
        ]

    told()

with DAG(
    "tagging",
    schedule=None,
    catchup=False,
    params={"tag": "none"},
    on_success_callback=IcechunkTagNotifier(repository="tagged", tag="{{ params.tag }}", **STORED),
):
    IcechunkCreateRepositoryOperator(task_id="create", repository="tagged")
