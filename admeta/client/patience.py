"""How long what follows a study or a run bears the service's absence. Its pauses between two tries are its own."""

from __future__ import annotations

from admeta.client.errors import ClientError
from admeta.client.exchange import is_passing
from admeta.client.wire import Flow, Now


class Patience:
    """Of one verb: breaks are borne from when the service has first answered, each for so long.

    Args:
        patience_s: how long the service may be away.
    """

    def __init__(self, patience_s: float) -> None:
        self._patience_s = patience_s
        self._heard: float | None = None

    def hear(self) -> Flow[float]:
        """The service is there: its next absence is counted from now, which is returned."""
        self._heard = yield Now()
        return self._heard

    def bear(self, error: ClientError) -> Flow[float]:
        """The time, where the verb may try again; a refusal for the moment is an answer too.

        Raises:
            ClientError: `error` itself: it will not pass, or the service has been away too long.
        """
        now: float = yield Now()
        if self._heard is None and error.status is not None:
            self._heard = now
        if self._heard is None or not is_passing(error) or now - self._heard > self._patience_s:
            raise error
        return now
