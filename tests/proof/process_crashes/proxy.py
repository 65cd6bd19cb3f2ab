"""TCP proxies between processes. They cut connections, cut them in the middle of an answer, and stall them.

All proxies share one event loop in a thread. They do not interpret the bytes that they forward.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, TypeVar

HOST: Final = "127.0.0.1"
_CHUNK: Final = 65_536
_RESET: Final = struct.pack("ii", 1, 0)  # SO_LINGER: a close sends RST
Result = TypeVar("Result")


class ProxyLoop:
    """The event loop of all proxies, in a thread of its own."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._proxies: list[Proxy] = []
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxies", daemon=True)
        self._thread.start()

    def proxy(self, target: int) -> Proxy:
        """A new proxy in front of a port."""
        proxy = Proxy(self, target)
        self.run(proxy.open())
        self._proxies.append(proxy)
        return proxy

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def call(self, act: Callable[..., object], *arguments: object) -> None:
        self._loop.call_soon_threadsafe(act, *arguments)

    def close(self) -> None:
        for proxy in self._proxies:
            self.run(proxy.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(10)
        self._loop.close()


class Proxy:
    """Listens on `port` and forwards to the target. Its methods may be called from any thread."""

    def __init__(self, loop: ProxyLoop, target: int) -> None:
        self._loop, self._target = loop, target
        self.port = 0
        self._flowing = asyncio.Event()
        self._flowing.set()
        self._links: set[tuple[asyncio.StreamWriter, asyncio.StreamWriter]] = set()
        self._cuts_in_answers: list[float] = []  # how much of the answer still gets through
        self._tasks: set[asyncio.Task[None]] = set()
        self.cut_answers = 0  # answers that were really cut
        self.cut_links = 0

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._accept, HOST, 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        self._server.close()
        self._flowing.set()
        self._cut_all()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def cut(self) -> None:
        """Reset every connection, whatever it is doing."""
        self._loop.call(self._cut_all)

    def cut_in_answer(self, part: float) -> None:
        """Only this part of the next answer, 0 to 1, gets through. Then its connection ends."""
        self._loop.call(self._cuts_in_answers.append, part)

    def stall(self) -> None:
        """Connections stay open, but nothing gets through until `flow` is called."""
        self._loop.call(self._flowing.clear)

    def flow(self) -> None:
        self._loop.call(self._flowing.set)

    def end_faults(self) -> None:
        self._loop.call(self._cuts_in_answers.clear)
        self.flow()

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            await self._forward(reader, writer)
        except asyncio.CancelledError:
            pass
        finally:
            self._tasks.discard(task)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            answers, requests = await asyncio.open_connection(HOST, self._target)
        except OSError:
            _reset(writer)
            return
        for each in (writer, requests):
            each.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        link = (writer, requests)
        self._links.add(link)
        pumps = [
            asyncio.ensure_future(self._pump(reader, requests, is_answer=False)),
            asyncio.ensure_future(self._pump(answers, writer, is_answer=True)),
        ]
        try:
            await asyncio.wait(pumps, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)
            self._links.discard(link)
            for each in link:
                each.close()

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter, *, is_answer: bool) -> None:
        with suppress(OSError):
            while data := await source.read(_CHUNK):
                await self._flowing.wait()
                if is_answer and self._cuts_in_answers:
                    part = self._cuts_in_answers.pop()
                    sink.write(data[: int(part * len(data))])
                    self.cut_answers += 1
                    return
                sink.write(data)
                await sink.drain()

    def _cut_all(self) -> None:
        for link in self._links:
            self.cut_links += 1
            for writer in link:
                _reset(writer)


def _reset(writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()
