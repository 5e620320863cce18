// What is looked on at live says why it has ended, or why it did not begin, and goes on saying it.
import { expect, logIn, open, test } from "../support/test";

test.use({ nodeOf: "watching" });

test("the tail of a rule that is deleted says so, until it is watched again", async ({ console: page, node }) => {
  await node.call("POST", "/api/v1/rules", { id: "ending", sql: 'SELECT topic FROM "a"', actions: [] });
  await open(page, "rules/ending");
  const tail = page.getByRole("region", { name: "Live", exact: true });
  await tail.getByRole("button", { name: "Watch", exact: true }).click();
  await expect(tail.getByText("Watching: ten samples a second at most.", { exact: true })).toBeVisible();
  await node.call("DELETE", "/api/v1/rules/ending");
  await expect(tail.getByText("It has ended: the rule was deleted.", { exact: true })).toBeVisible();
  await expect(tail.getByRole("button", { name: "Watch", exact: true })).toBeVisible();
  // There is nothing to be told of what one ends oneself.
  await node.call("POST", "/api/v1/rules", { id: "ending", sql: 'SELECT topic FROM "a"', actions: [] });
  await tail.getByRole("button", { name: "Watch", exact: true }).click();
  await tail.getByRole("button", { name: "Stop", exact: true }).click();
  await expect(tail.getByRole("status")).toHaveText("What the rule sees, puts out, and fails on, as it happens.");
});

test("a trace or a tail that does not begin says why: too many watch", async ({ page, node }) => {
  await node.call("POST", "/api/v1/rules", { id: "looked-at", sql: 'SELECT topic FROM "a"', actions: [] });
  await node.subscriber("watched", "a");
  await logIn(page, node);
  await open(page, "clients/watched");
  const trace = page.getByRole("region", { name: "Trace", exact: true });
  await trace.getByRole("button", { name: "Trace", exact: true }).click();
  await expect(trace.getByText(/^Watching: a hundred packets/)).toBeVisible();
  await trace.getByRole("button", { name: "Stop tracing", exact: true }).click();
  // More than watch at a time.
  const open40 = (path: string) => page.evaluate(async (path) => {
    const { token } = JSON.parse(sessionStorage.getItem("tidewire-login") ?? "{}") as { token: string };
    await Promise.all(Array.from({ length: 40 }, () => new Promise((resolve) => {
      const socket = new WebSocket(`ws://${location.host}${path}`, ["tidewire", `bearer.${token}`]);
      socket.onopen = socket.onerror = resolve;
    })));
  }, path);
  await open40("/api/v1/trace?client_id=nobody");
  await trace.getByRole("button", { name: "Trace", exact: true }).click();
  await expect(trace.getByText(/^It did not begin: too many watch already, or /)).toBeVisible();
  await expect(trace.getByRole("button", { name: "Trace", exact: true })).toBeVisible();
  await open40("/api/v1/rules/looked-at/tail");
  await open(page, "rules/looked-at");
  const tail = page.getByRole("region", { name: "Live", exact: true });
  await tail.getByRole("button", { name: "Watch", exact: true }).click();
  await expect(tail.getByText("It did not begin: too many watch rules already.", { exact: true })).toBeVisible();
});
