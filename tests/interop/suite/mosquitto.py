"""Clients that are command-line tools: mosquitto_pub and mosquitto_sub behind the interface of a driver's connection.

A connection with subscriptions is one running mosquitto_sub; publishing runs one mosquitto_pub each time. What the tools
print with `-d` shows the broker's answers, so no code here waits for a fixed time."""

import json
import queue
import re
import signal
import subprocess
import threading
from typing import Any, Dict, List, Optional

from .driver import PATIENCE
from .message import Failed, Message, Options, Refused, Subscription

VERSIONS = {3: "31", 4: "311", 5: "5"}
# The format has a prefix that no line of `-d` has, the payload in hexadecimal, and everything else as JSON.
FORMAT = "MESSAGE %x %j"
CONNACK = re.compile(r"received CONNACK \((\d+)\)")
SUBACK = re.compile(r"^Subscribed \(mid: \d+\): (.*)$")
PUBLISH = re.compile(r"received PUBLISH \(d(\d), q\d, r\d, m(\d+),")
ACKNOWLEDGED = re.compile(r"received PUB(?:ACK|COMP) \(Mid: \d+, RC:(\d+)\)")
DISCONNECT = re.compile(r"^Received DISCONNECT \((\d+)\)")


class Tools:
    """Makes connections, each with its own process."""

    def __init__(self, log: str) -> None:
        self._log = open(log, "a", encoding="utf-8")
        self._connections: List["ToolConnection"] = []
        # mosquitto_sub requires a filter, even if it resumes a session with a subscription.
        self._filters: Dict[str, List[Subscription]] = {}

    def connect(self, options: Options) -> "ToolConnection":
        if options.subscribe:
            self._filters[options.client_id] = options.subscribe
        elif not options.clean:
            options.subscribe = self._filters.get(options.client_id, [])
        connection = ToolConnection(options, self._log)
        self._connections.append(connection)
        connection.open()
        return connection

    def stop(self) -> None:
        for connection in self._connections:
            connection.forget()
        self._log.close()


class ToolConnection:
    """Has the same interface as `driver.DriverConnection`."""

    def __init__(self, options: Options, log: Any) -> None:
        self._options = options
        self._log = log
        self._sub: Optional[subprocess.Popen] = None
        self._answers: "queue.Queue[Dict[str, Any]]" = queue.Queue()
        self._dups: Dict[int, bool] = {}
        self.inbox: "queue.Queue[Message]" = queue.Queue()
        self.endings: "queue.Queue[Dict[str, Any]]" = queue.Queue()
        self.session_present: Optional[bool] = None
        self.connack: Dict[str, Any] = {}
        self.granted: List[int] = []
        # The tool prints the DISCONNECT of MQTT 5, but nothing if the connection ends without one.
        self.tells_end = options.version == 5

    def open(self) -> None:
        options = self._options
        if not options.subscribe:
            return
        command = ["stdbuf", "-oL", "mosquitto_sub", "-F", FORMAT, "-q", str(options.subscribe[0].qos)]
        for subscription in options.subscribe:
            command += ["-t", subscription.filter]
        if options.subscribe[0].identifier:
            command += ["-D", "subscribe", "subscription-identifier", str(options.subscribe[0].identifier)]
        if options.subscribe[0].retain_as_published:
            command += ["--retain-as-published"]
        self._sub = subprocess.Popen(
            command + self._flags(options.client_id, is_subscriber=True),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        self._reader = threading.Thread(target=self._read, args=(self._sub,), daemon=True)
        self._reader.start()
        self._wait_for_suback()

    def publish(self, topic: str, payload: bytes, qos: int = 0, retain: bool = False, **properties: Any) -> Optional[int]:
        command = ["-t", topic, "-q", str(qos)] + (["-r"] if retain else [])
        command += ["-s"] if payload else ["-n"]
        return self._run_pub(command + _property_flags("publish", properties), payload)

    def publish_with_alias(self, topic: str, payloads: List[bytes], alias: int) -> None:
        """mosquitto_pub sends the topic with the first line only."""
        command = ["-t", topic, "-q", "1", "-l", "-D", "publish", "topic-alias", str(alias)]
        self._run_pub(command, b"".join(payload + b"\n" for payload in payloads))

    def disconnect(self) -> None:
        if self._sub:
            self._sub.send_signal(signal.SIGTERM)
            try:
                self._sub.wait(timeout=5)
                self._reader.join()
                self._sub = None
            except subprocess.TimeoutExpired:
                # The tool disconnects inside its signal handler, and deadlocks if the signal arrives while it handles a message.
                self.forget()

    def forget(self) -> None:
        if self._sub:
            self._sub.kill()
            self._sub.wait()
            self._reader.join()
            self._sub = None

    def _flags(self, client_id: str, is_subscriber: bool) -> List[str]:
        options = self._options
        flags = ["-d", "-V", VERSIONS[options.version], "-h", options.host, "-p", str(options.port)]
        flags += ["-i", client_id, "-k", str(options.keep_alive)]
        for flag, value in (("-u", options.username), ("-P", options.password)):
            flags += [flag, value] if value is not None else []
        properties = dict(options.properties)
        if "session_expiry_interval" in properties:
            flags += ["-x", str(properties.pop("session_expiry_interval"))]
        for flag, path in (("--cafile", options.ca), ("--cert", options.cert), ("--key", options.key)):
            flags += [flag, path] if path else []
        flags += _property_flags("connect", properties)
        if is_subscriber and not options.clean:
            flags += ["-c"]
        if is_subscriber and options.will:
            will = options.will
            flags += ["--will-topic", will["topic"], "--will-payload", will["payload"].decode()]
            flags += ["--will-qos", str(will.get("qos", 0))] + (["--will-retain"] if will.get("retain") else [])
            flags += _property_flags("will", will.get("properties") or {})
        return flags

    def _run_pub(self, command: List[str], payload: bytes) -> Optional[int]:
        # The subscriber already uses the client id.
        client_id = self._options.client_id + ("-pub" if self._sub else "")
        command = ["mosquitto_pub"] + self._flags(client_id, is_subscriber=False) + command
        done = subprocess.run(command, input=payload, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=PATIENCE)
        text = done.stdout.decode("utf-8", "replace")
        self._log.write(text)
        if done.returncode:
            raise Failed(f"mosquitto_pub ended with {done.returncode}: {text.strip().splitlines()[-1]}")
        found = ACKNOWLEDGED.search(text)
        return int(found.group(1)) if found else None

    def _wait_for_suback(self) -> None:
        try:
            answer = self._answers.get(timeout=PATIENCE)
        except queue.Empty:
            raise Failed("mosquitto_sub: no SUBACK") from None
        if "refused" in answer:
            self._sub.kill()
            self._sub.wait()
            raise Refused(answer["refused"], answer.get("text", ""))
        self.granted = answer["granted"]

    def _read(self, process: subprocess.Popen) -> None:
        line = ""
        for raw in process.stdout:
            line = raw.decode("utf-8", "replace").rstrip("\n")
            if line.startswith("MESSAGE "):
                self.inbox.put(self._message(line))
                continue
            self._log.write(line + "\n")
            self._take(line)
        self._answers.put({"refused": None, "text": line})

    def _take(self, line: str) -> None:
        if found := PUBLISH.search(line):
            self._dups[int(found.group(2))] = found.group(1) == "1"
        elif found := SUBACK.search(line):
            self._answers.put({"granted": [int(code) for code in found.group(1).split(",")]})
        elif (found := CONNACK.search(line)) and found.group(1) != "0":
            self._answers.put({"refused": int(found.group(1))})
        elif found := DISCONNECT.search(line):
            self.endings.put({"event": "closed", "reason_code": int(found.group(1))})

    def _message(self, line: str) -> Message:
        _, payload, rest = line.split(" ", 2)
        fields = dict(json.loads(rest, object_pairs_hook=list))
        return Message(
            topic=fields["topic"],
            payload=bytes.fromhex(payload),
            qos=fields["qos"],
            retain=bool(fields["retain"]),
            dup=self._dups.get(fields.get("mid", 0), False),
            properties=_properties(fields.get("properties") or []),
        )


def _properties(pairs: List[Any]) -> Dict[str, Any]:
    """Returns pairs, because names may repeat."""
    properties: Dict[str, Any] = {}
    for name, value in pairs:
        key = name.replace("-", "_")
        if key == "user_properties":
            properties[key] = [tuple(pair) for pair in value]
        elif key == "subscription_identifier":
            properties.setdefault("subscription_identifiers", []).append(value)
        elif key == "correlation_data":
            properties[key] = value.encode()
        else:
            properties[key] = value
    return properties


def _property_flags(packet: str, properties: Dict[str, Any]) -> List[str]:
    flags: List[str] = []
    for key, value in properties.items():
        if key == "user_properties":
            for name, text in value:
                flags += ["-D", packet, "user-property", name, text]
            continue
        text = value.decode() if isinstance(value, bytes) else str(value)
        flags += ["-D", packet, key.replace("_", "-"), text]
    return flags
