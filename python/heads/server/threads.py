"""What takes long is done beside the event loop. Such a thread does not hold up the end of the
process, and a process that it waits for ends when whoever asked for it goes."""

from __future__ import annotations

import asyncio
import contextvars
import threading

from .messages import Refused
from .rendering import Asker, asker


class Threads:
    """Runs so many functions at a time, each in a thread of its own."""

    def __init__(self, most: int):
        self.most, self.busy = most, 0
        self.free: asyncio.Semaphore | None = None  # of the event loop that is here first

    async def run(self, work, *given):
        """work(*given). Cancelled, its asker goes; its place is free when the thread ends."""
        self.free = self.free or asyncio.Semaphore(self.most)
        await self.free.acquire()
        loop, done, own = asyncio.get_running_loop(), asyncio.Future(), Asker()
        context = contextvars.copy_context()
        context.run(asker.set, own)

        def tell(result, error: BaseException | None) -> None:
            self.busy -= 1
            self.free.release()
            if done.cancelled():
                return
            if error is None:
                done.set_result(result)
            else:
                done.set_exception(error)

        def outcome() -> tuple:
            try:
                return context.run(work, *given), None
            except BaseException as error:
                return None, error

        def do() -> None:
            try:
                loop.call_soon_threadsafe(tell, *outcome())
            except RuntimeError:  # the loop is closed, and nobody waits
                pass

        self.busy += 1
        try:
            threading.Thread(target=do, name="heads-request", daemon=True).start()
        except RuntimeError:
            tell(None, Refused("no thread for this request", status=503))
        try:
            return await done
        finally:
            own.goes()
