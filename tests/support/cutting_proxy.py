"""A TCP proxy for one WebSocket server that cuts connections after so many messages of the server's."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class CuttingProxy:
    """``cuts``: after how many messages each of the next connections is reset; later ones are left alone."""

    def __init__(self, target_port: int) -> None:
        self._target_port = target_port
        self._tasks: set[asyncio.Task[None]] = set()
        self.cuts: list[int] = []
        self.num_connections = 0
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.num_connections += 1
        cut_after = self.cuts.pop(0) if self.cuts else None
        target = await asyncio.open_connection("127.0.0.1", self._target_port)
        up = asyncio.create_task(_pass_on(reader, target[1]))
        try:
            await _pass_on_messages(target[0], writer, cut_after)
        finally:
            up.cancel()
            await asyncio.gather(up, return_exceptions=True)
            for end in (writer, target[1]):
                if cut_after is not None:
                    linger = struct.pack("ii", 1, 0)
                    end.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
                end.close()
                with contextlib.suppress(ConnectionError):
                    await end.wait_closed()


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.write_eof()


async def _pass_on_messages(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, limit: int | None
) -> None:
    """The head of the upgrade, then whole frames; returns when the limit or the end is reached."""
    try:
        writer.write(await reader.readuntil(b"\r\n\r\n"))
        count = 0
        while limit is None or count < limit:
            head = await reader.readexactly(2)
            more = {126: 2, 127: 8}.get(head[1], 0)
            extended = await reader.readexactly(more)
            size = int.from_bytes(extended) if more else head[1]
            writer.write(head + extended + await reader.readexactly(size))
            await writer.drain()
            count += head[0] & 0xF == 1
        await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass


@asynccontextmanager
async def cutting_proxy(target_port: int) -> AsyncIterator[CuttingProxy]:
    proxy = CuttingProxy(target_port)
    server = await asyncio.start_server(proxy.serve, "127.0.0.1", 0)
    proxy.port = server.sockets[0].getsockname()[1]
    async with server:
        yield proxy
