// Every page with something on it, for tests that look at all.
import type { Node } from "./node";

export const PAGES = [
  "home", "clients", "clients/gateway-1", "refused", "subscriptions", "topics", "retained", "mqtt", "rules", "rules/new", "rules/hot", "actions", "actions/http:alert", "actions/new",
  "sources", "sources/new", "connectors", "connectors/hook", "connectors/new", "users", "access", "configuration", "account", "about", "nowhere",
];

/** Clients, messages, rules and the rest, so that no page is empty. */
export async function furnish(node: Node): Promise<void> {
  await node.subscriber("gateway-1", "sensors/#", "-q", "1");
  await node.subscriber("worker-1", "$share/crew/jobs/#");
  await node.subscriber("worker-2", "$share/crew/jobs/#");
  for (const [topic, payload] of [["config/kitchen", '{"interval": 30}'], ["config/attic", '{"interval": 60}'], ["status/gateway-1", "online"]] as const) await node.publish(topic, payload, "-r");
  await node.publish("x", "y", "-i", "esp32-kitchen", "-u", "esp32", "-P", "wrong");
  await node.call("POST", "/api/v1/users", { name: "gateway", password: "gateway password" });
  await node.call("POST", "/api/v1/connectors", { type: "http", name: "hook", config: { url: "http://127.0.0.1:9" }, description: "Where alerts go" });
  await node.call("POST", "/api/v1/actions", { type: "http", name: "alert", connector: "hook", description: "One request for each" });
  await node.call("POST", "/api/v1/rules", { id: "hot", description: "What is too hot", sql: 'SELECT\n  clientid,\n  payload.temp AS temp\nFROM "sensors/#"\nWHERE payload.temp > 32', actions: ["http:alert"] });
  await node.call("PUT", "/api/v1/acl", { rules: [
    { permission: "deny", action: "publish", topics: ["config/#"], anonymous: true },
    { permission: "allow", action: "all", topics: ["#"] },
  ] });
  node.load("sensors/kitchen/temp", 120);
}
