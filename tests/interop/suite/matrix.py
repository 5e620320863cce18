"""All clients together: each receives the messages of every client, version and QoS unchanged."""

from typing import Any, Dict, List

from .broker import Broker
from .message import Failed, Message, Refused
from .table import VERSION_NAMES, Column, markdown
from .trial import Peer, Trial

TEXT = "Grüße, 世界 ✓".encode()
BYTES = bytes(range(256))
SENT = ((TEXT, 0), (BYTES, 1), (b"", 2))


def run(report: Any, drivers: Dict[str, Any], broker: Broker) -> str:
    trials = {column: Trial(drivers[column[0]], column[1], broker) for column in report.columns}
    root = next(iter(trials.values())).topic("matrix")
    peers: Dict[Column, Peer] = {}
    try:
        for column, trial in trials.items():
            peers[column] = trial.connect("matrix", subscribe=[(f"{root}/#", 2)])
        return markdown(_cells(report, peers, root))
    except (Failed, Refused) as failed:
        report.failures.append(f"the matrix cannot be made: {failed}")
        return ""
    finally:
        for trial in trials.values():
            trial.close()


def _cells(report: Any, peers: Dict[Column, Peer], root: str) -> List[List[str]]:
    rows = [["from \\ to"] + [_label(column) for column in peers]]
    for number, (sender, peer) in enumerate(peers.items()):
        topic = f"{root}/{number}"
        row = [_label(sender)]
        try:
            for payload, qos in SENT:
                peer.publish(topic, payload, qos=qos)
        except Failed as failed:
            report.failures.append(f"matrix, {_label(sender)} cannot publish: {failed}")
        for receiver, other in peers.items():
            failure = _receives(other, topic)
            row.append("FAIL" if failure else "ok")
            if failure:
                report.failures.append(f"matrix, {_label(sender)} to {_label(receiver)}: {failure}")
        rows.append(row)
    return rows


def _receives(peer: Peer, topic: str) -> str:
    try:
        got: List[Message] = peer.messages(len(SENT))
    except Failed as failed:
        return str(failed)
    # Clients may report messages of different QoS in another order.
    found = sorted((message.qos, message.payload) for message in got if message.topic == topic)
    expected = sorted((qos, payload) for payload, qos in SENT)
    return "" if found == expected else f"got {', '.join(str(message) for message in got)}"


def _label(column: Column) -> str:
    return f"{column[0]} {VERSION_NAMES[column[1]]}"
