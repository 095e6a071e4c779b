"""What Airflow reads about this provider, by entry point, while it configures itself.

The same as `provider.yaml` without the keys that only builds and documentation need.
"""


def get_provider_info() -> dict[str, object]:
    """Return the provider's metadata in the shape of Airflow's provider schema.

    Airflow calls this on its own start: it must import nothing.
    """
    return {
        "package-name": "airflow-provider-icechunk",
        "name": "Icechunk",
        "description": "Transactional array pipelines on `Icechunk <https://icechunk.io/>`__.",
        "integrations": [
            {
                "integration-name": "Icechunk",
                "external-doc-url": "https://icechunk.io/",
                "tags": ["software"],
            }
        ],
        "hooks": [
            {
                "integration-name": "Icechunk",
                "python-modules": ["airflow_provider_icechunk.hooks.icechunk"],
            }
        ],
        "operators": [
            {
                "integration-name": "Icechunk",
                "python-modules": [
                    "airflow_provider_icechunk.operators.repository",
                    "airflow_provider_icechunk.operators.session",
                    "airflow_provider_icechunk.operators.commit",
                    "airflow_provider_icechunk.operators.branch",
                    "airflow_provider_icechunk.operators.tag",
                    "airflow_provider_icechunk.operators.publish",
                    "airflow_provider_icechunk.operators.check",
                    "airflow_provider_icechunk.operators.transfer",
                    "airflow_provider_icechunk.operators.change",
                    "airflow_provider_icechunk.operators.maintenance",
                    "airflow_provider_icechunk.operators.migrate",
                    "airflow_provider_icechunk.operators.spark",
                    "airflow_provider_icechunk.operators.rechunk",
                ],
            }
        ],
        "sensors": [
            {
                "integration-name": "Icechunk",
                "python-modules": [
                    "airflow_provider_icechunk.sensors.branch",
                    "airflow_provider_icechunk.sensors.presence",
                    "airflow_provider_icechunk.sensors.coverage",
                ],
            }
        ],
        "triggers": [
            {
                "integration-name": "Icechunk",
                "python-modules": [
                    "airflow_provider_icechunk.triggers.branch",
                    "airflow_provider_icechunk.triggers.presence",
                    "airflow_provider_icechunk.triggers.coverage",
                ],
            }
        ],
        "task-decorators": [
            {
                "class-name": "airflow_provider_icechunk.decorators.icechunk.icechunk_task",
                "name": "icechunk",
            },
            {
                "class-name": (
                    "airflow_provider_icechunk.decorators.icechunk_spark.icechunk_spark_task"
                ),
                "name": "icechunk_spark",
            },
        ],
        "asset-uris": [
            {
                "schemes": ["icechunk", "icechunk+gs", "icechunk+az"],
                "handler": "airflow_provider_icechunk.assets.icechunk.sanitize_uri",
                "factory": "airflow_provider_icechunk.assets.icechunk.create_asset",
                "to_openlineage_converter": (
                    "airflow_provider_icechunk.assets.icechunk.convert_asset_to_openlineage"
                ),
            }
        ],
        "extra-links": [
            "airflow_provider_icechunk.links.snapshot.IcechunkSnapshotLink",
            "airflow_provider_icechunk.links.snapshot.IcechunkRepositoryLink",
        ],
        "config": {
            "icechunk": {
                "description": "Options of the Icechunk provider.",
                "options": {
                    "repository_pages": {
                        "description": (
                            "Whether the API server shows the history, the tree and the "
                            "differences of repositories to\nusers who may read their connection. "
                            "It reads storage with the connection's credentials.\n"
                        ),
                        "version_added": "0.1.0",
                        "type": "boolean",
                        "example": None,
                        "default": "True",
                    }
                },
            }
        },
        "notifications": ["airflow_provider_icechunk.notifications.tag.IcechunkTagNotifier"],
        "cli": ["airflow_provider_icechunk.cli.airflow_commands.get_icechunk_cli_commands"],
        "connection-types": [
            {
                "connection-type": "icechunk",
                "hook-class-name": "airflow_provider_icechunk.hooks.icechunk.IcechunkHook",
                "hook-name": "Icechunk",
                "ui-field-behaviour": {
                    "hidden-fields": ["port", "schema"],
                    "relabeling": {
                        "host": "Bucket, container or directory",
                        "login": "Access key ID or client ID",
                        "password": "Secret key, account key, client secret or service account key",
                    },
                    "placeholders": {
                        "host": "my-bucket, or /data/repositories",
                        "login": "leave empty to use the environment's credentials",
                    },
                },
                "conn-fields": {
                    "storage": {
                        "label": "Storage",
                        "description": "Where the repositories are.",
                        "schema": {
                            "type": "string",
                            "enum": ["s3", "gcs", "azure", "file"],
                            "default": "s3",
                        },
                    },
                    "prefix": {
                        "label": "Prefix",
                        "description": "Path of the repositories; nothing outside it is opened.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "region": {
                        "label": "Region",
                        "description": "S3 - the region of the bucket.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "endpoint_url": {
                        "label": "Endpoint URL",
                        "description": "Only for stores other than the vendor's own.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "allow_http": {
                        "label": "Allow plain HTTP",
                        "schema": {"type": "boolean", "default": False},
                    },
                    "force_path_style": {
                        "label": "Bucket in the path",
                        "description": "Needed by most stores other than AWS.",
                        "schema": {"type": "boolean", "default": False},
                    },
                    "session_token": {
                        "label": "Session token",
                        "schema": {"type": ["string", "null"], "format": "password"},
                    },
                    "anonymous": {
                        "label": "Anonymous",
                        "description": "Do not sign requests.",
                        "schema": {"type": "boolean", "default": False},
                    },
                    "aws_conn_id": {
                        "label": "Amazon connection",
                        "description": "S3 - take the credentials from this connection instead.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "requester_pays": {
                        "label": "Requester pays",
                        "description": "S3 - pay for requests to somebody else's bucket.",
                        "schema": {"type": "boolean", "default": False},
                    },
                    "kms_key_id": {
                        "label": "KMS key",
                        "description": "S3 - the AWS KMS key that encrypts new objects.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "user_project": {
                        "label": "User project",
                        "description": "GCS - the project that pays for the requests.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "service_account_file": {
                        "label": "Service account file",
                        "description": "GCS - the path of a key file on the worker.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "gcp_conn_id": {
                        "label": "Google connection",
                        "description": "GCS - take the credentials from this connection instead.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "account": {
                        "label": "Storage account",
                        "description": "Azure - the account that owns the container.",
                        "schema": {"type": ["string", "null"]},
                    },
                    "tenant_id": {
                        "label": "Tenant ID",
                        "description": "Azure - tenant of a service principal (ID and secret).",
                        "schema": {"type": ["string", "null"]},
                    },
                    "sas_token": {
                        "label": "SAS token",
                        "description": "Azure - a shared access signature.",
                        "schema": {"type": ["string", "null"], "format": "password"},
                    },
                    "managed_identity": {
                        "label": "Managed identity",
                        "description": "Azure - use the identity of the worker's machine.",
                        "schema": {"type": "boolean", "default": False},
                    },
                    "wasb_conn_id": {
                        "label": "Azure connection",
                        "description": "Azure - take the credentials from this connection instead.",
                        "schema": {"type": ["string", "null"]},
                    },
                },
            }
        ],
    }
