"""Additional scenarios for MQTT 5 clients."""

from .driver import PATIENCE
from .message import Subscription
from .scenarios import scenario
from .trial import Trial, check, until

V5 = (5,)


@scenario("properties of messages", V5)
def properties(t: Trial) -> None:
    subscriber = t.connect("sub", subscribe=[(t.topic("x"), 1)])
    sent = {
        "user_properties": [("a", "1"), ("a", "2"), ("b", "zwei ✓")],
        "content_type": "text/plain",
        "payload_format_indicator": 1,
        "message_expiry_interval": 600,
        "response_topic": t.topic("answer"),
        "correlation_data": b"number 7",
    }
    t.connect("pub").publish(t.topic("x"), b"x", qos=1, **sent)
    got = dict(subscriber.expect(b"x").properties)
    left = got.pop("message_expiry_interval", None)
    check(left is not None and 590 <= left <= 600, f"600 s of expiry have become {left}")
    del sent["message_expiry_interval"]
    for name, value in sent.items():
        # Some libraries report a flag as a boolean.
        check(got.get(name) == value, f"{name} is {got.get(name)!r}, not {value!r}")


@scenario("request and response", V5)
def request_response(t: Trial) -> None:
    requester = t.connect("requester", subscribe=[(t.topic("answers"), 1)])
    responder = t.connect("responder", subscribe=[(t.topic("questions"), 1)])
    requester.publish(
        t.topic("questions"), b"?", qos=1, response_topic=t.topic("answers"), correlation_data=b"tag-42"
    )
    question = responder.expect(b"?").properties
    responder.publish(question["response_topic"], b"!", qos=1, correlation_data=question["correlation_data"])
    answer = requester.expect(b"!").properties
    check(answer.get("correlation_data") == b"tag-42", f"the answer carries {answer}")


@scenario("message expiry", V5)
def expiry(t: Trial) -> None:
    fields = {"clean": False, "properties": {"session_expiry_interval": 300}}
    sleeper = t.connect("sleeper", subscribe=[(t.topic("queued"), 1)], **fields)
    sleeper.disconnect()
    publisher = t.connect("pub")
    publisher.publish(t.topic("queued"), b"short", qos=1, message_expiry_interval=1)
    publisher.publish(t.topic("queued"), b"long", qos=1, message_expiry_interval=600)
    # This message expires later than the queued one.
    publisher.publish(t.topic("kept"), b"short", qos=1, retain=True, message_expiry_interval=1)

    def is_gone() -> bool:
        asker = t.connect("asker", subscribe=[(t.topic("kept"), 1)])
        publisher.publish(t.topic("kept"), b"fence", qos=1)
        is_first = asker.message().payload == b"fence"
        asker.forget()
        return is_first

    until(is_gone, "a retained message of 1 s does not expire")
    back = t.connect("sleeper", **fields)
    left = back.expect(b"long").properties.get("message_expiry_interval")
    check(left is not None and left < 600, f"600 s of expiry have become {left} after more than one")


@scenario("topic alias to the broker", V5)
def topic_alias_in(t: Trial) -> None:
    topic = t.topic("a/rather/long/topic/name")
    subscriber = t.connect("sub", subscribe=[(topic, 1)])
    publisher = t.connect("pub", relay=True)
    publisher.publish_with_alias(topic, [b"first", b"second", b"third"], alias=3)
    for payload in (b"first", b"second", b"third"):
        subscriber.expect(payload, topic=topic)
    times = publisher.relay.to_broker.count(topic.encode())
    check(times == 1, f"the topic was sent {times} times")


@scenario("topic alias to the client", V5)
def topic_alias_out(t: Trial) -> None:
    topic = t.topic("a/rather/long/topic/name")
    subscriber = t.connect("sub", relay=True, properties={"topic_alias_maximum": 5}, subscribe=[(topic, 1)])
    publisher = t.connect("pub")
    for payload in (b"first", b"second", b"third"):
        publisher.publish(topic, payload, qos=1)
        subscriber.expect(payload, topic=topic)
    times = subscriber.relay.to_client.count(topic.encode())
    check(times == 1, f"the topic was sent {times} times")


@scenario("subscription identifiers", V5)
def subscription_identifiers(t: Trial) -> None:
    publisher = t.connect("pub")
    one = t.connect("one", subscribe=[Subscription(t.topic("+"), 1, identifier=7)])
    publisher.publish(t.topic("x"), b"x", qos=1)
    found = one.expect(b"x").properties.get("subscription_identifiers")
    check(found == [7], f"identifiers are {found}")


@scenario("overlapping identifiers", V5)
def overlapping_identifiers(t: Trial) -> None:
    wanted = [Subscription(t.topic("+"), 0, identifier=7), Subscription(t.topic("#"), 1, identifier=300)]
    both = t.connect("both", subscribe=wanted)
    publisher = t.connect("pub")
    publisher.publish(t.topic("x"), b"x", qos=1)
    publisher.publish(t.topic("x"), b"fence", qos=1)
    found = both.expect(b"x", qos=1).properties.get("subscription_identifiers")
    check(sorted(found or []) == [7, 300], f"identifiers are {found}")
    both.expect(b"fence")


@scenario("reason codes", V5)
def reason_codes(t: Trial) -> None:
    peer = t.connect("peer")
    code = peer.publish(t.topic("nobody"), b"x", qos=1)
    check(code == 0x10, f"no matching subscribers: {code}")
    code = peer.publish("denied/x", b"x", qos=1)
    check(code == 0x87, f"not authorized: {code}")


@scenario("reason of UNSUBACK", V5)
def unsuback(t: Trial) -> None:
    code = t.connect("peer").unsubscribe(t.topic("never subscribed"))
    check(code == 0x11, f"no subscription existed: {code}")


@scenario("assigned client id", V5)
def assigned_client_id(t: Trial) -> None:
    peer = t.connect("")
    check(bool(peer.connack.get("assigned_client_identifier")), f"CONNACK has {peer.connack}")


@scenario("session expiry", V5)
def session_expiry(t: Trial) -> None:
    wanted = [(t.topic("x"), 1)]
    publisher = t.connect("pub")
    for name, seconds, is_kept in (("kept", 300, True), ("ended", 0, False)):
        fields = {"clean": False, "properties": {"session_expiry_interval": seconds}}
        t.connect(name, subscribe=wanted, **fields).disconnect()
        publisher.publish(t.topic("x"), b"while away", qos=1)
        back = t.connect(name, subscribe=wanted, **fields)
        check(back.session_present in (None, is_kept), f"{seconds} s: session present is {back.session_present}")
        publisher.publish(t.topic("x"), b"fence", qos=1)
        back.expect(b"while away" if is_kept else b"fence")
        back.disconnect()


@scenario("session expiry in DISCONNECT", V5)
def session_expiry_in_disconnect(t: Trial) -> None:
    fields = {"clean": False, "properties": {"session_expiry_interval": 300}}
    t.connect("peer", **fields).disconnect(session_expiry_interval=0)
    check(t.connect("peer", **fields).session_present is False, "the session outlives an expiry of 0")


@scenario("receive maximum", V5)
def receive_maximum(t: Trial) -> None:
    wanted = [(t.topic("#"), 1)]
    slow = t.connect("slow", relay=True, properties={"receive_maximum": 2}, subscribe=wanted)
    publisher = t.connect("pub")
    sent = [f"message {number}".encode() for number in range(5)]
    # While its acknowledgements are held back, the client receives two messages and no more.
    slow.relay.hold()
    for payload in sent:
        publisher.publish(t.topic("x"), payload, qos=1)
    arrived = lambda payload: (lambda wire: payload in wire.to_client)
    check(slow.relay.wait(arrived(sent[1]), PATIENCE), "the second message does not come")
    publisher.publish(t.topic("x"), b"one more", qos=1)
    check(not arrived(sent[2])(slow.relay), "three unacknowledged messages with a Receive Maximum of 2")
    slow.relay.release()
    for payload in sent + [b"one more"]:
        slow.expect(payload)


@scenario("maximum packet size", V5)
def maximum_packet_size(t: Trial) -> None:
    small = t.connect("small", properties={"maximum_packet_size": 200}, subscribe=[(t.topic("x"), 1)])
    publisher = t.connect("pub")
    publisher.publish(t.topic("x"), b"x" * 300, qos=1)
    publisher.publish(t.topic("x"), b"fits", qos=1)
    small.expect(b"fits")


@scenario("no local", V5)
def no_local(t: Trial) -> None:
    peer = t.connect("peer", subscribe=[Subscription(t.topic("x"), 1, no_local=True)])
    peer.publish(t.topic("x"), b"own", qos=1)
    t.connect("other").publish(t.topic("x"), b"other's", qos=1)
    peer.expect(b"other's")


@scenario("retain as published", V5)
def retain_as_published(t: Trial) -> None:
    peer = t.connect("peer", subscribe=[Subscription(t.topic("x"), 1, retain_as_published=True)])
    publisher = t.connect("pub")
    for is_retained in (True, False):
        publisher.publish(t.topic("x"), b"x", qos=1, retain=is_retained)
        peer.expect(b"x", retain=is_retained)
    publisher.publish(t.topic("x"), b"", qos=1, retain=True)


@scenario("retain handling", V5)
def retain_handling(t: Trial) -> None:
    publisher = t.connect("pub")
    publisher.publish(t.topic("x"), b"kept", qos=1, retain=True)
    never = t.connect("never", subscribe=[Subscription(t.topic("x"), 1, retain_handling=2)])
    once = t.connect("once", subscribe=[Subscription(t.topic("x"), 1, retain_handling=1)])
    once.expect(b"kept", retain=True)
    once.subscribe(Subscription(t.topic("x"), 1, retain_handling=1))
    publisher.publish(t.topic("x"), b"fence", qos=1)
    never.expect(b"fence")
    once.expect(b"fence")
    publisher.publish(t.topic("x"), b"", qos=1, retain=True)


def _will(t: Trial, payload: bytes, **properties) -> dict:
    return {"topic": t.topic("will/x"), "payload": payload, "qos": 1, "retain": False, "properties": properties}


@scenario("properties of wills", V5)
def will_properties(t: Trial) -> None:
    watcher = t.connect("watcher", subscribe=[(t.topic("will/#"), 1)])
    sent = {"content_type": "text/x", "user_properties": [("k", "1"), ("k", "2")]}
    t.connect("dying", will=_will(t, b"gone", **sent), relay=True, subscribe=[(t.topic("x"), 0)]).cut()
    got = watcher.expect(b"gone", qos=1, retain=False).properties
    for name, value in sent.items():
        check(got.get(name) == value, f"{name} of the will is {got.get(name)!r}, not {value!r}")


@scenario("will delay", V5)
def will_delay(t: Trial) -> None:
    watcher = t.connect("watcher", subscribe=[(t.topic("will/#"), 1)])
    fields = {"clean": False, "relay": True, "properties": {"session_expiry_interval": 300}}
    fields["subscribe"] = [(t.topic("x"), 0)]
    t.connect("dying", will=_will(t, b"first", will_delay_interval=1), **fields).cut()
    # The client reconnects before the Will Delay Interval ends, so the first connection's will is not published.
    t.connect("dying", will=_will(t, b"second", will_delay_interval=1), **fields).cut()
    t.connect("pub").publish(t.topic("will/y"), b"before the delay", qos=1)
    watcher.expect(b"before the delay")
    watcher.expect(b"second")
