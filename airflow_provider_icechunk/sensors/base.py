"""What all sensors share: look once, and then poke, reschedule or defer, with one result."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseSensorOperator, PokeReturnValue, conf
from airflow.sdk.exceptions import AirflowFailException

from airflow_provider_icechunk.exceptions import IcechunkError
from airflow_provider_icechunk.hooks.icechunk import IcechunkHook
from airflow_provider_icechunk.hooks.observing import is_temporary

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.triggers.base import BaseTrigger

    from airflow_provider_icechunk.api import Repository


class WaitingSensor(BaseSensorOperator):
    """Wait for an answer from a repository; a storage that stumbles is waited out.

    :param repository: path below the root of the connection. (templated)
    :param icechunk_conn_id: the connection.
    :param deferrable: whether the triggerer waits instead of a worker.
    """

    ui_color = "#e6f1f2"

    def __init__(
        self,
        *,
        repository: str,
        icechunk_conn_id: str = IcechunkHook.default_conn_name,
        deferrable: bool = conf.getboolean("operators", "default_deferrable", fallback=False),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.repository = repository
        self.icechunk_conn_id = icechunk_conn_id
        self.deferrable = deferrable

    @abstractmethod
    def look(self, repository: Repository) -> dict[str, Any] | None:
        """The answer, if there is one by now."""

    @abstractmethod
    def make_trigger(self) -> BaseTrigger:
        """The trigger that goes on waiting for the same answer."""

    def poke(self, context: Context) -> PokeReturnValue:
        """Look once."""
        del context
        try:
            answer = self.look(IcechunkHook(self.icechunk_conn_id).open(self.repository))
        except IcechunkError as error:
            if not is_temporary(error):
                raise AirflowFailException(f"{error.kind.value}: {error}") from error
            self.log.info("Not yet: %s", error)
            answer = None
        return PokeReturnValue(is_done=answer is not None, xcom_value=answer)

    def execute(self, context: Context) -> Any:
        """Wait, in the way that was asked for, and return the answer."""
        if not self.deferrable:
            return super().execute(context)
        answer = self.poke(context)
        if answer:
            return answer.xcom_value
        return self.defer(
            trigger=self.make_trigger(),
            method_name="execute_complete",
            timeout=timedelta(seconds=self.timeout),
        )

    def execute_complete(
        self, context: Context, event: Mapping[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return the answer that the trigger got."""
        del context
        if not event or event.get("status") != "success":
            told = event or {}
            text = f"{told.get('kind', 'internal')}: {told.get('message', 'no event')}"
            raise AirflowFailException(text)
        return dict(event["result"])
