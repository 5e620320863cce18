"""Driver around paho-mqtt (Eclipse Paho, Python). The protocol is described in tests/interop/README.md."""

import base64
import contextlib
import json
import os
import socket
import ssl
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import paho.mqtt.client as mqtt
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from paho.mqtt.subscribeoptions import SubscribeOptions

from quic import QuicClient

TIMEOUT = 15
output = threading.Lock()
connections = {}

# Maps names of the driver protocol to names of the library.
NAMES = {
    "session_expiry_interval": "SessionExpiryInterval",
    "receive_maximum": "ReceiveMaximum",
    "maximum_packet_size": "MaximumPacketSize",
    "topic_alias_maximum": "TopicAliasMaximum",
    "will_delay_interval": "WillDelayInterval",
    "payload_format_indicator": "PayloadFormatIndicator",
    "message_expiry_interval": "MessageExpiryInterval",
    "content_type": "ContentType",
    "response_topic": "ResponseTopic",
    "correlation_data": "CorrelationData",
    "topic_alias": "TopicAlias",
    "subscription_identifiers": "SubscriptionIdentifier",
    "assigned_client_identifier": "AssignedClientIdentifier",
    "user_properties": "UserProperty",
}


def send(event):
    with output:
        sys.stdout.write(json.dumps(event) + "\n")
        sys.stdout.flush()


def to_library(packet, fields):
    properties = Properties(packet)
    for name, value in fields.items():
        if name == "correlation_data":
            value = base64.b64decode(value)
        elif name == "user_properties":
            value = [tuple(pair) for pair in value]
        setattr(properties, NAMES[name], value)
    return properties


def from_library(properties):
    fields = {}
    for name, attribute in NAMES.items():
        value = getattr(properties, attribute, None)
        if value is not None:
            fields[name] = base64.b64encode(value).decode() if isinstance(value, bytes) else value
    return fields


class Answers:
    """Requests that wait for their acknowledgement, by packet id. The acknowledgement may arrive first."""

    def __init__(self):
        self._condition = threading.Condition()
        self._found = {}
        self._is_closed = False

    def put(self, key, value):
        with self._condition:
            self._found[key] = value
            self._condition.notify_all()

    def close(self):
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()

    def take(self, key):
        with self._condition:
            if not self._condition.wait_for(lambda: key in self._found or self._is_closed, TIMEOUT):
                raise TimeoutError(f"no answer to {key}")
            if key not in self._found:
                raise ConnectionError("the connection was closed")
            return self._found.pop(key)

    def wait_closed(self):
        with self._condition:
            if not self._condition.wait_for(lambda: self._is_closed, TIMEOUT):
                raise TimeoutError("the connection does not end")


class Connection:
    def __init__(self, name, request):
        self.name = name
        self.version = request["version"]
        self.is_v5 = self.version == 5
        self.answers = Answers()
        self.is_leaving = False
        transport = request["transport"]
        arguments = {} if self.is_v5 else {"clean_session": request["clean"]}
        self.client = (QuicClient if transport == "quic" else mqtt.Client)(
            mqtt.CallbackAPIVersion.VERSION2,
            client_id=request["client_id"],
            protocol=self.version,
            reconnect_on_failure=False,
            transport="websockets" if transport in ("ws", "wss") else "tcp",
            **arguments,
        )
        if transport == "quic":
            self.client.use(request)
        if transport in ("tls", "wss"):
            context = ssl.create_default_context(cafile=request["ca"])
            if "cert" in request:
                context.load_cert_chain(request["cert"], request["key"])
            self.client.tls_set_context(context)
        if "username" in request:
            self.client.username_pw_set(request["username"], request.get("password"))
        if "will" in request:
            self.set_will(request["will"])
        self.client.on_connect = self.on_connect
        self.client.on_disconnect = self.on_disconnect
        self.client.on_message = self.on_message
        self.client.on_publish = lambda _c, _u, mid, code, _p: self.answers.put(("publish", mid), code.value)
        self.client.on_subscribe = lambda _c, _u, mid, codes, _p: self.answers.put(("subscribe", mid), codes[0].value)
        self.client.on_unsubscribe = self.on_unsubscribe

    def set_will(self, will):
        properties = to_library(PacketTypes.WILLMESSAGE, will.get("properties") or {}) if self.is_v5 else None
        payload = base64.b64decode(will["payload"])
        self.client.will_set(will["topic"], payload, will["qos"], will["retain"], properties)

    def connect(self, request):
        arguments = {}
        if self.is_v5:
            arguments["clean_start"] = request["clean"]
            arguments["properties"] = to_library(PacketTypes.CONNECT, request.get("properties") or {})
        self.client.connect(request["host"], request["port"], request["keep_alive"], **arguments)
        self.client.loop_start()
        return self.answers.take("connect")

    def on_connect(self, _client, _userdata, flags, code, properties):
        answer = {"session_present": flags.session_present, "reason_code": code.value}
        if code.is_failure:
            answer["refused"] = True
            answer["text"] = str(code)
            # The library translates the return codes of MQTT 3 to the reason codes of MQTT 5.
            if not self.is_v5:
                answer["reason_code"] = {0x84: 1, 0x85: 2, 0x88: 3, 0x86: 4, 0x87: 5}[code.value]
        elif properties:
            answer["properties"] = from_library(properties)
        self.answers.put("connect", answer)

    def on_disconnect(self, _client, _userdata, flags, code, _properties):
        self.answers.close()
        if not self.is_leaving:
            reason = code.value if flags.is_disconnect_packet_from_server else None
            send({"as": self.name, "event": "closed", "reason_code": reason})

    def on_unsubscribe(self, _client, _userdata, mid, codes, _properties):
        self.answers.put(("unsubscribe", mid), codes[0].value if codes else None)

    def on_message(self, _client, _userdata, message):
        event = {
            "as": self.name,
            "event": "message",
            "topic": message.topic,
            "payload": base64.b64encode(message.payload).decode(),
            "qos": message.qos,
            "retain": message.retain,
            "dup": message.dup,
        }
        if message.properties:
            event["properties"] = from_library(message.properties)
        send(event)

    def subscribe(self, request):
        if self.is_v5:
            options = SubscribeOptions(
                qos=request.get("qos", 0),
                noLocal=request.get("no_local", False),
                retainAsPublished=request.get("retain_as_published", False),
                retainHandling=request.get("retain_handling", 0),
            )
            properties = Properties(PacketTypes.SUBSCRIBE)
            if "identifier" in request:
                properties.SubscriptionIdentifier = request["identifier"]
            _, mid = self.client.subscribe(request["filter"], options=options, properties=properties)
        else:
            _, mid = self.client.subscribe(request["filter"], request.get("qos", 0))
        return {"reason_code": self.answers.take(("subscribe", mid))}

    def unsubscribe(self, request):
        _, mid = self.client.unsubscribe(request["filter"])
        return {"reason_code": self.answers.take(("unsubscribe", mid))}

    def publish(self, request):
        topic = "" if request.get("alias_is_known") else request["topic"]
        properties = to_library(PacketTypes.PUBLISH, request["properties"]) if self.is_v5 else None
        payload = base64.b64decode(request["payload"])
        info = self.client.publish(topic, payload, request["qos"], request["retain"], properties)
        return {"reason_code": self.answers.take(("publish", info.mid))}

    def data_stream(self, request):
        received = self.client.exchange(request["stream"], base64.b64decode(request["send"]), request["receive"])
        return {"received": base64.b64encode(received).decode()}

    def disconnect(self, request):
        self.is_leaving = True
        fields = request.get("properties") or {}
        self.client.disconnect(properties=to_library(PacketTypes.DISCONNECT, fields) if fields else None)
        self.answers.wait_closed()
        self.client.loop_stop()
        return {}

    def forget(self, _request):
        self.is_leaving = True
        # This is the only way to close a connection without DISCONNECT. It wakes the library's thread for every transport.
        wire = self.client.socket()
        # The connection may end by itself at any moment.
        with contextlib.suppress(OSError, ValueError):
            if wire is not None:
                with socket.socket(fileno=os.dup(wire.fileno())) as duplicate:
                    duplicate.shutdown(socket.SHUT_RDWR)
        self.client.loop_stop()
        # Removes the connection with its file descriptors, because the library cannot wait for descriptors above 1023.
        connections.pop(self.name, None)
        return {}


def perform(request):
    answer = {"id": request["id"]}
    try:
        do, name = request["do"], request["as"]
        if do == "connect":
            connections[name] = Connection(name, request)
            answer.update(connections[name].connect(request))
        else:
            answer.update(getattr(connections[name], do)(request) or {})
    except Exception as error:
        answer["error"] = f"{type(error).__name__}: {error}"
    send(answer)


if __name__ == "__main__":
    with ThreadPoolExecutor(16) as pool:
        for line in sys.stdin:
            pool.submit(perform, json.loads(line))
