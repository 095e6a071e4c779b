"""The browser for one person, on loopback: `python -m airflow_provider_icechunk browse`.

Two things keep others out: the address has a random part, which other users of the machine do not
know, and requests must name this machine as their host, so no page on the internet can trigger
them.
"""

from __future__ import annotations

import gc
import secrets
import socket
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI
from fastapi.middleware.trustedhost import TrustedHostMiddleware

from airflow_provider_icechunk.engine.storage.base import Storage
from airflow_provider_icechunk.exceptions import InvalidInputError

from .app import build_app
from .models import PlaceFacts
from .places import OneRoot

HOST = "127.0.0.1"


def standalone(locate: Callable[[str], Storage], location: str, *, key: str) -> FastAPI:
    """The application with the browser below `/<key>/`, and nothing else.

    :param locate: the storage at a path below the root; the empty path is the root itself.
    """
    places = OneRoot(locate)
    facts = [PlaceFacts(id=places.name, title=location, location="")]
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.mount(f"/{key}", build_app(places, lambda _: facts, host="standalone"))
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=["localhost", HOST])
    return app


def serve(
    locate: Callable[[str], Storage],
    location: str,
    *,
    port: int,
    tell: Callable[[str], None],
    key: str | None = None,
) -> None:
    """Serve until the process is interrupted; `tell` receives the address once it responds."""
    key = key or secrets.token_urlsafe(12)
    listener = listen(port)
    address = f"http://{HOST}:{listener.getsockname()[1]}/{key}/"
    config = uvicorn.Config(
        standalone(locate, location, key=key),
        log_level="warning",
        access_log=False,
        server_header=False,
    )
    # What was imported stays: walking it again and again would delay every tenth answer.
    gc.collect()
    gc.freeze()
    tell(address)
    uvicorn.Server(config).run(sockets=[listener])


def listen(port: int) -> socket.socket:
    """A listening socket on loopback; 0 takes any free port."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((HOST, port))
    except OSError as error:
        listener.close()
        raise InvalidInputError(
            f"port {port} of {HOST} cannot be used ({error.strerror}): choose another with --port, "
            "or 0 for any that is free"
        ) from None
    listener.listen()
    return listener
