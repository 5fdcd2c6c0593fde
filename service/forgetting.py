"""Forgets old events and old answers once a minute, for as long as the service runs; several services may do it."""

from __future__ import annotations

import asyncio
import logging

from fastapi.concurrency import run_in_threadpool
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from service.database import events, idempotency
from service.database.errors import DatabaseUnavailableError

log = logging.getLogger(__name__)

EVERY_S = 60.0


async def forget_what_is_old(engine: Engine, *, every_s: float = EVERY_S) -> None:
    """Run until cancelled."""
    while True:
        await asyncio.sleep(every_s)
        try:
            n = await run_in_threadpool(events.prune, engine)
            await run_in_threadpool(idempotency.forget, engine)
        except (SQLAlchemyError, DatabaseUnavailableError) as error:
            log.warning("what is old stays for now, the database does not answer: %s", type(error).__name__)
        else:
            if n:
                log.info("forgot %d old events", n)
