"""Events of clients, in one form for all clients."""

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional


@dataclass
class Message:
    """An application message as the client reports it."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    # None if the client does not report it.
    dup: Optional[bool] = None
    # MQTT 5 properties by the names of the standard in snake case. Absent properties are omitted.
    properties: Dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        text = self.payload[:24].decode("utf-8", "replace")
        flags = " retained" if self.retain else ""
        return f"{self.topic} {text!r} ({len(self.payload)} bytes) QoS {self.qos}{flags} {self.properties or ''}".rstrip()


@dataclass
class Subscription:
    """One filter of a SUBSCRIBE, with the options of MQTT 5."""

    filter: str
    qos: int = 0
    identifier: Optional[int] = None
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0

    def fields(self) -> Dict[str, Any]:
        return {key: value for key, value in vars(self).items() if value}


@dataclass
class Options:
    """Options of a connection."""

    version: int
    client_id: str
    host: str
    port: int
    transport: str = "tcp"
    clean: bool = True
    keep_alive: int = 30
    username: Optional[str] = None
    password: Optional[str] = None
    # These are paths of PEM files.
    ca: Optional[str] = None
    cert: Optional[str] = None
    key: Optional[str] = None
    # topic, payload (bytes), qos, retain, properties
    will: Optional[Dict[str, Any]] = None
    properties: Dict[str, Any] = field(default_factory=dict)
    subscribe: List[Subscription] = field(default_factory=list)


class Failed(Exception):
    """The client or the broker did not behave as the scenario expects."""


class Refused(Exception):
    """The broker rejected CONNECT with a reason code, or did not answer it."""

    def __init__(self, reason_code: Optional[int], text: str = "") -> None:
        super().__init__(f"refused with {reason_code} {text}".rstrip())
        self.reason_code = reason_code
