"""Runs ThingsBoard's unmodified device and gateway SDKs against a server whose rule chain answers `setShared` and `callMe`.

usage: suite.py HOST PORT DEVICE_TOKEN GATEWAY_TOKEN PROVISION_KEY PROVISION_SECRET
"""

import logging
import sys
import threading
import time

from tb_device_mqtt import TBDeviceMqttClient
from tb_gateway_mqtt import TBGatewayMqttClient

PATIENCE = 20


class Answers:
    """Records the arguments of callbacks, and waits for them."""

    def __init__(self):
        self.condition = threading.Condition()
        self.all = []

    def put(self, *answer):
        with self.condition:
            self.all.append(answer)
            self.condition.notify_all()

    def wait_for(self, what, matches):
        with self.condition:
            found = self.condition.wait_for(lambda: [a for a in self.all if matches(a)], PATIENCE)
        if not found:
            raise SystemExit(f"{what}: not among {self.all}")
        print("ok", what)
        return found[0]


def connected(client):
    """The SDK sets its callback after it begins to connect and may miss the CONNACK, so this polls its state instead."""
    client.connect(timeout=60)
    until = time.monotonic() + PATIENCE
    while not client.is_connected():
        if time.monotonic() > until:
            raise SystemExit("the client does not connect")
        time.sleep(0.01)
    return client


def check(what, value, expected):
    if value != expected:
        raise SystemExit(f"{what}: {value!r}, expected {expected!r}")
    print("ok", what)


def device(host, port, token):
    client = connected(TBDeviceMqttClient(host, port, token, quality_of_service=1))
    check("telemetry", client.send_telemetry({"temperature": 22.5, "on": True}).get(), 0)
    check("telemetry with a time", client.send_telemetry({"ts": 1700000000000, "values": {"n": 1}}).get(), 0)
    many = [{"ts": 1700000000000 + n, "values": {"m": n}} for n in range(100)]
    check("many at once", client.send_telemetry(many).get(), 0)
    check("attributes", client.send_attributes({"model": "M", "serial": 7}).get(), 0)

    answers = Answers()
    client.request_attributes(client_keys=["model", "serial"], callback=lambda *a: answers.put("asked", a[0]))
    answers.wait_for(
        "a request for attributes",
        lambda a: a[0] == "asked" and a[1].get("client") == {"model": "M", "serial": 7},
    )
    client.subscribe_to_all_attributes(lambda *a: answers.put("pushed", a[0]))
    client.send_rpc_call("setShared", {"limit": 5}, lambda *a: answers.put("called", a[1]))
    answers.wait_for("a call to the server", lambda a: a[0] == "called" and a[1].get("method") == "setShared")
    answers.wait_for("a shared attribute", lambda a: a == ("pushed", {"limit": 5}))

    def called(request_id, body):
        answers.put("server", body)
        client.send_rpc_reply(request_id, {"said": body["params"]["text"][::-1]})

    client.set_server_side_rpc_request_handler(called)
    client.send_rpc_call("callMe", {"text": "abc"}, lambda *a: None)
    answers.wait_for("a call from the server", lambda a: a[0] == "server" and a[1]["method"] == "reverse")
    answers.wait_for("its answer", lambda a: a == ("pushed", {"answer": "cba"}))
    check("claim", client.claim("secret", 60000).get(), 0)
    client.disconnect()
    client.stop()


def gateway(host, port, token):
    client = connected(TBGatewayMqttClient(host, port, token))
    client.gw_connect_device("Behind", "thermometer")
    check("telemetry of a device behind", client.gw_send_telemetry("Behind", [{"ts": 1700000000000, "values": {"t": 1}}]).get(), 0)
    check("attributes of a device behind", client.gw_send_attributes("Behind", {"place": "roof"}).get(), 0)
    answers = Answers()
    client.gw_request_client_attributes("Behind", ["place"], lambda *a: answers.put(a[0]))
    answers.wait_for("a request for attributes of a device behind", lambda a: "roof" in str(a[0]))
    client.gw_disconnect_device("Behind")
    client.disconnect()
    client.stop()


def provision(host, port, key, secret):
    credentials = TBDeviceMqttClient.provision(host, key, secret, device_name="By itself", port=port)
    if not credentials:
        raise SystemExit("the device was not provisioned")
    print("ok provisioning")
    client = connected(TBDeviceMqttClient(host, port, credentials["credentialsValue"], quality_of_service=1))
    check("telemetry of a device that provisioned itself", client.send_telemetry({"a": 1}).get(), 0)
    client.disconnect()
    client.stop()


def main():
    logging.basicConfig(level=logging.WARNING)
    host, port, device_token, gateway_token, key, secret = sys.argv[1:]
    device(host, int(port), device_token)
    gateway(host, int(port), gateway_token)
    provision(host, int(port), key, secret)


if __name__ == "__main__":
    main()
