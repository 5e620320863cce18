// Clients: search, details, subscriptions, disconnecting, and refused connections.
import { until } from "../support/node";
import { expect, open, test } from "../support/test";

test("a client is found and its session is deleted", async ({ console: page, node }) => {
  await node.subscriber("kitchen-1", "clients/#");
  await node.subscriber("attic-1", "clients/attic", "-q", "1");
  await open(page, "clients");
  const table = page.getByRole("region", { name: "Table: Clients", exact: true });
  await expect(table.getByRole("link", { name: "kitchen-1", exact: true })).toBeVisible();
  await page.getByLabel("Client id", { exact: true }).fill("ATTIC");
  await expect(table.getByRole("link", { name: "kitchen-1", exact: true })).toBeHidden();
  await page.getByLabel("Client id", { exact: true }).fill("nobody has this");
  await expect(page.getByText("No client matches the filter.")).toBeVisible();
  await page.getByLabel("Client id", { exact: true }).fill("kitchen");
  await table.getByRole("link", { name: "kitchen-1", exact: true }).click();
  await expect(page.getByRole("heading", { level: 1, name: "kitchen-1", exact: true })).toBeVisible();
  await expect(page.getByText("MQTT 3.1.1").or(page.getByText("MQTT 5.0"))).toBeVisible();

  await page.getByRole("button", { name: "Delete session", exact: true }).click();
  const dialog = page.getByRole("dialog");
  await expect(dialog.getByRole("button", { name: "Delete session", exact: true })).toBeDisabled();
  await dialog.getByLabel("Type kitchen-1 to confirm", { exact: true }).fill("kitchen-1");
  await dialog.getByRole("button", { name: "Delete session", exact: true }).click();
  await expect(page.getByText("Session deleted.")).toBeVisible();
});

test("the will of a client is shown", async ({ console: page, node }) => {
  await node.subscriber("willing", "clients/willing", "--will-topic", "gone/willing", "--will-payload", "it is gone", "--will-qos", "1", "--will-retain", "-V", "mqttv5", "-D", "CONNECT", "user-property", "plant", "<b>north</b>");
  await open(page, "clients/willing");
  await expect(page.getByRole("region", { name: "Connection", exact: true })).toContainText("User property plant: <b>north</b>");
  const will = page.getByRole("region", { name: "Will", exact: true });
  await expect(will).toContainText("gone/willing");
  await expect(will).toContainText("1 retained");
  await expect(will).toContainText("it is gone 10 B");
  await expect(will).toContainText("immediately after the connection ends");
  await node.subscriber("unwilling", "clients/unwilling");
  await open(page, "clients/unwilling");
  await expect(page.getByRole("region", { name: "Will", exact: true })).toContainText("None");
});

test("a subscription is added and removed for a client", async ({ console: page, node }) => {
  await node.subscriber("cellar-1", "clients/cellar");
  await open(page, "clients/cellar-1");
  const form = page.getByRole("form", { name: "Add subscription", exact: true });
  await form.getByLabel("Topic filter", { exact: true }).fill("a/#/b");
  await form.getByRole("button", { name: "Add subscription", exact: true }).click();
  await expect(page.getByRole("status").filter({ hasText: "filter" })).toBeVisible();
  await form.getByLabel("Topic filter", { exact: true }).fill("alarms/#");
  await form.getByRole("button", { name: "Add subscription", exact: true }).click();
  const table = page.getByRole("region", { name: "Table: Subscriptions", exact: true });
  await expect(table.getByRole("cell", { name: "alarms/#", exact: true })).toBeVisible();
  await open(page, "subscriptions");
  await page.getByLabel("Topic filter contains", { exact: true }).fill("alarms");
  await expect(page.getByRole("region", { name: "Table: Subscriptions", exact: true }).getByRole("row", { name: /^alarms\/# cellar-1/ })).toBeVisible();
  await open(page, "clients/cellar-1");
  await table.getByRole("button", { name: "Remove alarms/#", exact: true }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Remove", exact: true }).click();
  await expect(table.getByRole("cell", { name: "alarms/#", exact: true })).toBeHidden();
});

test("filters and sorting of a list are part of its address", async ({ console: page, node }) => {
  await node.subscriber("filtered-1", "clients/#");
  await node.subscriber("filtered-2", "clients/#");
  await open(page, "clients");
  const id = page.getByLabel("Client id", { exact: true });
  const rows = page.getByRole("region", { name: "Table: Clients", exact: true }).locator("tbody a");
  await id.fill("filtered-");
  await expect(rows).toHaveCount(2);
  await page.getByRole("columnheader", { name: "Client id" }).getByRole("button").click();
  await page.getByRole("columnheader", { name: "Client id" }).getByRole("button").click();
  await expect(rows).toHaveText(["filtered-2", "filtered-1"]);
  await expect(page).toHaveURL(/#\/clients\?client=filtered-&sort=client_id&order=desc$/);
  await rows.first().click();
  await expect(page.getByRole("heading", { level: 1, name: "filtered-2", exact: true })).toBeVisible();
  await page.goBack();
  await expect(id).toHaveValue("filtered-");
  await expect(rows).toHaveText(["filtered-2", "filtered-1"]);
  await page.reload();
  await expect(rows).toHaveText(["filtered-2", "filtered-1"]);
  // The navigation link resets the filters.
  await page.getByRole("navigation", { name: "Pages", exact: true }).getByRole("link", { name: "Clients", exact: true }).click();
  await expect(id).toHaveValue("");
  await expect(page.getByRole("columnheader", { name: "Client id" })).toHaveAttribute("aria-sort", "none");
  await page.goBack();
  await expect(rows).toHaveText(["filtered-2", "filtered-1"]);
});

test("dropped messages of a client are shown with reasons", async ({ console: page, node }) => {
  for (const [name, messages] of [["loser-1", 1], ["loser-2", 3]] as const) {
    const away = await node.subscriber(name, `lost/${name}`, "-q", "0", "-c", "-V", "5", "-x", "3600");
    away.kill();
    await until(async () => ((await node.call("GET", `/api/v1/clients/${name}`)) as { connected: boolean }).connected === false);
    for (let n = 0; n < messages; n += 1) await node.publish(`lost/${name}`, "x");
  }
  await open(page, "clients?sort=dropped&order=desc");
  const rows = page.getByRole("region", { name: "Table: Clients", exact: true }).locator("tbody tr");
  await expect(rows.first()).toContainText("loser-2");
  await expect(rows.nth(1)).toContainText("loser-1");
  await expect(rows.first().locator("td.bad")).toHaveText("3");
  await expect(rows.first().locator("td.bad")).toHaveAttribute("title", "Offline QoS 0: 3");
  await rows.first().getByRole("link").click();
  const counters = page.getByRole("region", { name: "Counters", exact: true });
  await expect(counters).toContainText("Offline QoS 0 3 messages lost The client was offline and the message had QoS 0.");
  await counters.getByRole("link", { name: "mqtt.queue_qos0", exact: true }).click();
  await expect(page.getByRole("region", { name: "Table: Configuration", exact: true }).getByRole("row")).toHaveCount(2);
});

test("a long list has pages", async ({ console: page, node }) => {
  await Promise.all(Array.from({ length: 60 }, (_, n) => node.publish("x", "y", "-i", `many-${n}`, "-c", "-V", "5", "-x", "3600")));
  await node.subscriber("lonely", "clients/lonely");
  await open(page, "clients");
  await page.getByLabel("Client id", { exact: true }).fill("lonely");
  await expect(page.getByRole("region", { name: "Table: Clients", exact: true }).getByRole("row")).toHaveCount(2);
  await page.getByLabel("Client id", { exact: true }).fill("many-");
  await expect(page.getByRole("link", { name: "lonely", exact: true })).toBeHidden();
  const pages = page.getByRole("navigation", { name: "Pages of the list", exact: true });
  await expect(pages).toContainText("Page 1, 50 shown");
  await pages.getByRole("button", { name: "Next", exact: true }).click();
  await expect(pages).toContainText("Page 2, 10 shown");
  await pages.getByRole("button", { name: "Previous", exact: true }).click();
  await expect(pages).toContainText("Page 1, 50 shown");
});

test("a list is sorted by mouse and keyboard over all pages", async ({ console: page, node }) => {
  await Promise.all(Array.from({ length: 60 }, (_, n) => node.publish("x", "y", "-i", `sorted-${String(n).padStart(2, "0")}`, "-c", "-V", "5", "-x", "3600")));
  for (let n = 0; n < 3; n += 1) await node.publish("x", "y", "-i", "sorted-31", "-c", "-V", "5", "-x", "3600");
  await open(page, "clients");
  await page.getByLabel("Client id", { exact: true }).fill("sorted-");
  const first = page.getByRole("region", { name: "Table: Clients", exact: true }).locator("tbody a").first();
  const head = page.getByRole("columnheader", { name: "Client id" });
  await expect(head).toHaveAttribute("aria-sort", "none");
  await head.getByRole("button").click();
  await expect(head).toHaveAttribute("aria-sort", "ascending");
  await expect(first).toHaveText("sorted-00");
  const pages = page.getByRole("navigation", { name: "Pages of the list", exact: true });
  await pages.getByRole("button", { name: "Next", exact: true }).click();
  await expect(first).toHaveText("sorted-50");
  await head.getByRole("button").focus();
  await page.keyboard.press("Enter");
  await expect(head).toHaveAttribute("aria-sort", "descending");
  await expect(pages).toContainText("Page 1");
  await expect(first).toHaveText("sorted-59");
  const received = page.getByRole("columnheader", { name: "Received" });
  await received.getByRole("button").press("Space");
  await expect(received).toHaveAttribute("aria-sort", "descending");
  await expect(head).toHaveAttribute("aria-sort", "none");
  await expect(first).toHaveText("sorted-31");
});

test("shared groups show their members", async ({ console: page, node }) => {
  await node.subscriber("worker-1", "$share/crew/jobs/#");
  await node.subscriber("worker-2", "$share/crew/jobs/#");
  await open(page, "subscriptions");
  const groups = page.getByRole("region", { name: "Table: Shared groups", exact: true });
  await expect(groups.getByRole("row", { name: /crew jobs\/# 2 2 0/ })).toBeVisible();
  await groups.getByRole("button", { name: "crew" }).click();
  const members = groups.getByRole("table", { name: "Members of crew", exact: true });
  await expect(members.getByRole("row", { name: /^worker-2 yes 0 0 0 0/ })).toBeVisible();
  await members.getByRole("link", { name: "worker-1", exact: true }).click();
  await expect(page.getByRole("heading", { level: 1, name: "worker-1", exact: true })).toBeVisible();
});

test("a refused client gets a password and connects", async ({ console: page, node }) => {
  const login = ["-i", "esp32", "-u", "esp32", "-P", "not it"];
  expect(await node.publish("x", "y", ...login)).not.toBe(0);
  await open(page, "refused");
  await page.getByRole("button", { name: "Set a password for esp32", exact: true }).first().click();
  const dialog = page.getByRole("dialog");
  await dialog.getByLabel("Password", { exact: true }).fill("now it is");
  await dialog.getByRole("button", { name: "Set password", exact: true }).click();
  await expect(dialog.getByText("The password is not shown again.")).toBeVisible();
  await dialog.getByRole("button", { name: "Done", exact: true }).click();
  expect(await node.publish("x", "y", "-i", "esp32", "-u", "esp32", "-P", "now it is")).toBe(0);
  await open(page, "users");
  await expect(page.getByRole("region", { name: "Table: Users", exact: true }).getByRole("cell", { name: "esp32", exact: true })).toBeVisible();
});
