"""Clients that are libraries. A small driver program around each takes commands and reports events as JSON lines.

tests/interop/README.md describes the protocol. A driver has any number of named connections, so all scenarios of a client
run in one process."""

import base64
import itertools
import json
import queue
import subprocess
import threading
from typing import Any, Dict, List, Optional

from .message import Failed, Message, Options, Refused

# Time limit of an answer. It is generous because the machine may be busy; passing scenarios do not wait for it.
PATIENCE = 20.0


class Driver:
    """A running driver program."""

    def __init__(self, name: str, command: List[str], log: str) -> None:
        self.name = name
        self._log = open(log, "ab")
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log)
        self._ids = itertools.count(1)
        # Two locks, because a driver that blocks on its output must not block the reader of that output.
        self._lock = threading.Lock()
        self._writing = threading.Lock()
        self._answers: Dict[int, "queue.Queue[Dict[str, Any]]"] = {}
        self._connections: Dict[str, "DriverConnection"] = {}
        threading.Thread(target=self._read, daemon=True).start()

    def connect(self, options: Options) -> "DriverConnection":
        connection = DriverConnection(self, f"{options.client_id or 'nobody'}#{next(self._ids)}")
        with self._lock:
            self._connections[connection.name] = connection
        connection.open(options)
        return connection

    def request(self, connection: str, do: str, **fields: Any) -> Dict[str, Any]:
        number = next(self._ids)
        answers: "queue.Queue[Dict[str, Any]]" = queue.Queue()
        line = json.dumps({"id": number, "do": do, "as": connection, **fields}) + "\n"
        with self._lock:
            self._answers[number] = answers
        with self._writing:
            try:
                self._process.stdin.write(line.encode())
                self._process.stdin.flush()
            except OSError:
                raise Failed(f"the driver of {self.name} has ended") from None
        try:
            answer = answers.get(timeout=PATIENCE)
        except queue.Empty:
            raise Failed(f"{do}: no answer within {PATIENCE:.0f} s") from None
        if "error" in answer:
            raise Failed(f"{do}: {answer['error']}")
        return answer

    def stop(self) -> None:
        try:
            self._process.stdin.close()
            self._process.wait(timeout=5)
        except (OSError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()
        self._log.close()

    def _read(self) -> None:
        for line in self._process.stdout:
            try:
                event = json.loads(line)
            except ValueError:
                self._log.write(line)
                continue
            self._dispatch(event)
        with self._lock:
            for answers in self._answers.values():
                answers.put({"error": f"the driver of {self.name} has ended"})

    def _dispatch(self, event: Dict[str, Any]) -> None:
        with self._lock:
            answers = self._answers.pop(event.get("id"), None)
            connection = self._connections.get(event.get("as"))
        if answers:
            answers.put(event)
        elif event.get("event") == "message" and connection:
            connection.inbox.put(_message(event))
        elif event.get("event") == "closed" and connection:
            connection.endings.put(event)


class DriverConnection:
    """One connection of a driver. Has the same interface as `mosquitto.ToolConnection`."""

    def __init__(self, driver: Driver, name: str) -> None:
        self.name = name
        self._driver = driver
        self.inbox: "queue.Queue[Message]" = queue.Queue()
        self.endings: "queue.Queue[Dict[str, Any]]" = queue.Queue()
        self.session_present: Optional[bool] = None
        self.connack: Dict[str, Any] = {}
        self.granted: List[int] = []
        self.tells_end = True

    def open(self, options: Options) -> None:
        fields = {key: value for key, value in vars(options).items() if value is not None}
        fields.pop("subscribe")
        if options.will:
            fields["will"] = _outgoing(options.will)
        answer = self._driver.request(self.name, "connect", **fields)
        if answer.get("refused"):
            raise Refused(answer.get("reason_code"), answer.get("text", ""))
        self.session_present = answer.get("session_present")
        self.connack = _properties(answer)
        for subscription in options.subscribe:
            self.granted.append(self.subscribe(subscription))

    def subscribe(self, subscription: Any) -> int:
        return self._driver.request(self.name, "subscribe", **subscription.fields())["reason_code"]

    def unsubscribe(self, topic_filter: str) -> Optional[int]:
        return self._driver.request(self.name, "unsubscribe", filter=topic_filter).get("reason_code")

    def publish(self, topic: str, payload: bytes, qos: int = 0, retain: bool = False, **properties: Any) -> Optional[int]:
        message = {"topic": topic, "payload": payload, "qos": qos, "retain": retain, "properties": properties}
        return self._driver.request(self.name, "publish", **_outgoing(message)).get("reason_code")

    def publish_with_alias(self, topic: str, payloads: List[bytes], alias: int) -> None:
        """The first message sets the alias, the others have no topic."""
        for number, payload in enumerate(payloads):
            properties = {"topic_alias": alias}
            message = {"topic": topic, "payload": payload, "qos": 1, "retain": False, "properties": properties}
            self._driver.request(self.name, "publish", alias_is_known=number > 0, **_outgoing(message))

    def data_stream(self, stream: str, send: bytes, receive: int) -> bytes:
        """Sends on a data stream of QUIC. Returns the next `receive` bytes of the broker on it."""
        sent = base64.b64encode(send).decode()
        answer = self._driver.request(self.name, "data_stream", stream=stream, send=sent, receive=receive)
        return base64.b64decode(answer["received"])

    def disconnect(self, **properties: Any) -> None:
        self._driver.request(self.name, "disconnect", properties=properties)

    def forget(self) -> None:
        """Releases the library's resources after the relay has cut the connection."""
        self._driver.request(self.name, "forget")


def _outgoing(message: Dict[str, Any]) -> Dict[str, Any]:
    properties = dict(message.get("properties") or {})
    if "correlation_data" in properties:
        properties["correlation_data"] = base64.b64encode(properties["correlation_data"]).decode()
    return {**message, "payload": base64.b64encode(message["payload"]).decode(), "properties": properties}


def _properties(event: Dict[str, Any]) -> Dict[str, Any]:
    properties = {key: value for key, value in (event.get("properties") or {}).items() if value not in (None, [])}
    if "correlation_data" in properties:
        properties["correlation_data"] = base64.b64decode(properties["correlation_data"])
    if "user_properties" in properties:
        properties["user_properties"] = [tuple(pair) for pair in properties["user_properties"]]
    return properties


def _message(event: Dict[str, Any]) -> Message:
    return Message(
        topic=event["topic"],
        payload=base64.b64decode(event["payload"]),
        qos=event["qos"],
        retain=event["retain"],
        dup=event.get("dup"),
        properties=_properties(event),
    )
