// A customer user sees the entities of the customer, and why other actions are disabled.
import { expect, open, test } from "../support/test";
import { Platform } from "../support/platform";

test.use({ hasPlatform: true });

interface Made { id: { entityType: string; id: string } }

test("a customer user can see but not change the tenant", async ({ page, node }) => {
  const platform = await Platform.open(node, "Main");
  const customer = (await platform.call("POST", "/api/customer", { title: "Acme" })) as Made;
  await platform.device("not-theirs");
  const device = { device: { name: "theirs", customerId: customer.id }, credentials: { credentialsType: "ACCESS_TOKEN", credentialsId: "theirs" } };
  const { id } = (await platform.call("POST", "/api/device-with-credentials", device)) as Made;
  expect(await node.publish("v1/devices/me/telemetry", '{"heat": 21}', "-u", "theirs", "-q", "1")).toBe(0);
  for (const title of ["Shown", "Hidden"]) {
    const made = (await platform.call("POST", "/api/dashboard", { title })) as Made;
    if (title === "Shown") await platform.call("POST", `/api/customer/${customer.id.id}/dashboard/${made.id.id}`);
  }
  const user = (await platform.call("POST", "/api/user", { email: "carl@example.com", authority: "CUSTOMER_USER", customerId: customer.id })) as Made;
  const link = await platform.text(`/api/user/${user.id.id}/activationLink`);
  await platform.call("POST", "/api/noauth/activate", { activateToken: new URL(link).searchParams.get("activateToken"), password: "a password" });
  await node.addViewer("vera", "vera's password");

  await page.goto(node.url);
  await page.getByLabel("User", { exact: true }).fill("vera");
  await page.getByLabel("Password", { exact: true }).fill("vera's password");
  await page.getByRole("button", { name: "Log in", exact: true }).click();
  await expect(page.getByRole("heading", { name: "Home", exact: true })).toBeVisible();
  await open(page, "devices");
  await page.getByLabel("User or e-mail", { exact: true }).fill("carl@example.com");
  await page.getByLabel("Password", { exact: true }).fill("a password");
  await page.getByRole("button", { name: "Log in", exact: true }).click();
  await expect(page.getByRole("region", { name: "Table: Devices", exact: true }).getByRole("row")).toHaveText([/^Name/, /^theirs/]);
  for (const name of ["New device…", "Import CSV…"]) {
    await expect(page.getByRole("button", { name, exact: true })).toBeDisabled();
    await expect(page.getByRole("button", { name, exact: true })).toHaveAttribute("title", "Requires a tenant administrator");
  }
  await open(page, `devices/${id.id}`);
  await expect(page.getByRole("row", { name: /heat 21/ })).toBeVisible();
  await expect(page.getByRole("button", { name: "Delete…", exact: true })).toBeDisabled();
  await open(page, "dashboards");
  await expect(page.getByRole("region", { name: "Table: Dashboards", exact: true }).getByRole("row")).toHaveText([/^Title/, /^Shown/]);
  await page.getByRole("link", { name: "Shown", exact: true }).click();
  await expect(page.getByRole("button", { name: "Edit", exact: true })).toBeDisabled();
  // The user may acknowledge alarms of the customer's devices, also several at once.
  for (const type of ["Hot", "Cold"]) await platform.call("POST", "/api/alarm", { originator: { entityType: "DEVICE", id: id.id }, type, severity: "MAJOR", details: {} });
  await open(page, "alarms");
  await expect(page.getByRole("checkbox", { name: "Select Cold of theirs", exact: true })).toBeVisible();
  await page.getByRole("checkbox", { name: "Select all rows on this page", exact: true }).check();
  await page.getByRole("button", { name: "Acknowledge 2", exact: true }).click();
  await expect(page.getByText("2 alarms acknowledged.", { exact: true })).toBeVisible();
  for (const path of ["profiles", "chains", "usage", "tenant-audit"]) {
    await open(page, path);
    await expect(page.getByText("This page requires a tenant administrator.")).toBeVisible();
  }
});
