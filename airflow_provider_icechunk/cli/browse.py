"""`browse`: the repository browser, served on this machine."""

from __future__ import annotations

from airflow_provider_icechunk.exceptions import UnsupportedError

from .screen import Report, Task


def browse(task: Task) -> Report:
    """Serve the browser until Ctrl-C."""
    try:
        from airflow_provider_icechunk.browser.serve import serve
    except ImportError as error:
        raise UnsupportedError(
            f"the browser needs fastapi and uvicorn, and {error.name} is not installed: "
            "pip install 'airflow-provider-icechunk[browser]'"
        ) from None

    def tell(address: str) -> None:
        text = f"{task.storage.location} is shown at\n\n  {address}\n\nCtrl-C ends it.\n"
        task.screen.err.write(text)
        task.screen.err.flush()
        if task.args.open:
            import webbrowser

            webbrowser.open(address)

    assert task.below is not None
    serve(task.below, task.storage.location, port=task.args.port, tell=tell)
    return Report({"ended": True})
