"""TLS before a server that has none: whoever connects must show a certificate of the authority."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator
from pathlib import Path

from tests.fakes.certificates import files


@contextlib.asynccontextmanager
async def tls_front(folder: Path, name: str, port: int) -> AsyncIterator[int]:
    """Serve what listens at `port` with `name`'s certificate of `folder`; yields the port with TLS."""
    shown = files(folder, name)
    assert shown.cert is not None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(shown.ca))
    context.load_cert_chain(shown.cert, shown.key)
    context.verify_mode = ssl.CERT_REQUIRED

    async def pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                writer.write(data)
                await writer.drain()
        writer.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        behind = await asyncio.open_connection("127.0.0.1", port)
        await asyncio.gather(pass_on(reader, behind[1]), pass_on(behind[0], writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
