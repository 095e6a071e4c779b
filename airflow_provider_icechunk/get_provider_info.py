"""What Airflow is told about this provider, by entry point, while it configures itself."""


def get_provider_info() -> dict[str, object]:
    """Return the provider's metadata in the shape of Airflow's provider schema.

    Airflow calls this on its own start: it must import nothing.
    """
    return {
        "package-name": "airflow-provider-icechunk",
        "name": "Icechunk",
        "description": "Transactional array pipelines over the Icechunk format.",
    }
