"""A relay between one client and the broker. It forwards and records bytes without changing them. It can cut the
connection, so that a client ends without DISCONNECT or an acknowledgement is lost."""

import socket
import struct
import threading
from typing import Any, Callable, List, Optional


class Relay:
    """Accepts one connection on a free port."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._ends: List[socket.socket] = []
        self._changed = threading.Condition()
        self._is_held = False
        self._is_cut = False
        self.is_closed_by_broker = False
        self.to_broker = bytearray()
        self.to_client = bytearray()
        threading.Thread(target=self._serve, daemon=True).start()

    def hold(self) -> None:
        """Holds the client's bytes back until `release`. With `cut` they are lost."""
        with self._changed:
            self._is_held = True

    def release(self) -> None:
        with self._changed:
            self._is_held = False
            self._changed.notify_all()

    def cut(self) -> None:
        """Resets both connections, like a machine that restarts after a power failure."""
        with self._changed:
            ends, self._ends = self._ends, []
            self._is_cut = True
            self._changed.notify_all()
        for end in ends:
            end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            # The other thread may be blocked in `recv`. A shutdown wakes it, a close does not.
            try:
                end.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            end.close()
        self._listener.close()

    def wait(self, is_enough: Callable[["Relay"], bool], timeout: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: is_enough(self), timeout)

    def _serve(self) -> None:
        try:
            client, _ = self._listener.accept()
            broker = socket.create_connection(self._target)
        except OSError:
            return
        for end in (client, broker):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        # A client that reconnects by itself is refused.
        self._listener.close()
        with self._changed:
            self._ends = [client, broker]
        threading.Thread(target=self._pump, args=(client, broker, self.to_broker, True), daemon=True).start()
        self._pump(broker, client, self.to_client, False)

    def _pump(self, source: socket.socket, sink: socket.socket, seen: bytearray, can_hold: bool) -> None:
        while True:
            data = _receive(source)
            with self._changed:
                if can_hold:
                    self._changed.wait_for(lambda: self._is_cut or not self._is_held)
                seen += data or b""
                self._changed.notify_all()
                is_cut = self._is_cut
                self.is_closed_by_broker |= not data and not can_hold
            if not data or is_cut or not _send(sink, data):
                break
        try:
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            pass


class DatagramRelay:
    """Forwards datagrams between one client and the broker, as a router with network address translation does."""

    def __init__(self, host: str, port: int) -> None:
        self._target = (host, port)
        self._client: Any = None
        self._inside = _datagram_socket()
        self._outside = _datagram_socket()
        self.port: int = self._inside.getsockname()[1]
        self._is_cut = False
        threading.Thread(target=self._to_broker, daemon=True).start()
        threading.Thread(target=self._to_client, args=(self._outside,), daemon=True).start()

    def rebind(self) -> None:
        """The broker sees another port of the client from now on. The old one is closed."""
        old, self._outside = self._outside, _datagram_socket()
        threading.Thread(target=self._to_client, args=(self._outside,), daemon=True).start()
        _close(old)

    def cut(self) -> None:
        self._is_cut = True
        _close(self._inside)
        _close(self._outside)

    def _to_broker(self) -> None:
        while not self._is_cut:
            try:
                data, self._client = self._inside.recvfrom(65536)
                self._outside.sendto(data, self._target)
            except OSError:
                pass

    def _to_client(self, outside: socket.socket) -> None:
        while True:
            data = _receive(outside)
            if not data:
                return
            try:
                self._inside.sendto(data, self._client)
            except OSError:
                return


def _datagram_socket() -> socket.socket:
    datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    datagrams.bind(("127.0.0.1", 0))
    return datagrams


def _close(datagrams: socket.socket) -> None:
    """Wakes the thread that waits for a datagram."""
    try:
        datagrams.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    datagrams.close()


def _receive(source: socket.socket) -> Optional[bytes]:
    try:
        return source.recv(65536)
    except OSError:
        return None


def _send(sink: socket.socket, data: bytes) -> bool:
    try:
        sink.sendall(data)
        return True
    except OSError:
        return False

