// Administration of a node: certificates, console users, backups, benchmarks.
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { connect } from "node:tls";
import { freePort, Node } from "../support/node";
import { drawn, isAccessible, textOf } from "../support/reads";
import { seconds } from "../support/slow";
import { expect, logIn, open, test, watch } from "../support/test";

/** Creates a certificate with its own authority, and its key, as files. */
function pair(directory: string, name: string): { certificate: string; key: string } {
  const [certificate, key] = [join(directory, `${name}.pem`), join(directory, `${name}.key`)];
  execFileSync("openssl", ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "20", "-subj", `/CN=${name}.example`, "-addext", `subjectAltName=DNS:${name}.example`, "-keyout", key, "-out", certificate], { stdio: "ignore" });
  return { certificate, key };
}

/** Reads the common name that a listener presents. */
function shown(port: number): Promise<string> {
  return new Promise((resolve, reject) => {
    const socket = connect({ port, host: "127.0.0.1", rejectUnauthorized: false }, () => {
      resolve(String(socket.getPeerCertificate().subject.CN));
      socket.end();
    });
    socket.on("error", reject);
  });
}

test("a certificate is replaced and loaded from disk", async ({ page }) => {
  const directory = mkdtempSync(join(tmpdir(), "tidewire-certificates-"));
  const [used, old, other, port] = [pair(directory, "used"), pair(directory, "old"), pair(directory, "other"), await freePort()];
  const node = await Node.start(`tls.cert_file=${used.certificate}`, `tls.key_file=${used.key}`, `listeners.tls.default.bind=127.0.0.1:${port}`, `listeners.wss.default.bind=127.0.0.1:${await freePort()}`);
  await logIn(page, node);
  await open(page, "certificates");
  const listener = page.getByRole("region", { name: "tls.default", exact: true });
  await expect(listener.getByText("CN=used.example", { exact: true })).toBeVisible();
  await expect(listener.getByText(/^1\d days left$/)).toBeVisible();
  await expect(listener.getByText("itself", { exact: true })).toBeVisible();
  const button = listener.getByRole("button", { name: "Download the authority certificate of tls.default", exact: true });
  const [file] = await Promise.all([page.waitForEvent("download"), button.click()]);
  expect(file.suggestedFilename()).toBe("ca.pem");
  const trusted = (text: string) => text.replace(/\s/g, "");
  expect(trusted(readFileSync(await file.path(), "utf8"))).toBe(trusted(readFileSync(used.certificate, "utf8")));

  await listener.getByRole("button", { name: "Replace the certificate of tls.default", exact: true }).click();
  const dialog = page.getByRole("dialog");
  const [chooser] = await Promise.all([page.waitForEvent("filechooser"), dialog.getByRole("button", { name: "Certificate file…", exact: true }).click()]);
  await chooser.setFiles(other.certificate);
  await expect(dialog.getByLabel("Certificate", { exact: true })).toHaveValue(/BEGIN CERTIFICATE/);
  await dialog.getByLabel("Private key", { exact: true }).fill(readFileSync(old.key, "utf8"));
  await dialog.getByRole("button", { name: "Replace", exact: true }).click();
  await expect(dialog.getByRole("alert")).toContainText("Nothing was changed. key: the key does not match the certificate");
  expect(await shown(port)).toBe("used.example");
  await dialog.getByLabel("Private key", { exact: true }).fill(readFileSync(other.key, "utf8"));
  await dialog.getByRole("button", { name: "Replace", exact: true }).click();
  await expect(dialog).toBeHidden();
  await expect(listener.getByText("CN=other.example", { exact: true })).toBeVisible();
  expect(await shown(port)).toBe("other.example");

  for (const [from, to] of [[old.certificate, used.certificate], [old.key, used.key]] as const) execFileSync("cp", [from, to]);
  await expect(listener.getByText("changed on disk", { exact: true })).toBeVisible();
  await page.getByRole("button", { name: "Load from disk", exact: true }).click();
  await expect(listener.getByText("CN=old.example", { exact: true })).toBeVisible();
  expect(await shown(port)).toBe("old.example");

  // An error when loading appears on this page only. The listeners keep their certificates.
  writeFileSync(used.certificate, "no certificate\n");
  await page.getByRole("button", { name: "Load from disk", exact: true }).click();
  const refused = page.getByRole("alert").filter({ hasText: /^Loading failed\. The listeners keep their current certificates: .*contains no certificate/ });
  await expect(refused).toBeVisible();
  await expect(listener.getByText("files not usable", { exact: true })).toBeVisible();
  expect(await shown(port)).toBe("old.example");
  await open(page, "listeners");
  await expect(page.getByRole("heading", { level: 1, name: "Listeners", exact: true })).toBeVisible();
  await drawn(page);
  await expect(page.getByText(/contains no certificate/)).toBeHidden();
  await node.stop();
  rmSync(directory, { recursive: true });
});

test("a console user is added, changed, reset and removed", async ({ page, browser }) => {
  const node = await Node.start();
  await logIn(page, node);
  await open(page, "console-users");
  const table = page.getByRole("region", { name: "Table: Console users", exact: true });
  await expect(table.getByRole("row", { name: /admin \(you\)/ })).toContainText("administrator");
  const dialog = page.getByRole("dialog");
  const changeRole = async (user: string, role: string) => {
    await page.getByRole("button", { name: `Change the role of ${user}`, exact: true }).click();
    await dialog.getByLabel("Role", { exact: true }).selectOption(role);
    await dialog.getByRole("button", { name: "Change role", exact: true }).click();
  };
  await changeRole("admin", "operator");
  await expect(page.getByText(/this is the last administrator/)).toBeVisible();
  await dialog.getByRole("button", { name: "Cancel", exact: true }).click();
  await page.getByRole("button", { name: "New user…", exact: true }).click();
  await dialog.getByLabel("Name", { exact: true }).fill("ada");
  await dialog.getByRole("button", { name: "Add", exact: true }).click();
  const password = await textOf(dialog.locator("code"));
  expect(password).toMatch(/^(\w{5}-){3}\w{5}$/);
  await dialog.getByRole("button", { name: "Done", exact: true }).click();
  await expect(table.getByRole("row", { name: /ada/ })).toContainText("one-time password");

  const context = await browser.newContext();
  const adaPage = await context.newPage();
  const asked: string[] = [];
  adaPage.on("request", (request) => asked.push(new URL(request.url()).pathname));
  await adaPage.goto(node.url);
  const enter = async (with_: string) => {
    await adaPage.getByLabel("User", { exact: true }).fill("ada");
    await adaPage.getByLabel("Password", { exact: true }).fill(with_);
    await adaPage.getByRole("button", { name: "Log in", exact: true }).click();
  };
  await enter(password);
  await expect(adaPage.getByRole("heading", { name: "Set your own password", exact: true })).toBeVisible();
  await expect(adaPage.getByRole("navigation", { name: "Pages", exact: true })).toBeHidden();
  await adaPage.getByLabel("Current password", { exact: true }).fill(password);
  await adaPage.getByLabel("New password", { exact: true }).fill("one of her own");
  await adaPage.getByLabel("Repeat new password", { exact: true }).fill("one of her own");
  await adaPage.getByRole("button", { name: "Change password", exact: true }).click();
  await expect(adaPage.getByText("Password changed. Log in with the new password.")).toBeVisible();
  // The form offers the name of the user who changed the password.
  await expect(adaPage.getByLabel("User", { exact: true })).toHaveValue("ada");
  await enter("one of her own");
  await expect(adaPage.getByText("ada (viewer)")).toBeVisible();
  // A viewer is not logged in to the platform automatically, because the attempt would count as failed.
  expect(asked.filter((path) => path === "/api/v1/login").length).toBeGreaterThan(1);
  expect(asked).not.toContain("/api/auth/login");

  await expect(table.getByRole("row", { name: /ada/ })).toContainText("set by the user");
  // The open page of the user takes over the new role.
  await changeRole("ada", "operator");
  await expect(table.getByRole("row", { name: /ada/ })).toContainText("operator");
  await expect(adaPage.getByText("ada (operator)")).toBeVisible({ timeout: seconds(20) });
  const logins = page.getByRole("region", { name: "Table: Logins", exact: true });
  await expect(logins.getByRole("row", { name: /ada/ })).toContainText("127.0.0.1");
  await expect(logins.getByRole("row", { name: /this login/ })).toContainText("admin");
  await logins.getByRole("row", { name: /ada/ }).getByRole("button").click();
  await dialog.getByRole("button", { name: "End login", exact: true }).click();
  await expect(logins.getByRole("row", { name: /ada/ })).toBeHidden();
  await expect(adaPage.getByText("Your login has ended. Please log in again.")).toBeVisible({ timeout: seconds(20) });
  await adaPage.getByLabel("Password", { exact: true }).fill("one of her own");
  await adaPage.getByRole("button", { name: "Log in", exact: true }).click();
  await expect(adaPage.getByText("ada (operator)")).toBeVisible();
  await open(page, "audit");
  await expect(page.getByRole("row", { name: /Change console user.*ada/ }).first()).toContainText(/viewer.*operator/);
  await open(page, "console-users");
  await page.getByRole("button", { name: "Reset the password of ada", exact: true }).click();
  await dialog.getByRole("button", { name: "Create password", exact: true }).click();
  await expect(dialog.getByText(/^Password of ada/)).toBeVisible();
  await dialog.getByRole("button", { name: "Done", exact: true }).click();
  await expect(adaPage.getByText("Your login has ended. Please log in again.")).toBeVisible();
  await page.getByRole("button", { name: "Remove ada", exact: true }).click();
  await dialog.getByLabel("Type ada to confirm", { exact: true }).fill("ada");
  await dialog.getByRole("button", { name: "Remove", exact: true }).click();
  await expect(table.getByRole("row", { name: /ada/ })).toBeHidden();
  await page.getByRole("button", { name: "New user…", exact: true }).click();
  await dialog.getByLabel("Name", { exact: true }).fill("lena");
  await dialog.getByLabel("Namespace", { exact: true }).fill("plant/one");
  await dialog.getByRole("button", { name: "Add", exact: true }).click();
  await dialog.getByRole("button", { name: "Done", exact: true }).click();
  await expect(table.getByRole("row", { name: /lena/ })).toContainText("viewer of plant/one");
  await changeRole("lena", "operator");
  await expect(table.getByRole("row", { name: /lena/ })).toContainText("operator of plant/one");
  await context.close();
  await node.stop();
});

test("a backup is made, downloaded and deleted", async ({ console: page, node }) => {
  await node.publish("kept/here", "x", "-r");
  await open(page, "backup");
  await expect(page.getByText("No backups yet.")).toBeVisible();
  await page.getByRole("button", { name: "Start backup", exact: true }).click();
  const table = page.getByRole("region", { name: "Table: Backups", exact: true });
  await expect(table.getByText(/1 retained message/)).toBeVisible();
  const name = await textOf(table.getByRole("row").nth(1).getByRole("cell").first());
  await expect(page.getByText(/^tidewire restore --from /)).toContainText(`${node.directory}/backups`);
  const [file] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: `Download ${name}`, exact: true }).click()]);
  expect(file.suggestedFilename()).toBe(`${name}.tar`);
  const list = execFileSync("tar", ["-tf", await file.path()]).toString();
  expect(list).toContain(`${name}/journal/`);
  await page.getByRole("button", { name: `Delete ${name}`, exact: true }).click();
  await page.getByRole("dialog").getByLabel(`Type ${name} to confirm`, { exact: true }).fill(name);
  await page.getByRole("dialog").getByRole("button", { name: "Delete", exact: true }).click();
  await expect(page.getByText("No backups yet.")).toBeVisible();
});

test("a backup is restored by a restart", async ({ page }) => {
  const node = await Node.start("platform.enabled=true");
  const watched = watch(page, node.url);
  await node.publish("kept/here", "then", "-r");
  await node.call("POST", "/api/v1/users", { name: "ada", password: "lovelace" });
  await logIn(page, node);
  await open(page, "backup");
  await page.getByRole("button", { name: "Start backup", exact: true }).click();
  const table = page.getByRole("region", { name: "Table: Backups", exact: true });
  await expect(table.getByText(/1 retained message/)).toBeVisible();
  const name = await textOf(table.getByRole("row").nth(1).getByRole("cell").first());
  await node.publish("kept/here", "now", "-r");
  await node.publish("kept/there", "now", "-r");
  await node.call("DELETE", "/api/v1/users/ada");

  const restore = async () => {
    await page.getByRole("button", { name: `Restore ${name}`, exact: true }).click();
    const dialog = page.getByRole("dialog");
    await expect(dialog.getByRole("button", { name: "Restore", exact: true })).toBeDisabled();
    await dialog.getByLabel(`Type ${name} to confirm`, { exact: true }).fill(name);
    await dialog.getByRole("button", { name: "Restore", exact: true }).click();
  };
  const panel = page.getByRole("region", { name: "Restore", exact: true });
  await restore();
  await expect(panel.getByRole("status")).toContainText("The next restart of the server restores it");
  await expect(page.getByRole("button", { name: `Restore ${name}`, exact: true })).toBeDisabled();
  await isAccessible(page, "restore");
  await panel.getByRole("button", { name: "Cancel restore", exact: true }).click();
  await expect(panel).toBeHidden();

  await restore();
  await panel.getByRole("button", { name: "Restart and restore", exact: true }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Restart and restore", exact: true }).click();
  // A restart ends all logins.
  await expect(page.getByLabel("Password", { exact: true })).toBeVisible({ timeout: seconds(30) });
  watched.length = 0;
  await page.getByLabel("Password", { exact: true }).fill(node.firstPassword);
  await page.getByRole("button", { name: "Log in", exact: true }).click();
  await open(page, "backup");
  await expect(page.getByText(`${name} was restored`)).toBeVisible();
  const aside = page.getByRole("region", { name: "Table: Replaced data", exact: true });
  await expect(aside.getByText(/^before-restore-/)).toBeVisible();
  await open(page, "retained");
  await expect(page.getByText("kept/here", { exact: true })).toBeVisible();
  await expect(page.getByText("kept/there", { exact: true })).toBeHidden();
  await open(page, "users");
  await expect(page.getByText("ada", { exact: true }).first()).toBeVisible();
  await open(page, "backup");
  await aside.getByRole("button", { name: /^Delete before-restore-/ }).click();
  const typed = page.getByRole("dialog");
  const before = await textOf(aside.getByRole("row").nth(1).getByRole("cell").first());
  await typed.getByLabel(`Type ${before} to confirm`, { exact: true }).fill(before);
  await typed.getByRole("button", { name: "Delete", exact: true }).click();
  await expect(aside).toBeHidden();
  expect(watched).toEqual([]);
  await node.stop();
});

test("benchmarks run, stop and are compared", async ({ console: page }) => {
  test.setTimeout(seconds(150));
  await open(page, "benchmarks");
  await expect(page.getByText("No reports yet.")).toBeVisible();
  const start = async (seconds: string) => {
    await page.getByRole("button", { name: "Run benchmark…", exact: true }).click();
    const dialog = page.getByRole("dialog");
    await dialog.getByRole("combobox", { name: "Scenario", exact: true }).selectOption("p2p");
    await dialog.getByLabel("Clients (approximate)", { exact: true }).fill("20");
    await dialog.getByLabel("Duration (s)", { exact: true }).fill(seconds);
    await expect(dialog.getByRole("button", { name: "Start", exact: true })).toBeDisabled();
    await dialog.getByRole("checkbox").check();
    await dialog.getByRole("button", { name: "Start", exact: true }).click();
    await expect(dialog).toBeHidden();
  };
  await start("60");
  const running = page.getByRole("region", { name: "Benchmark progress", exact: true });
  await expect(running.getByRole("figure").first().getByRole("listitem").filter({ hasText: "delivered" })).toContainText(/[1-9]/);
  await expect(page.getByRole("button", { name: "Run benchmark…", exact: true })).toBeDisabled();
  await running.getByRole("button", { name: "Stop", exact: true }).click();
  const table = page.getByRole("region", { name: "Table: Reports", exact: true });
  await expect(table.getByText("stopped", { exact: true })).toBeVisible({ timeout: seconds(60) });
  await expect(running).toBeHidden();
  await start("2");
  await expect(table.getByRole("row")).toHaveCount(3, { timeout: seconds(60) });
  for (const n of [0, 1]) await table.getByRole("checkbox").nth(n).check();
  const results = page.getByRole("region", { name: "Results", exact: true });
  await expect(results.getByRole("row", { name: /^delivered / }).getByRole("cell")).toHaveCount(2);
  await expect(results.getByRole("row", { name: /^delivered / })).toContainText("×");
  const [file] = await Promise.all([page.waitForEvent("download"), table.getByRole("button", { name: /^Download / }).first().click()]);
  expect(readFileSync(await file.path(), "utf8")).toContain("<html");
  await table.getByRole("button", { name: /^Delete / }).first().click();
  await page.getByRole("dialog").getByRole("button", { name: "Delete", exact: true }).click();
  await expect(table.getByRole("row")).toHaveCount(2);
});
