"""Runs one scenario with one client: opens connections, waits for expected events, and cleans up."""

import itertools
import queue
import threading
import time
from typing import Any, Callable, List, Optional

from .broker import Broker
from .driver import PATIENCE
from .message import Failed, Message, Options, Subscription
from .relay import DatagramRelay, Relay

_numbers = itertools.count(1)
_lock = threading.Lock()

LISTENERS = {"tcp": "tcp", "tls": "tls", "ws": "ws", "wss": "wss", "mtls": "tls", "quic": "quic", "mquic": "quic"}


class Peer:
    """A connection of the client under test, with its relay."""

    def __init__(self, connection: Any, relay: Optional[Relay], client_id: str) -> None:
        self._connection = connection
        self.relay = relay
        self.client_id = client_id

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)

    def message(self) -> Message:
        try:
            return self._connection.inbox.get(timeout=PATIENCE)
        except queue.Empty:
            raise Failed(f"{self.client_id}: no message within {PATIENCE:.0f} s") from None

    def messages(self, count: int) -> List[Message]:
        return [self.message() for _ in range(count)]

    def expect(self, payload: bytes, **fields: Any) -> Message:
        """Checks that the next message is this one."""
        message = self.message()
        check(message.payload == payload, f"{self.client_id} got {message} instead of {payload[:24]!r}")
        for name, value in fields.items():
            found = getattr(message, name)
            # The value is None if the client does not report it.
            check(found is None or found == value, f"{self.client_id}: {name} of {message} is {found}, not {value}")
        return message

    def closed(self) -> Optional[int]:
        """Waits until the broker closes the connection. Returns the reason code if the client reports it."""
        is_closed = self.relay.wait(lambda wire: wire.is_closed_by_broker, PATIENCE)
        check(is_closed, f"{self.client_id}: the broker did not close the connection")
        if not self._connection.tells_end:
            return None
        try:
            return self._connection.endings.get(timeout=PATIENCE).get("reason_code")
        except queue.Empty:
            raise Failed(f"{self.client_id} does not see that its connection has ended") from None

    def cut(self) -> None:
        """Ends the client's connection without DISCONNECT."""
        self.relay.cut()
        self._connection.forget()


class Trial:
    """The interface of a scenario to its client and the broker."""

    def __init__(self, client: Any, version: int, broker: Broker, keep_alive_min: int = 1) -> None:
        self.keep_alive_min = keep_alive_min
        with _lock:
            self._number = next(_numbers)
        self._client = client
        self.version = version
        self._broker = broker
        self._open: List[Peer] = []

    @property
    def is_v5(self) -> bool:
        return self.version == 5

    def topic(self, name: str) -> str:
        return f"interop/{self._number}/{name}"

    def connect(self, name: str, transport: str = "tcp", relay: bool = False, **fields: Any) -> Peer:
        subscribe = [_subscription(wanted) for wanted in fields.pop("subscribe", [])]
        port = self._broker.ports[transport]
        of_transport = DatagramRelay if LISTENERS[transport] == "quic" else Relay
        wire = of_transport("127.0.0.1", port) if relay else None
        client_id = f"{name}-{self._number}" if name else ""
        options = Options(
            version=self.version,
            client_id=client_id,
            host="127.0.0.1",
            port=wire.port if wire else port,
            transport=LISTENERS[transport],
            subscribe=subscribe,
            **self._broker.credentials(transport),
            **fields,
        )
        try:
            peer = Peer(self._client.connect(options), wire, client_id)
        except Exception:
            if wire:
                wire.cut()
            raise
        self._open.append(peer)
        return peer

    def close(self) -> None:
        for peer in self._open:
            if peer.relay:
                peer.relay.cut()
            try:
                peer.forget()
            except Failed:
                pass


def _subscription(wanted: Any) -> Subscription:
    if isinstance(wanted, Subscription):
        return wanted
    topic_filter, qos = wanted
    return Subscription(topic_filter, qos)


def check(is_so: bool, text: str) -> None:
    if not is_so:
        raise Failed(text)


def until(is_so: Callable[[], bool], text: str) -> None:
    """Polls a condition, slowly enough that clients do not run out of file descriptors."""
    end = time.monotonic() + PATIENCE
    while not is_so():
        check(time.monotonic() < end, text)
        time.sleep(0.02)

