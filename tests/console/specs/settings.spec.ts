// Settings: MQTT users, access rules with their tester, configuration, own password.
import { freePort, Node } from "../support/node";
import { populate, PAGES } from "../support/pages";
import { drawn } from "../support/reads";
import { expect, open, test, watch } from "../support/test";

test("an MQTT user is added, changed and deleted", async ({ console: page, node }) => {
  await open(page, "users");
  await page.getByRole("button", { name: "New user…", exact: true }).click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("Name", { exact: true }).fill("ada");
  await dialog.getByLabel("Password", { exact: true }).fill("first password");
  await dialog.getByRole("button", { name: "Add", exact: true }).click();
  const table = page.getByRole("region", { name: "Table: Users", exact: true });
  await expect(table.getByRole("cell", { name: "ada", exact: true })).toBeVisible();
  expect(await node.publish("x", "y", "-u", "ada", "-P", "first password")).toBe(0);
  await page.getByRole("button", { name: "Edit ada", exact: true }).click();
  await dialog.getByLabel("New password", { exact: true }).fill("second password");
  await dialog.getByRole("button", { name: "Save", exact: true }).click();
  await expect(dialog).toBeHidden();
  expect(await node.publish("x", "y", "-u", "ada", "-P", "second password")).toBe(0);
  await page.getByRole("button", { name: "Delete ada", exact: true }).click();
  await dialog.getByRole("button", { name: "Delete", exact: true }).click();
  await expect(table.getByRole("cell", { name: "ada", exact: true })).toBeHidden();
});

test("edited access rules can be tested before they apply", async ({ console: page, node }) => {
  await open(page, "access");
  await expect(page.getByText("No access rules. Every connected client may use all topics")).toBeVisible();
  const verdict = page.getByRole("main").getByRole("status").last();
  await expect(verdict).toContainText("Allowed: there are no rules");
  for (const [permission, topics] of [["deny", "demo/secret"], ["allow", "demo/#"]] as const) {
    await page.getByRole("button", { name: "Add rule…", exact: true }).click();
    const dialog = page.getByRole("dialog");
    await dialog.getByRole("combobox", { name: "Decision", exact: true }).selectOption(permission);
    await dialog.getByLabel("Topic filters (one per line)", { exact: true }).fill(topics);
    await dialog.getByRole("button", { name: "Add", exact: true }).click();
  }
  await expect(verdict).toContainText("Allowed: rule 2 matches first");
  await page.getByLabel("Topic", { exact: true }).fill("demo/secret");
  await expect(verdict).toContainText("Denied: rule 1 matches first");
  await page.getByRole("button", { name: "Move rule 1 down", exact: true }).click();
  await expect(verdict).toContainText("Allowed: rule 1 matches first");
  await page.getByRole("button", { name: "Move rule 2 up", exact: true }).click();
  await page.getByRole("button", { name: "Apply", exact: true }).click();
  await expect(page.getByText("Applied, also to connected clients.")).toBeVisible();
  const acl = (await node.call("GET", "/api/v1/acl")) as { rules: unknown[] };
  expect(acl.rules).toHaveLength(2);
  await node.call("PUT", "/api/v1/acl", { rules: [] });
});

test("a rule binds client ids to users", async ({ console: page, node }) => {
  await node.call("POST", "/api/v1/users", { name: "ann", password: "correct horse" });
  await open(page, "access");
  await page.getByRole("button", { name: "Add rule…", exact: true }).click();
  const dialog = page.getByRole("dialog");
  const topics = dialog.getByLabel("Topic filters (one per line)", { exact: true });
  const clients = dialog.getByLabel("Client ids (one per line)", { exact: true });
  // Topics that were entered for another action are not part of the rule.
  await topics.fill("demo/#");
  await dialog.getByRole("combobox", { name: "Action", exact: true }).selectOption("connect");
  await expect(topics).toBeHidden();
  await clients.fill("%u\n%u:*");
  await dialog.getByRole("button", { name: "Add", exact: true }).click();
  const row = page.getByRole("region", { name: "Table: Access rules", exact: true }).getByRole("row").nth(1);
  await expect(row).toContainText("connect");
  await expect(row).toContainText("client %u, %u:*");
  await expect(page.getByText("A client may connect only if one of the rules for connecting allows its client id.")).toBeVisible();
  await page.getByRole("button", { name: "Apply", exact: true }).click();
  await expect(page.getByText("Applied, also to connected clients.")).toBeVisible();
  const acl = (await node.call("GET", "/api/v1/acl")) as { rules: unknown[] };
  expect(acl.rules).toEqual([{ permission: "allow", action: "connect", topics: [], clients: ["%u", "%u:*"] }]);
  const as = (id: string) => node.publish("x", "y", "-i", id, "-u", "ann", "-P", "correct horse");
  expect(await as("ann:1")).toBe(0);
  expect(await as("bob:1")).not.toBe(0);
  // The form changes an existing rule of this kind.
  await page.getByRole("button", { name: "Edit rule 1", exact: true }).click();
  await expect(dialog.getByRole("combobox", { name: "Action", exact: true })).toHaveValue("connect");
  await expect(clients).toHaveValue("%u\n%u:*");
  await clients.fill("%u:*\nbob:*");
  await dialog.getByRole("button", { name: "Save", exact: true }).click();
  await page.getByRole("button", { name: "Apply", exact: true }).click();
  await expect.poll(async () => ((await node.call("GET", "/api/v1/acl")) as { rules: unknown[] }).rules).toEqual([
    { permission: "allow", action: "connect", topics: [], clients: ["%u:*", "bob:*"] },
  ]);
  expect(await as("bob:1")).toBe(0);
  await node.call("PUT", "/api/v1/acl", { rules: [] });
  await node.call("DELETE", "/api/v1/users/ann");
});

test("a rule names attributes, groups and certificates", async ({ console: page, node }) => {
  await open(page, "access");
  await page.getByRole("button", { name: "Add rule…", exact: true }).click();
  const dialog = page.getByRole("dialog");
  const attributes = dialog.getByLabel("Attributes (one per line)", { exact: true });
  await dialog.getByLabel("Topic filters (one per line)", { exact: true }).fill("demo/#");
  await dialog.getByLabel("Groups (one per line)", { exact: true }).fill("operators\ncn=admins,dc=example");
  await dialog.getByLabel("Certificate common names (one per line)", { exact: true }).fill("meter-17");
  await dialog.getByLabel("Certificate subjects (one per line)", { exact: true }).fill("CN=meter-17,O=Example");
  // The form does not accept a line without a value.
  await attributes.fill("role");
  await dialog.getByRole("button", { name: "Add", exact: true }).click();
  await expect(dialog).toBeVisible();
  await attributes.fill("role=admin\nrole=operator\nsite=a=b");
  await dialog.getByRole("button", { name: "Add", exact: true }).click();
  const row = page.getByRole("region", { name: "Table: Access rules", exact: true }).getByRole("row").nth(1);
  await expect(row).toContainText("role = admin, operator; site = a=b; group operators, cn=admins,dc=example; certificate meter-17; certificate CN=meter-17,O=Example");
  // The form keeps the conditions of a rule.
  await page.getByRole("button", { name: "Edit rule 1", exact: true }).click();
  await expect(attributes).toHaveValue("role=admin\nrole=operator\nsite=a=b");
  await dialog.getByRole("button", { name: "Save", exact: true }).click();
  await page.getByRole("button", { name: "Apply", exact: true }).click();
  await expect(page.getByText("Applied, also to connected clients.")).toBeVisible();
  const acl = (await node.call("GET", "/api/v1/acl")) as { rules: unknown[] };
  expect(acl.rules).toEqual([
    {
      permission: "allow",
      action: "all",
      topics: ["demo/#"],
      attributes: { role: ["admin", "operator"], site: ["a=b"] },
      groups: ["operators", "cn=admins,dc=example"],
      certificate_names: ["meter-17"],
      certificate_subjects: ["CN=meter-17,O=Example"],
    },
  ]);
  await node.call("PUT", "/api/v1/acl", { rules: [] });
});

test("the configuration shows values with their origin", async ({ console: page, node }) => {
  await open(page, "configuration");
  const table = page.getByRole("region", { name: "Table: Configuration", exact: true });
  await page.getByLabel("Changed values only", { exact: true }).check();
  await expect(table.getByRole("row", { name: /node\.data_dir/ })).toContainText(node.directory);
  await expect(table.getByRole("row", { name: /node\.data_dir/ })).toContainText("--set");
  await expect(table.getByRole("row", { name: /mqtt\.max_qos/ })).toBeHidden();
  await page.getByLabel("Changed values only", { exact: true }).uncheck();
  await page.getByLabel("Search", { exact: true }).fill("max_qos");
  await expect(table.getByRole("row", { name: /mqtt\.max_qos/ })).toContainText("default");
});

test("listeners show their state and options", async ({ console: page, node }) => {
  await node.subscriber("at-the-door", "x");
  await open(page, "listeners");
  const tcp = page.getByRole("region", { name: "tcp.default", exact: true });
  await expect(tcp).toContainText(`127.0.0.1:${node.mqttPort}`);
  await expect(tcp).toContainText(/Connections\s*[1-9]\d*/);
  await tcp.getByText(/^Options: 1 of \d+ changed/).click();
  const bind = tcp.getByRole("row", { name: /^listeners\.tcp\.default\.bind / });
  await expect(bind).toContainText("after a restart");
  await expect(bind).toContainText("pinned");
  const backlog = tcp.getByRole("row", { name: /^listeners\.tcp\.default\.backlog / });
  await backlog.getByRole("button", { name: "Change listeners.tcp.default.backlog", exact: true }).click();
  const dialog = page.getByRole("dialog", { name: "listeners.tcp.default.backlog", exact: true });
  await dialog.getByLabel("Value", { exact: true }).fill("512");
  await expect(dialog.getByRole("listitem")).toContainText("after a restart");
  await dialog.getByRole("button", { name: "Apply", exact: true }).click();
  await expect(backlog).toContainText("until then 1024");
  await node.call("PUT", "/api/v1/configuration", { changes: { "listeners.tcp.default.backlog": null } });
  await expect(page.getByRole("region", { name: "api", exact: true })).toContainText("this page, the API, and MQTT over WebSocket");
});

test("a listener is checked, added and removed", async ({ console: page, node }) => {
  await open(page, "listeners");
  const add = page.getByRole("button", { name: "Add listener…", exact: true });
  await add.click();
  const dialog = page.getByRole("dialog", { name: "Add listener", exact: true });
  const [name, bind, apply] = [dialog.getByLabel("Name", { exact: true }), dialog.getByLabel("Address", { exact: true }), dialog.getByRole("button", { name: "Add", exact: true })];
  await expect(apply).toBeDisabled();
  await name.fill("default");
  await expect(dialog.getByRole("alert")).toHaveText("A tcp listener with this name exists already.");
  await name.fill("lan.1");
  await bind.fill("192.0.2.1:5000");
  await expect(dialog.getByRole("alert")).toContainText("cannot listen on");
  await expect(apply).toBeDisabled();
  const port = await freePort();
  await bind.fill(`127.0.0.1:${port}`);
  await expect(dialog.getByRole("listitem")).toHaveText(new RegExp(`listeners\\.tcp\\."lan\\.1"\\.bind: not set → "127\\.0\\.0\\.1:${port}"\\s+after a restart`));
  await apply.click();
  await expect(dialog).toBeHidden();
  const lan = page.getByRole("region", { name: 'tcp."lan.1"', exact: true });
  await expect(lan).toContainText("opens at the next restart");
  await lan.getByText(/^Options: 1 of \d+ changed/).click();
  await lan.getByRole("button", { name: 'Remove tcp."lan.1"', exact: true }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Remove", exact: true }).click();
  await expect(lan).toBeHidden();
  await expect(page.getByRole("region", { name: "tcp.default", exact: true }).getByRole("button", { name: /^Remove / })).toHaveCount(0);
  const runtime = (await node.call("GET", "/api/v1/configuration")) as { key: string }[];
  expect(runtime.some(({ key }) => key.includes("lan"))).toBe(false);
});

test("an option is changed and reset at runtime", async ({ console: page, node }) => {
  await open(page, "configuration");
  const row = page.getByRole("region", { name: "Table: Configuration", exact: true }).getByRole("row", { name: /mqtt\.max_inflight/ });
  await row.getByRole("button", { name: "Change mqtt.max_inflight", exact: true }).click();
  const dialog = page.getByRole("dialog", { name: "mqtt.max_inflight", exact: true });
  const [value, apply] = [dialog.getByLabel("Value", { exact: true }), dialog.getByRole("button", { name: "Apply", exact: true })];
  await expect(value).toHaveValue("128");
  await expect(dialog.getByText("No change: this is the current value.", { exact: true })).toBeVisible();
  await expect(apply).toBeDisabled();
  await value.fill("0");
  await expect(dialog.getByRole("alert")).toContainText("from 1 to 65535");
  await expect(apply).toBeDisabled();
  await value.fill("7");
  await expect(dialog.getByRole("listitem")).toContainText("mqtt.max_inflight: 128 → 7");
  await apply.click();
  await expect(dialog).toBeHidden();
  await expect(row.getByRole("cell").nth(1)).toHaveText("7");
  await expect(row).toContainText("runtime.toml");
  await row.getByRole("button", { name: "Change mqtt.max_inflight", exact: true }).click();
  await dialog.getByLabel("Reset to the value of the configuration file or the default", { exact: true }).check();
  await expect(dialog.getByRole("listitem")).toContainText("mqtt.max_inflight: 7 → 128");
  await apply.click();
  await expect(row).toContainText("default");
  const log = (await node.call("GET", "/api/v1/audit?operation=change_configuration")) as { items: { body: { changes: Record<string, unknown> } }[] };
  const here = log.items.map((one) => one.body).filter((body) => "mqtt.max_inflight" in body.changes);
  expect(here).toEqual([{ changes: { "mqtt.max_inflight": null } }, { changes: { "mqtt.max_inflight": "7" } }]);
});

test("an unlimited or disabled option accepts any valid value", async ({ console: page, node }) => {
  await open(page, "configuration");
  const all = (await node.call("GET", "/api/v1/configuration")) as { key: string; type: string; value: string; choices: string[]; fixed_reason: string | null }[];
  const either = all.filter((one) => one.fixed_reason === null && /^(duration|integer|size) or "/.test(one.type));
  expect(either.length).toBeGreaterThan(5);
  for (const one of either) expect(one.choices, one.key).toEqual([]);
  const one = either[0]!;
  await page.getByRole("button", { name: `Change ${one.key}`, exact: true }).click();
  const dialog = page.getByRole("dialog", { name: one.key, exact: true });
  await expect(dialog.getByRole("textbox", { name: "Value", exact: true })).toHaveValue(one.value.replaceAll('"', ""));
  await expect(dialog.getByText(one.type)).toBeVisible();
});

test("fixed options cannot be changed and show the reason", async ({ console: page }) => {
  await open(page, "configuration");
  const table = page.getByRole("region", { name: "Table: Configuration", exact: true });
  for (const [key, because] of [[/^sys\.interval/, "after a restart"], [/^access\.password_file/, "it names a file of the server"], [/^access\.rules/, "it has an endpoint of its own"]] as const) {
    const row = table.getByRole("row", { name: key });
    await expect(row).toContainText(because);
    await expect(row.getByRole("button")).toHaveCount(0);
  }
  await expect(table.getByRole("row", { name: /^node\.data_dir/ }).getByText("pinned", { exact: true })).toHaveAttribute("title", /pinned by --set/);
});

test("a user changes their password", async ({ page }) => {
  const node = await Node.start();
  await page.goto(node.url);
  await page.getByLabel("Password", { exact: true }).fill(node.firstPassword);
  await page.getByRole("button", { name: "Log in", exact: true }).click();
  await page.getByRole("link", { name: "Change it now", exact: true }).click();
  await page.getByLabel("Current password", { exact: true }).fill(node.firstPassword);
  await page.getByLabel("New password", { exact: true }).fill("a password of mine");
  await page.getByLabel("Repeat new password", { exact: true }).fill("a password of mine");
  await page.getByRole("button", { name: "Change password", exact: true }).click();
  await expect(page.getByText("Password changed.")).toBeVisible();
  await page.getByLabel("Password", { exact: true }).fill("a password of mine");
  await page.getByRole("button", { name: "Log in", exact: true }).click();
  await expect(page.getByRole("heading", { name: "My account", exact: true })).toBeVisible();
  await expect(page.getByText("You are using the generated password")).toBeHidden();
  await node.stop();
});

test("a viewer sees all pages without enabled changes", async ({ page }) => {
  const node = await Node.start("platform.enabled=true");
  await populate(node);
  await node.addViewer("eve", "only looking");
  const pageErrors = watch(page, node.url);
  await page.goto(node.url);
  await page.getByLabel("User", { exact: true }).fill("eve");
  await page.getByLabel("Password", { exact: true }).fill("only looking");
  await page.getByRole("button", { name: "Log in", exact: true }).click();
  await expect(page.getByText("eve (viewer)")).toBeVisible();
  for (const path of PAGES.filter((one) => !one.endsWith("/new") && !one.includes("gateway"))) {
    await open(page, path);
    await drawn(page);
    await expect(page.getByRole("main").getByRole("button", { name: /^(Add|Save|Delete|Disable|Purge|New|Publish…|Apply)/ }).and(page.locator(":enabled")), path).toHaveCount(0);
    await expect(page.getByRole("alert").filter({ hasText: "role" })).toHaveCount(0);
  }
  expect(pageErrors).toEqual([]);
  await node.stop();
});

test("a role in a namespace shows its clients and pages only", async ({ page }) => {
  const node = await Node.start("listeners.tcp.default.mountpoint=${clientid}/");
  await node.addUser("eve", "only looking around", "ns:acme::viewer");
  for (const client of ["acme", "blue"]) await node.subscriber(client, "state/#");
  const pageErrors = watch(page, node.url);
  await page.goto(node.url);
  await page.getByLabel("User", { exact: true }).fill("eve");
  await page.getByLabel("Password", { exact: true }).fill("only looking around");
  await page.getByRole("button", { name: "Log in", exact: true }).click();
  await expect(page.getByText("eve (ns:acme::viewer)")).toBeVisible();
  const pages = page.getByRole("navigation", { name: "Pages", exact: true });
  await expect(pages.getByRole("link")).toHaveText(["Clients", "Subscriptions", "Retained messages", "My account"]);
  const main = page.getByRole("main");
  await expect(main.getByRole("link", { name: "acme", exact: true })).toBeVisible();
  await expect(main.getByRole("link", { name: "blue", exact: true })).toHaveCount(0);
  await open(page, "clients/acme");
  await expect(main.getByText("acme/state/#").first()).toBeVisible();
  await expect(main.getByRole("button", { name: "Delete session", exact: true })).toHaveCount(0);
  await open(page, "rules");
  await expect(main.getByText("This page needs a role for the whole server.")).toBeVisible();
  expect(pageErrors).toEqual([]);
  await node.stop();
});

test("an operator sees the buttons of its role", async ({ page }) => {
  const node = await Node.start("platform.enabled=true");
  await populate(node);
  await node.addUser("otto", "runs the node", "operator");
  const pageErrors = watch(page, node.url);
  await page.goto(node.url);
  await page.getByLabel("User", { exact: true }).fill("otto");
  await page.getByLabel("Password", { exact: true }).fill("runs the node");
  await page.getByRole("button", { name: "Log in", exact: true }).click();
  await expect(page.getByText("otto (operator)")).toBeVisible();
  const pages = page.getByRole("navigation", { name: "Pages", exact: true });
  await expect(pages.getByRole("link", { name: "MQTT users", exact: true })).toBeVisible();
  for (const hidden of ["Benchmarks", "Backup", "Console users", "API keys", "Audit log"]) await expect(pages.getByRole("link", { name: hidden, exact: true })).toHaveCount(0);
  await open(page, "retained");
  await expect(page.getByRole("main").getByRole("button", { name: "Publish…", exact: true })).toBeVisible();
  await open(page, "clients/gateway-1");
  await expect(page.getByRole("main").getByRole("button", { name: "Delete session", exact: true })).toBeVisible();
  await expect(page.getByRole("main").getByRole("button", { name: "Ban…", exact: true })).toHaveCount(0);
  await open(page, "users");
  await drawn(page);
  await expect(page.getByRole("main").getByRole("button", { name: /^(New|Delete|Remove)/ })).toHaveCount(0);
  await open(page, "account");
  await expect(page.getByText(/operator: also disconnects clients/)).toBeVisible();
  await expect(page.getByRole("region", { name: "Table: Your logins", exact: true }).getByRole("row", { name: /this login/ })).toBeVisible();
  expect(pageErrors).toEqual([]);
  await node.stop();
});

test("the doctor shows findings with links", async ({ console: page }) => {
  await open(page, "about");
  const doctor = page.getByRole("region", { name: "Health check", exact: true });
  await expect(doctor.getByRole("row", { name: /Durability/ })).toContainText("fsync");
  await expect(doctor.getByRole("row", { name: /Clock/ })).toContainText("ok");
  await expect(doctor.getByRole("row", { name: /Open files/ })).toBeVisible();
  await doctor.getByRole("link", { name: "Open Password", exact: true }).click();
  await expect(page.getByRole("heading", { name: "My account", exact: true })).toBeVisible();
});
