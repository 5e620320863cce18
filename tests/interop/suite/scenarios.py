"""Scenarios for every client and version. `scenarios_v5` has the scenarios that need MQTT 5.

A scenario opens connections of one client through a `Trial`. It raises `Failed` if the broker or the client violates the
standard. It never sleeps: to show that a message does not arrive, it waits for a later message that does."""

from dataclasses import dataclass
from typing import Callable, List, Tuple

from .driver import PATIENCE
from .message import Failed, Refused
from .trial import Peer, Trial, check

ALL = (3, 4, 5)
# The payload contains every byte, so that no component can treat it as text.
BYTES = bytes(range(256))
LARGE = BYTES * 1200
# Less than the default of `mqtt.max_packet_size`.
MEGABYTE = BYTES * 3900


@dataclass
class Scenario:
    name: str
    run: Callable[[Trial], None]
    versions: Tuple[int, ...]


SCENARIOS: List[Scenario] = []


def scenario(name: str, versions: Tuple[int, ...] = ALL) -> Callable:
    def register(run: Callable[[Trial], None]) -> Callable[[Trial], None]:
        SCENARIOS.append(Scenario(name, run, versions))
        return run

    return register


@scenario("keep alive")
def keep_alive(t: Trial) -> None:
    """The client sends PINGREQ and the broker answers, twice."""
    quiet = t.connect("quiet", keep_alive=t.keep_alive_min, relay=True, subscribe=[(t.topic("x"), 0)])
    pong = b"\xd0\x00"
    check(quiet.relay.wait(lambda wire: wire.to_client.count(pong) >= 2, PATIENCE), "no two PINGRESP in time")
    t.connect("other").publish(t.topic("x"), b"still there")
    quiet.expect(b"still there")


@scenario("connect")
def connect(t: Trial) -> None:
    first = t.connect("first", subscribe=[(t.topic("x"), 0)])
    check(first.session_present in (None, False), "a clean start has a session")
    first.publish(t.topic("x"), b"hello")
    first.expect(b"hello", topic=t.topic("x"), qos=0, retain=False)
    first.disconnect()


@scenario("users and rules")
def access(t: Trial) -> None:
    subscribe = [(t.topic("x"), 0)]
    try:
        t.connect("stranger", username="alice", password="wrong", subscribe=subscribe)
        raise Failed("a wrong password is accepted")
    except Refused as refused:
        expected = (None, 0x86, 0x87) if t.is_v5 else (None, 4, 5)
        check(refused.reason_code in expected, f"a wrong password: {refused}")
    alice = t.connect("alice", username="alice", password="wonderland", subscribe=subscribe)
    alice.publish(t.topic("x"), b"mine")
    alice.expect(b"mine")
    code = t.connect("curious", subscribe=[("denied/x", 1)]).granted[0]
    # MQTT 3.1 defines no failure code for a filter. Mosquitto and EMQX also send 0x80.
    check(code == (0x87 if t.is_v5 else 0x80), f"a denied filter is granted {code}")


def _both_ways(t: Trial, qos: int) -> None:
    subscriber = t.connect("sub", subscribe=[(t.topic("+/x"), qos)])
    publisher = t.connect("pub")
    for payload in (b"one", b"", BYTES):
        publisher.publish(t.topic("a/x"), payload, qos=qos)
    for payload in (b"one", b"", BYTES):
        subscriber.expect(payload, topic=t.topic("a/x"), qos=qos, retain=False, dup=False)


@scenario("QoS 0")
def qos_0(t: Trial) -> None:
    _both_ways(t, 0)


@scenario("QoS 1")
def qos_1(t: Trial) -> None:
    _both_ways(t, 1)


@scenario("QoS 2")
def qos_2(t: Trial) -> None:
    _both_ways(t, 2)


@scenario("lower QoS of the two")
def lower_qos(t: Trial) -> None:
    for granted, published in ((0, 2), (1, 2), (2, 1), (2, 0)):
        topic = t.topic(f"{granted}{published}")
        subscriber = t.connect(f"sub{granted}{published}", subscribe=[(topic, granted)])
        t.connect(f"pub{granted}{published}").publish(topic, b"x", qos=published)
        subscriber.expect(b"x", qos=min(granted, published))


@scenario("300 KiB payload")
def large(t: Trial) -> None:
    subscriber = t.connect("sub", subscribe=[(t.topic("x"), 2)])
    publisher = t.connect("pub")
    for qos in (0, 1, 2):
        publisher.publish(t.topic("x"), LARGE, qos=qos)
        subscriber.expect(LARGE, qos=qos)


@scenario("wildcards, unsubscribe")
def unsubscribe(t: Trial) -> None:
    subscriber = t.connect("sub", subscribe=[(t.topic("a/#"), 1), (t.topic("+/b"), 1)])
    publisher = t.connect("pub")
    for name in ("a", "a/c/d", "x/b"):
        publisher.publish(t.topic(name), name.encode(), qos=1)
        subscriber.expect(name.encode())
    subscriber.unsubscribe(t.topic("a/#"))
    publisher.publish(t.topic("a/c"), b"unwanted", qos=1)
    publisher.publish(t.topic("x/b"), b"wanted", qos=1)
    subscriber.expect(b"wanted")


@scenario("retained")
def retained(t: Trial) -> None:
    publisher = t.connect("pub")
    watcher = t.connect("watcher", subscribe=[(t.topic("#"), 1)])
    publisher.publish(t.topic("x"), b"old", qos=1, retain=True)
    publisher.publish(t.topic("x"), b"kept", qos=1, retain=True)
    watcher.expect(b"old", retain=False)
    watcher.expect(b"kept", retain=False)
    t.connect("late", subscribe=[(t.topic("#"), 1)]).expect(b"kept", retain=True, qos=1)
    publisher.publish(t.topic("x"), b"", qos=1, retain=True)
    after = t.connect("after", subscribe=[(t.topic("#"), 1)])
    publisher.publish(t.topic("y"), b"fence", qos=1)
    after.expect(b"fence", retain=False)


@scenario("will")
def will(t: Trial) -> None:
    watcher = t.connect("watcher", subscribe=[(t.topic("will/#"), 2)])
    wanted = {"topic": t.topic("will/x"), "payload": b"gone", "qos": 2, "retain": True}
    dying = t.connect("dying", will=wanted, relay=True, subscribe=[(t.topic("x"), 0)])
    dying.cut()
    watcher.expect(b"gone", qos=2, retain=False)
    t.connect("late", subscribe=[(t.topic("will/#"), 1)]).expect(b"gone", retain=True)
    t.connect("pub").publish(t.topic("will/x"), b"", qos=1, retain=True)


@scenario("no will after DISCONNECT")
def no_will(t: Trial) -> None:
    watcher = t.connect("watcher", subscribe=[(t.topic("will/#"), 2)])
    wanted = {"topic": t.topic("will/x"), "payload": b"never", "qos": 1, "retain": False}
    t.connect("polite", will=wanted, subscribe=[(t.topic("x"), 0)]).disconnect()
    t.connect("pub").publish(t.topic("will/x"), b"fence", qos=1)
    watcher.expect(b"fence")


def has_session(peer: Peer, t: Trial) -> bool:
    """CONNACK of MQTT 3.1 has no Session Present, and not every client reports it."""
    return t.version == 3 or peer.session_present in (None, True)


@scenario("offline queue")
def offline_queue(t: Trial) -> None:
    fields = {"clean": False, "properties": {"session_expiry_interval": 300} if t.is_v5 else {}}
    sleeper = t.connect("sleeper", subscribe=[(t.topic("#"), 2)], **fields)
    check(sleeper.session_present in (None, False), "a new client id has a session")
    sleeper.disconnect()
    publisher = t.connect("pub")
    # QoS 2 messages are last: a client may report them only after PUBREL, after later QoS 1 messages.
    sent = [(f"{number}".encode(), 1 if number < 5 else 2) for number in range(10)]
    for payload, qos in sent:
        publisher.publish(t.topic("x"), payload, qos=qos)
    back = t.connect("sleeper", **fields)
    check(has_session(back, t), "the session is lost")
    for payload, qos in sent:
        back.expect(payload, qos=qos)
    back.disconnect()
    fresh = t.connect("sleeper", subscribe=[(t.topic("#"), 2)])
    check(fresh.session_present in (None, False), "a clean start has a session")


@scenario("redelivery")
def redelivery(t: Trial) -> None:
    """The acknowledgement is lost with the connection, and the broker resends the message with DUP."""
    fields = {"clean": False, "properties": {"session_expiry_interval": 300} if t.is_v5 else {}}
    publisher = t.connect("pub")
    for qos in (1, 2):
        name, topic = f"receiver{qos}", t.topic(f"q{qos}")
        receiver = t.connect(name, relay=True, subscribe=[(topic, qos)], **fields)
        receiver.relay.hold()
        publisher.publish(topic, b"again", qos=qos)
        publisher.publish(topic, b"later", qos=qos)
        if qos == 1:
            # At QoS 2 a client may report the message only after PUBREL, which is held back.
            receiver.expect(b"again", dup=False)
        check(receiver.relay.wait(lambda wire: b"again" in wire.to_client, PATIENCE), "nothing was delivered")
        receiver.cut()
        back = t.connect(name, **fields)
        check(has_session(back, t), "the session is lost")
        back.expect(b"again", dup=True, qos=qos)
        back.expect(b"later", qos=qos)


@scenario("shared subscription")
def shared(t: Trial) -> None:
    wanted = [(f"$share/group/{t.topic('#')}", 1)]
    members = [t.connect("one", subscribe=wanted), t.connect("two", subscribe=wanted)]
    publisher = t.connect("pub")
    sent = {f"{number}".encode() for number in range(10)}
    for payload in sorted(sent):
        publisher.publish(t.topic("x"), payload, qos=1)
    # The default strategy is round robin, so each member gets five messages.
    got = [message.payload for member in members for message in member.messages(5)]
    check(set(got) == sent, f"the members got {sorted(got)}")


@scenario("take-over")
def take_over(t: Trial) -> None:
    first = t.connect("same", relay=True, subscribe=[(t.topic("x"), 0)])
    second = t.connect("same", subscribe=[(t.topic("x"), 0)])
    reason = first.closed()
    check(reason in (None, 0x8E) if t.is_v5 else True, f"taken over with reason {reason}")
    t.connect("pub").publish(t.topic("x"), b"for the second")
    second.expect(b"for the second")


def _over(t: Trial, transport: str) -> None:
    peer = t.connect("peer", transport=transport, subscribe=[(t.topic("#"), 2)])
    other = t.connect("other", transport=transport)
    for payload, qos in ((b"small", 0), (LARGE, 1), (BYTES, 2)):
        other.publish(t.topic("x"), payload, qos=qos)
        peer.expect(payload, qos=qos)
    peer.disconnect()


@scenario("TLS")
def tls(t: Trial) -> None:
    _over(t, "tls")


@scenario("mutual TLS")
def mutual_tls(t: Trial) -> None:
    _over(t, "mtls")


@scenario("WebSocket")
def websocket(t: Trial) -> None:
    _over(t, "ws")


@scenario("secure WebSocket")
def secure_websocket(t: Trial) -> None:
    _over(t, "wss")


@scenario("QUIC")
def quic(t: Trial) -> None:
    _over(t, "quic")


@scenario("mutual QUIC")
def mutual_quic(t: Trial) -> None:
    _over(t, "mquic")


@scenario("QUIC, large message")
def quic_large(t: Trial) -> None:
    peer = t.connect("peer", transport="quic", subscribe=[(t.topic("#"), 1)])
    peer.publish(t.topic("x"), MEGABYTE, qos=1)
    peer.expect(MEGABYTE, qos=1)
    peer.disconnect()


@scenario("QUIC, another address")
def quic_migration(t: Trial) -> None:
    """The client's router changes its port, in both directions of messages."""
    peer = t.connect("peer", transport="quic", relay=True, subscribe=[(t.topic("#"), 1)])
    other = t.connect("other", transport="quic")
    for number in range(3):
        peer.relay.rebind()
        peer.publish(t.topic("x"), b"from port %d" % number, qos=1)
        peer.expect(b"from port %d" % number)
        other.publish(t.topic("y"), b"to port %d" % number, qos=1)
        peer.expect(b"to port %d" % number)
    peer.disconnect()


def _packet(first: int, *parts: bytes) -> bytes:
    """Returns a packet of less than 128 bytes."""
    body = b"".join(parts)
    return bytes([first, len(body)]) + body


def _text(text: str) -> bytes:
    return len(text).to_bytes(2, "big") + text.encode()


@scenario("QUIC, data streams", versions=(4,))
def quic_streams(t: Trial) -> None:
    """Packets leave on the stream of their request. Packet identifiers are per stream."""
    peer = t.connect("peer", transport="quic", subscribe=[(t.topic("control"), 1)])
    suback = b"\x90\x03\x00\x01\x01"
    for name in ("one", "two"):
        subscribe = _packet(0x82, b"\x00\x01", _text(t.topic(name)), b"\x01")
        check(peer.data_stream(name, subscribe, len(suback)) == suback, f"no SUBACK on the stream {name}")
    puback = b"\x40\x02\x00\x07"
    for sender, receiver in (("one", "two"), ("two", "one")):
        topic = _text(t.topic(receiver))
        publish = _packet(0x32, topic, b"\x00\x07", sender.encode())
        check(peer.data_stream(sender, publish, len(puback)) == puback, f"no PUBACK on the stream {sender}")
        wanted = _packet(0x32, topic, b"\x00\x01", sender.encode())
        check(peer.data_stream(receiver, b"", len(wanted)) == wanted, f"no message on the stream {receiver}")
    publish = _packet(0x32, _text(t.topic("control")), b"\x00\x08", b"from a stream")
    check(peer.data_stream("one", publish, 4) == b"\x40\x02\x00\x08", "no second PUBACK")
    peer.expect(b"from a stream", qos=1)
    peer.disconnect()


@scenario("QUIC, will")
def quic_will(t: Trial) -> None:
    """The connection ends without DISCONNECT."""
    watcher = t.connect("watcher", subscribe=[(t.topic("#"), 1)])
    will = {"topic": t.topic("will"), "payload": b"gone", "qos": 1, "retain": False}
    t.connect("dying", transport="quic", will=will).forget()
    watcher.expect(b"gone")
