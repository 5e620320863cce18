"""Runs a firmware update with ThingsBoard's unmodified device SDK and prints the received firmware.

usage: firmware.py HOST PORT DEVICE_TOKEN
"""

import sys
import threading

from suite import connected
from tb_device_mqtt import TBDeviceMqttClient, TBFirmwareState

PATIENCE = 20


def main():
    host, port, token = sys.argv[1:]
    got = threading.Event()

    def received(client, firmware, version):
        client.update_firmware_info(client.firmware_info["fw_title"], version, TBFirmwareState.UPDATED)
        print(f"{version}: {firmware.decode()}")
        got.set()

    client = TBDeviceMqttClient(host, int(port), token, quality_of_service=1, chunk_size=20)
    client.set_on_firmware_received_callback(received)
    connected(client).get_firmware_update()
    if not got.wait(PATIENCE):
        raise SystemExit(f"no firmware: {client.firmware_data!r}")
    client.disconnect()
    client.stop()


if __name__ == "__main__":
    main()
