"""What a client reports, in one form for all of them."""

from dataclasses import dataclass, field
from typing import Any, Dict, List, Optional


@dataclass
class Message:
    """An application message as the client's user sees it."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    # None where the client does not tell.
    dup: Optional[bool] = None
    # MQTT 5, by the names of the standard in snake case; absent ones are left out.
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
    """What a connection is opened with."""

    version: int
    client_id: str
    host: str
    port: int
    transport: str = "tcp"
    clean: bool = True
    keep_alive: int = 30
    username: Optional[str] = None
    password: Optional[str] = None
    # Paths of PEM files.
    ca: Optional[str] = None
    cert: Optional[str] = None
    key: Optional[str] = None
    # topic, payload (bytes), qos, retain, properties
    will: Optional[Dict[str, Any]] = None
    properties: Dict[str, Any] = field(default_factory=dict)
    subscribe: List[Subscription] = field(default_factory=list)


class Failed(Exception):
    """The client or the broker did something else than the scenario expects."""


class Refused(Exception):
    """The broker answered CONNECT with a reason against it, or not at all."""

    def __init__(self, reason_code: Optional[int], text: str = "") -> None:
        super().__init__(f"refused with {reason_code} {text}".rstrip())
        self.reason_code = reason_code
