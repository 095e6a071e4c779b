"""Start a run for every commit, wherever it was made.

A watcher in the triggerer follows a branch and emits an event for every commit, even those made by
scripts outside Airflow. Each commit starts a run; if the scheduler is busy, a run may get several
events. Each event carries its snapshot, so the run reads that version.

Needs the connection `icechunk_default` (a bucket or a directory) with the repository `weather`, and
a running triggerer. The name and the URI of the asset are for people; the arguments of the trigger
decide what is watched.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk import DAG, Asset, AssetWatcher, task

from airflow_provider_icechunk.hooks.icechunk import IcechunkHook
from airflow_provider_icechunk.triggers.branch import IcechunkBranchTrigger

# [START watcher]
WEATHER = Asset(
    name="weather_main",
    uri="icechunk://example/weather?branch=main",
    watchers=[
        AssetWatcher(
            name="weather_main_commits",
            trigger=IcechunkBranchTrigger(
                repository="weather",
                branch="main",
                poll_interval=10,
                watcher_id="weather_main",
            ),
        )
    ],
)
# [END watcher]

with DAG(
    dag_id="icechunk_event_driven",
    schedule=[WEATHER],
    catchup=False,
    tags=["icechunk", "example"],
    doc_md=__doc__,
) as dag:

    @task
    def describe_commits(triggering_asset_events: Any = None) -> list[dict[str, Any]]:
        """Report what each commit changed; repeated events count once."""
        payloads = {
            event.extra["payload"]["snapshot_id"]: event.extra["payload"]
            for events in (triggering_asset_events or {}).values()
            for event in events
        }
        if not payloads:
            return []
        repository = IcechunkHook().open("weather")
        changes = []
        for snapshot_id, commit in payloads.items():
            diff = repository.diff(from_snapshot_id=commit["parent_id"], to_snapshot_id=snapshot_id)
            changes.append(
                {
                    "snapshot_id": snapshot_id,
                    "message": commit["message"],
                    "arrays": sorted(diff.new_arrays | set(diff.chunk_columns)),
                }
            )
        return changes

    describe_commits()
