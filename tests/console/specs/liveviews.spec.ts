// Live views show why they ended or did not start.
import { expect, logIn, open, test } from "../support/test";

test("the live view of a deleted rule shows the reason", async ({ console: page, node }) => {
  await node.call("POST", "/api/v1/rules", { id: "ending", sql: 'SELECT topic FROM "a"', actions: [] });
  await open(page, "rules/ending");
  const tail = page.getByRole("region", { name: "Live", exact: true });
  await tail.getByRole("button", { name: "Watch", exact: true }).click();
  await expect(tail.getByText("Watching, at most 10 samples per second.", { exact: true })).toBeVisible();
  await node.call("DELETE", "/api/v1/rules/ending");
  await expect(tail.getByText("The stream ended: the rule was deleted.", { exact: true })).toBeVisible();
  await expect(tail.getByRole("button", { name: "Watch", exact: true })).toBeVisible();
  // A stop by the user needs no reason.
  await node.call("POST", "/api/v1/rules", { id: "ending", sql: 'SELECT topic FROM "a"', actions: [] });
  await tail.getByRole("button", { name: "Watch", exact: true }).click();
  await tail.getByRole("button", { name: "Stop", exact: true }).click();
  await expect(tail.getByRole("status")).toHaveText("Shows inputs, outputs and errors of the rule as they happen.");
});

test("a live view above the viewer limit shows the reason", async ({ page, node }) => {
  await node.call("POST", "/api/v1/rules", { id: "looked-at", sql: 'SELECT topic FROM "a"', actions: [] });
  await node.subscriber("watched", "a");
  await logIn(page, node);
  await open(page, "clients/watched");
  const trace = page.getByRole("region", { name: "Trace", exact: true });
  await trace.getByRole("button", { name: "Start trace", exact: true }).click();
  await expect(trace.getByText(/^Tracing, at most 100 packets/)).toBeVisible();
  await trace.getByRole("button", { name: "Stop trace", exact: true }).click();
  // Opens more viewers than the limit.
  const open40 = (path: string) => page.evaluate(async (path) => {
    const { token } = JSON.parse(sessionStorage.getItem("tidewire-login") ?? "{}") as { token: string };
    await Promise.all(Array.from({ length: 40 }, () => new Promise((resolve) => {
      const socket = new WebSocket(`ws://${location.host}${path}`, ["tidewire", `bearer.${token}`]);
      socket.onopen = socket.onerror = resolve;
    })));
  }, path);
  await open40("/api/v1/trace?client_id=missing");
  await trace.getByRole("button", { name: "Start trace", exact: true }).click();
  await expect(trace.getByText(/^The stream did not start: the limit of viewers is reached, or /)).toBeVisible();
  await expect(trace.getByRole("button", { name: "Start trace", exact: true })).toBeVisible();
  await open40("/api/v1/rules/looked-at/tail");
  await open(page, "rules/looked-at");
  const tail = page.getByRole("region", { name: "Live", exact: true });
  await tail.getByRole("button", { name: "Watch", exact: true }).click();
  await expect(tail.getByText("The stream did not start: too many WebSockets watch rules.", { exact: true })).toBeVisible();
});
