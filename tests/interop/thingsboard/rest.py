"""Runs ThingsBoard's unmodified REST client of PyPI (class for the community edition) against a server with the
demonstration's users. Checks common calls and the parts of their answers that users rely on.

usage: rest.py BASE_URL
"""

import json
import sys
import time

from tb_rest_client.models.models_ce import (
    Alarm,
    Asset,
    AssetProfile,
    Customer,
    Dashboard,
    Device,
    DeviceProfile,
    DeviceProfileData,
    EntityRelation,
)
from tb_rest_client.rest import ApiException
from tb_rest_client.rest_client_ce import RestClientCE

PATIENCE = 20
T = 1700000000000


def check(what, value, expected):
    if value != expected:
        raise SystemExit(f"{what}: {value!r}, expected {expected!r}")
    print("ok", what)


def wait_for(what, ask, is_so):
    """Waits for saved telemetry, which becomes readable after a short delay."""
    until = time.monotonic() + PATIENCE
    while True:
        found = ask()
        if is_so(found):
            print("ok", what)
            return found
        if time.monotonic() > until:
            raise SystemExit(f"{what}: {found!r}")
        time.sleep(0.02)


def plain(value):
    """Converts models and dictionaries to plain JSON values."""
    return value.to_dict() if hasattr(value, "to_dict") else value


def fails(what, status, call):
    try:
        call()
    except ApiException as error:
        return check(what, error.status, status)
    raise SystemExit(f"{what}: it succeeds")


def login(url):
    client = RestClientCE(base_url=url)
    client.login("tenant@thingsboard.org", "tenant")
    check("login", client.get_user().email, "tenant@thingsboard.org")
    client.refresh()
    check("refreshed login", client.get_user().authority, "TENANT_ADMIN")
    return client


def people(client):
    customer = client.save_customer(Customer(title="Mill", city="Dorf"))
    check("customer", client.get_customer_by_id(customer.id).title, "Mill")
    return customer


def devices(client, customer):
    profile = DeviceProfile(
        name="Pump",
        type="DEFAULT",
        transport_type="DEFAULT",
        profile_data=DeviceProfileData(
            configuration={"type": "DEFAULT"}, transport_configuration={"type": "DEFAULT"}
        ),
    )
    profile = client.save_device_profile(profile)
    check("device profile", client.get_device_profile_by_id(profile.id).name, "Pump")
    check("device profiles", client.get_device_profile_infos(page_size=10, page=0).total_elements, 2)
    device = client.save_device(Device(name="P1", label="first", device_profile_id=profile.id), access_token="P1-TOKEN")
    check("device", (device.name, device.type), ("P1", "Pump"))
    read = client.get_device_by_id(device.id)
    check("device by id", (read.label, read.device_profile_id.id), ("first", profile.id.id))
    credentials = client.get_device_credentials_by_device_id(device.id)
    check("credentials", (credentials.credentials_type, credentials.credentials_id), ("ACCESS_TOKEN", "P1-TOKEN"))
    check("device by name", client.get_tenant_device("P1").id.id, device.id.id)
    check("device list", client.get_tenant_device_infos(page_size=10, page=0).data[0].name, "P1")
    fails("a device of this name is there", 400, lambda: client.save_device(Device(name="P1", device_profile_id=profile.id)))
    fails("no such device", 404, lambda: client.get_tenant_device("nobody"))
    assigned = client.assign_device_to_customer(customer.id, device.id)
    check("assigned device", assigned.customer_id.id, customer.id.id)
    check("devices of the customer", client.get_customer_devices(customer.id, page_size=10, page=0).total_elements, 1)
    return device


def assets(client, device):
    profile = client.save_asset_profile(AssetProfile(name="House"))
    asset = client.save_asset(Asset(name="A1", asset_profile_id=profile.id))
    check("asset", client.get_asset_by_id(asset.id).type, "House")
    relation = EntityRelation(_from=asset.id, to=device.id, type="Contains", type_group="COMMON")
    client.save_relation(relation)
    found = client.find_by_from(asset.id, "Contains")
    check("relation", [one.to.id for one in found], [device.id.id])
    check("relation by its end", client.find_info_by_to(device.id, "DEVICE")[0].from_name, "A1")
    return asset


def telemetry(client, device):
    points = [{"ts": T + n * 1000, "values": {"level": n, "on": n % 2 == 0}} for n in range(10)]
    client.save_entity_telemetry(device.id, "ANY", points)
    latest = wait_for(
        "telemetry",
        lambda: client.get_latest_timeseries(device.id, keys="level,on"),
        lambda found: plain(plain(found)["level"][0])["value"] == "9",
    )
    check("latest flag", plain(plain(latest)["on"][0])["value"], "false")
    history = client.get_timeseries(device.id, start_ts=T, end_ts=T + 10_000, keys="level", limit=100, order_by="ASC")
    check("history", [int(plain(point)["value"]) for point in plain(history)["level"]], list(range(10)))
    sums = client.get_timeseries(
        device.id, start_ts=T, end_ts=T + 10_000, keys="level", interval=5000, agg="SUM", use_strict_data_types=True
    )
    check("sums", sorted(plain(point)["value"] for point in plain(sums)["level"]), [10, 35])
    check("keys", sorted(client.get_timeseries_keys_v1(device.id)), ["level", "on"])
    client.delete_entity_timeseries(device.id, keys="on", delete_all_data_for_keys=True)
    check("keys after a deletion", client.get_timeseries_keys_v1(device.id), ["level"])


def attributes(client, device):
    client.save_device_attributes(device.id, "SERVER_SCOPE", {"limit": 5, "place": "roof"})
    client.save_entity_attributes_v2(device.id, "SHARED_SCOPE", {"interval": 60})
    found = client.get_attributes_by_scope(device.id, "SERVER_SCOPE", keys="limit,place")
    check("attributes", {plain(one)["key"]: plain(one)["value"] for one in found}, {"limit": 5, "place": "roof"})
    check("attributes of all scopes", len([one for one in client.get_attributes(device.id) if plain(one)["key"] == "interval"]), 1)
    client.delete_entity_attributes(device.id, "SERVER_SCOPE", keys="place")
    check("attribute keys", "place" in client.get_attribute_keys(device.id), False)


def alarms(client, device):
    alarm = client.save_alarm(
        Alarm(name="Dry", type="Dry", severity="CRITICAL", status="ACTIVE_UNACK", originator=device.id, acknowledged=False, cleared=False)
    )
    check("alarm", client.get_alarm_by_id(alarm.id).status, "ACTIVE_UNACK")
    check("acknowledged alarm", client.ack_alarm(alarm.id).status, "ACTIVE_ACK")
    check("cleared alarm", client.clear_alarm(alarm.id).status, "CLEARED_ACK")
    check("alarm with names", client.get_alarm_info_by_id(alarm.id).originator_name, "P1")
    check("alarms of the device", client.get_alarms(device.id, page_size=10, page=0).total_elements, 1)
    check("all alarms", client.get_all_alarms(page_size=10, page=0).data[0].type, "Dry")


def dashboards(client):
    dashboard = client.save_dashboard(Dashboard(title="Pumps", configuration={"widgets": {"w": {"x": 1}}}))
    dashboard = plain(dashboard)
    check("dashboard", dashboard["title"], "Pumps")
    check("dashboards", client.get_tenant_dashboards(page_size=10, page=0).data[0].title, "Pumps")


def queries(client):
    query = {
        "entityFilter": {"type": "deviceType", "deviceTypes": ["Pump"], "deviceNameFilter": ""},
        "entityFields": [{"type": "ENTITY_FIELD", "key": "name"}],
        "latestValues": [{"type": "TIME_SERIES", "key": "level"}],
        "keyFilters": [
            {
                "key": {"type": "TIME_SERIES", "key": "level"},
                "valueType": "NUMERIC",
                "predicate": {"type": "NUMERIC", "operation": "GREATER", "value": {"defaultValue": 5}},
            }
        ],
        "pageLink": {"pageSize": 10, "page": 0, "sortOrder": {"key": {"type": "ENTITY_FIELD", "key": "name"}, "direction": "ASC"}},
    }
    found = client.find_entity_data_by_query(query)
    check("entity query", found.total_elements, 1)
    latest = found.data[0].latest
    values = [plain(latest[kind][key])["value"] for kind, key in [("ENTITY_FIELD", "name"), ("TIME_SERIES", "level")]]
    check("its values", values, ["P1", "9"])
    check("entity count", client.count_entities_by_query({"entityFilter": query["entityFilter"], "keyFilters": []}), 1)


def calls(client, device):
    kept = client.handle_one_way_device_rpc_request_v1(device.id, {"method": "run", "params": {"s": 5}, "persistent": True})
    kept = json.loads(kept) if isinstance(kept, str) else kept
    rpc = client.get_persisted_rpc(kept["rpcId"])
    check("persistent call", (rpc.status, plain(rpc.request)["body"]["method"]), ("QUEUED", "run"))


def rule_chains(client):
    chains = client.get_rule_chains(page_size=10, page=0)
    check("root rule chain", [chain.name for chain in chains.data if chain.root], ["Root Rule Chain"])
    check("exported rule chains", len(client.export_rule_chains(limit=10).rule_chains), 1)


def main():
    client = login(sys.argv[1])
    customer = people(client)
    device = devices(client, customer)
    asset = assets(client, device)
    telemetry(client, device)
    attributes(client, device)
    alarms(client, device)
    dashboards(client)
    queries(client)
    calls(client, device)
    rule_chains(client)
    client.delete_device(device.id)
    fails("a deleted device", 404, lambda: client.get_device_by_id(device.id))
    client.delete_asset(asset.id)
    client.stop()


if __name__ == "__main__":
    main()
