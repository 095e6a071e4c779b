"""Release complete data: wait for it, optimise it, and give it an immutable tag.

A sensor waits in the triggerer until `temperature` has enough days. Then the manifests of the
branch are rewritten, which makes reading a whole release faster, and exactly that version is
tagged.

Needs the connection `icechunk_default` (a bucket or a directory).
"""

from __future__ import annotations

from airflow.sdk import DAG, Param

from airflow_provider_icechunk.operators.maintenance import IcechunkRewriteManifestsOperator
from airflow_provider_icechunk.operators.tag import IcechunkCreateTagOperator
from airflow_provider_icechunk.sensors.presence import IcechunkNodeSensor

REPOSITORY = "{{ params.repository }}"

with DAG(
    dag_id="icechunk_release",
    schedule=None,
    catchup=False,
    tags=["icechunk", "example"],
    params={
        "repository": Param("weather", type="string", minLength=1),
        "days": Param(365, type="integer", minimum=1, description="days in a release"),
        "tag": Param("release-1", type="string", minLength=1),
    },
    doc_md=__doc__,
) as dag:
    # [START node_sensor]
    wait_until_complete = IcechunkNodeSensor(
        task_id="wait_until_complete",
        repository=REPOSITORY,
        path="temperature",
        kind="array",
        minimum_shape=["{{ params.days }}", "1", "1"],
        deferrable=True,
        poke_interval=10,
        timeout=12 * 60 * 60,
    )
    # [END node_sensor]
    # [START rewrite_manifests]
    rewrite_manifests = IcechunkRewriteManifestsOperator(
        task_id="rewrite_manifests",
        repository=REPOSITORY,
        message="tidy up for {{ params.tag }}",
    )
    # [END rewrite_manifests]
    tag_release = IcechunkCreateTagOperator(
        task_id="tag_release",
        repository=REPOSITORY,
        tag="{{ params.tag }}",
        snapshot_id="{{ ti.xcom_pull(task_ids='rewrite_manifests')['snapshot_id'] }}",
    )
    wait_until_complete >> rewrite_manifests >> tag_release
