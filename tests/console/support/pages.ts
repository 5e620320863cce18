// All pages with content, for tests that visit all of them.
import type { Node } from "./node";
import { Platform } from "./platform";

export const PAGES = [
  "home", "benchmarks", "clients", "clients/gateway-1", "refused", "bans", "subscriptions", "topics", "retained", "mqtt",
  "devices", ...["telemetry", "attributes", "commands", "alarms", "events", "relations", "connection"].map((tab) => `devices/{boiler}?tab=${tab}`), "dashboards", "dashboards/{plant}", "profiles", "profiles/{furnace}", "chains", "chains/{root}", "usage", "alarms", "tenant-audit",
  "rules", "rules/new", "rules/hot", "actions", "actions/http:alert", "actions/new",
  "sources", "sources/new", "connectors", "connectors/hook", "connectors/new", "users", "authentication", "access", "listeners", "certificates", "configuration", "backup", "console-users", "keys", "audit", "logs", "account", "about", "nowhere",
];

const ids = new Map<string, string>();

/** Replaces `{boiler}` with the id that the server gave. */
export const address = (path: string): string => path.replace(/\{(.+?)\}/g, (whole, name: string) => ids.get(name) ?? whole);

/** Creates clients, messages, rules and other objects, so that no page is empty. */
export async function populate(node: Node): Promise<void> {
  await node.subscriber("gateway-1", "sensors/#", "-q", "1");
  await node.subscriber("worker-1", "$share/crew/jobs/#");
  await node.subscriber("worker-2", "$share/crew/jobs/#");
  for (const [topic, payload] of [["config/kitchen", '{"interval": 30}'], ["config/attic", '{"interval": 60}'], ["status/gateway-1", "online"]] as const) await node.publish(topic, payload, "-r");
  await node.publish("x", "y", "-i", "esp32-kitchen", "-u", "esp32", "-P", "wrong");
  await node.call("POST", "/api/v1/users", { name: "gateway", password: "gateway password" });
  await node.call("POST", "/api/v1/banned", { kind: "network", who: "192.0.2.0/24", reason: "Scans for open brokers" });
  await node.call("POST", "/api/v1/api-keys", { name: "grafana", role: "viewer", description: "Charts on the wall" });
  await node.call("POST", "/api/v1/connectors", { type: "http", name: "hook", config: { url: "http://127.0.0.1:9" }, description: "Where alerts go" });
  await node.call("POST", "/api/v1/actions", { type: "http", name: "alert", connector: "hook", description: "One request for each" });
  await node.call("POST", "/api/v1/rules", { id: "hot", description: "What is too hot", sql: 'SELECT\n  clientid,\n  payload.temp AS temp\nFROM "sensors/#"\nWHERE payload.temp > 32', actions: ["http:alert"] });
  await node.call("PUT", "/api/v1/acl", { rules: [
    { permission: "deny", action: "publish", topics: ["config/#"], anonymous: true },
    { permission: "allow", action: "all", topics: ["#"] },
  ] });
  node.load("sensors/kitchen/temp", 120);
  await populatePlatform(await Platform.open(node, "Main"));
}

async function populatePlatform(platform: Platform): Promise<void> {
  const now = Date.now();
  for (const name of ["boiler", "meter-1", "meter-2"]) {
    const id = await platform.device(name);
    ids.set(name, id);
    const values = Array.from({ length: 3000 }, (_, n) => ({ ts: now - n * 1200, values: { temperature: Number((60 + 12 * Math.sin(n / 150) + Math.sin(n / 7)).toFixed(2)), pressure: Number((50 + 9 * Math.cos(n / 240)).toFixed(2)), state: "heating" } }));
    await platform.call("POST", `/api/plugins/telemetry/DEVICE/${id}/timeseries/ANY`, values);
    await platform.call("POST", `/api/plugins/telemetry/DEVICE/${id}/SERVER_SCOPE`, { room: "cellar", limit: 75 });
  }
  const device = (name: string) => ({ entityType: "DEVICE", id: ids.get(name) });
  await populateRules(platform);
  await populateDashboard(platform, ids.get("boiler") ?? "");
  await platform.call("POST", "/api/relation", { from: device("boiler"), to: device("meter-1"), type: "Contains", typeGroup: "COMMON" });
  await platform.call("POST", "/api/alarm", { originator: device("boiler"), type: "Overheat", severity: "CRITICAL", details: { temperature: 96 } });
  await platform.call("POST", "/api/alarm", { originator: device("meter-1"), type: "Low battery", severity: "WARNING", details: { battery: 9 } });
}

async function populateDashboard(platform: Platform, id: string): Promise<void> {
  const kinds: [string, string, string, string[], [number, number, number, number]][] = [
    ["chart", "system.time_series_chart", "timeseries", ["temperature", "pressure"], [0, 0, 14, 6]], ["gauge", "system.gauge", "latest", ["temperature"], [0, 14, 6, 4]],
    ["value", "system.cards.value_card", "latest", ["pressure"], [0, 20, 4, 2]], ["switch", "system.single_switch", "rpc", [], [2, 20, 4, 2]],
    ["table", "system.cards.attributes_card", "latest", [], [6, 0, 8, 5]], ["alarms", "system.alarm_widgets.alarms_table", "alarm", [], [6, 8, 16, 5]],
    ["meters", "system.cards.entities_table", "latest", ["temperature", "pressure", "state"], [11, 0, 12, 5]], ["log", "system.cards.timeseries_table", "timeseries", ["temperature", "pressure"], [11, 12, 12, 5]],
  ];
  const titles: Record<string, string> = { chart: "Course", gauge: "Temperature", value: "Pressure", switch: "Burner", table: "Boiler", alarms: "Alarms", meters: "All of them", log: "Recent values" };
  const units: Record<string, string> = { temperature: "°C", pressure: "bar" };
  const widgets = Object.fromEntries(kinds.map(([name, typeFullFqn, type, keys, [row, col, sizeX, sizeY]]) => [name, {
    id: name, typeFullFqn, type, row, col, sizeX, sizeY,
    config: { title: titles[name], units: name === "gauge" ? "°C" : name === "value" ? "bar" : "", targetDevice: { entityAliasId: "a" }, datasources: type === "alarm" ? [] : [{ type: "entity", entityAliasId: name === "meters" ? "b" : "a", dataKeys: keys.map((key) => ({ name: key, type: "timeseries", units: units[key] })) }] },
  }]));
  const configuration = { widgets, entityAliases: { a: { id: "a", alias: "Boiler", filter: { type: "singleEntity", singleEntity: { entityType: "DEVICE", id } } }, b: { id: "b", alias: "All", filter: { type: "entityList", resolveMultiple: true, entityType: "DEVICE", entityList: ["boiler", "meter-1", "meter-2"].map((name) => ids.get(name)) } } } };
  const made = (await platform.call("POST", "/api/dashboard", { title: "Plant", configuration })) as { id: { id: string } };
  ids.set("plant", made.id.id);
}

async function populateRules(platform: Platform): Promise<void> {
  const rule = (operation: string, limit: number) => ({ condition: { condition: [{ key: { type: "TIME_SERIES", key: "temperature" }, valueType: "NUMERIC", predicate: { type: "NUMERIC", operation, value: { defaultValue: limit } } }], spec: { type: "SIMPLE" } } });
  const alarms = [{ id: "a", alarmType: "Overheat", createRules: { CRITICAL: rule("GREATER", 90), WARNING: rule("GREATER", 80) }, clearRule: rule("LESS", 75) }];
  const profileData = { configuration: { type: "DEFAULT" }, transportConfiguration: { type: "DEFAULT" }, provisionConfiguration: { type: "DISABLED" }, alarms };
  const made = (await platform.call("POST", "/api/deviceProfile", { name: "furnace", description: "Burners", type: "DEFAULT", transportType: "DEFAULT", profileData })) as { id: { id: string } };
  ids.set("furnace", made.id.id);
  const chains = (await platform.call("GET", "/api/ruleChains?page=0&pageSize=10")) as { data: { id: { id: string } }[] };
  ids.set("root", chains.data[0]?.id.id ?? "");
}
