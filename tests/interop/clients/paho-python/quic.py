"""MQTT over QUIC for paho-mqtt: the library gets one end of a pair of sockets, and aioquic forwards the other end."""

import asyncio
import socket
import threading

import paho.mqtt.client as mqtt
from aioquic.asyncio.client import connect
from aioquic.quic.configuration import QuicConfiguration

TIMEOUT = 15


class QuicClient(mqtt.Client):
    """A client whose connections are QUIC streams."""

    def use(self, request):
        self._request = request

    def _create_socket_connection(self):
        library, forwarded = socket.socketpair()
        opened = _Opened()
        threading.Thread(target=_run, args=(self._request, forwarded, opened), daemon=True).start()
        opened.wait()
        self._opened = opened
        return library

    def exchange(self, stream, data, size):
        """Sends on a data stream, which is opened if it is new. Returns the next `size` bytes that the broker sends."""
        exchanged = asyncio.run_coroutine_threadsafe(self._opened.exchange(stream, data, size), self._opened.loop)
        return exchanged.result(TIMEOUT)


class _Opened:
    def __init__(self):
        self._event = threading.Event()
        self._streams = {}
        self.error = None
        self.loop = None
        self.connection = None

    def set(self, error=None):
        self.error = error
        self._event.set()

    def wait(self):
        if not self._event.wait(TIMEOUT):
            raise TimeoutError("no QUIC connection")
        if self.error:
            raise ConnectionError(repr(self.error))

    async def exchange(self, stream, data, size):
        if stream not in self._streams:
            self._streams[stream] = await self.connection.create_stream()
        from_broker, to_broker = self._streams[stream]
        if data:
            to_broker.write(data)
        return await from_broker.readexactly(size)


def _run(request, forwarded, opened):
    try:
        asyncio.run(_forward(request, forwarded, opened))
    except Exception as error:
        opened.set(error or type(error).__name__)
    finally:
        forwarded.close()


async def _forward(request, forwarded, opened):
    configuration = QuicConfiguration(is_client=True, alpn_protocols=[request.get("protocol") or "mqtt"])
    configuration.load_verify_locations(request["ca"])
    if "cert" in request:
        configuration.load_cert_chain(request["cert"], request["key"])
    async with connect(request["host"], request["port"], configuration=configuration) as connection:
        from_broker, to_broker = await connection.create_stream()
        from_library, to_library = await asyncio.open_connection(sock=forwarded)
        opened.loop, opened.connection = asyncio.get_running_loop(), connection
        opened.set()
        both = [_pump(from_library, to_broker), _pump(from_broker, to_library)]
        await asyncio.wait([asyncio.create_task(pump) for pump in both], return_when=asyncio.FIRST_COMPLETED)
        # What the broker sent before its end has been forwarded.
        to_library.close()


async def _pump(source, sink):
    while data := await source.read(65536):
        sink.write(data)
        await sink.drain()
    if sink.can_write_eof():
        sink.write_eof()
