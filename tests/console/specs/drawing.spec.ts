// Drawing connections in a rule chain, and renaming it while it is edited.
import { boxOf } from "../support/reads";
import { expect, open, test } from "../support/test";
import { Platform } from "../support/platform";

test.use({ hasPlatform: true });

test("a connection is drawn while the chain is renamed", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const { id } = (await platform.call("POST", "/api/ruleChain", { name: "Drawn", type: "CORE" })) as { id: { id: string } };
  const kinds = ["filter.TbJsFilterNode", "telemetry.TbMsgTimeseriesNode", "action.TbLogNode"];
  const configurations = [{ scriptLang: "JS", jsScript: "return true;" }, { defaultTTL: 0 }, { scriptLang: "JS", jsScript: "return msg;" }];
  const nodes = ["Ask", "Keep", "Log"].map((name, n) => ({ type: `org.thingsboard.rule.engine.${kinds[n]}`, name, debugMode: false, configuration: configurations[n], additionalInfo: { layoutX: 60 + 320 * (n > 0 ? 1 : 0), layoutY: n === 2 ? 240 : 80 } }));
  await platform.call("POST", "/api/ruleChain/metadata", { ruleChainId: id, firstNodeIndex: 0, nodes, connections: [], ruleChainConnections: null });
  const stored = async () => ((await platform.call("GET", `/api/ruleChain/${id.id}/metadata`)) as { connections: { fromIndex: number; toIndex: number; type: string }[] | null }).connections ?? [];
  await open(page, `chains/${id.id}`);
  const graph = page.getByRole("region", { name: "Graph", exact: true });
  await expect(graph.getByRole("button", { name: "Node Ask", exact: true })).toBeVisible();
  const draw = async (to: string) => {
    await graph.locator('[data-from="Ask"]').hover();
    await page.mouse.down();
    const box = await boxOf(graph.getByRole("button", { name: `Node ${to}`, exact: true }));
    await page.mouse.move(box.x + box.width / 2, box.y + box.height / 2, { steps: 5 });
    await expect(graph.locator("path.drawn")).toHaveCount(1);
    await page.mouse.up();
    await expect(graph.locator("path.drawn")).toHaveCount(0);
  };
  await draw("Keep");
  const dialog = page.getByRole("dialog", { name: "Connect Ask to Keep", exact: true });
  await dialog.getByRole("button", { name: "False", exact: true }).click();
  await expect(dialog.getByLabel("Label", { exact: true })).toHaveValue("False");
  await dialog.getByRole("button", { name: "Connect", exact: true }).click();
  await expect(graph.locator("text")).toHaveText(["False"]);
  // The dialog is cancelled.
  await draw("Log");
  await page.getByRole("dialog").getByRole("button", { name: "Cancel", exact: true }).click();
  await draw("Ask");
  await expect(page.getByRole("dialog")).toHaveCount(0);

  await page.getByRole("button", { name: "Rename…", exact: true }).click();
  await page.getByRole("dialog").getByLabel("Name", { exact: true }).fill("Drawn by hand");
  await page.getByRole("dialog").getByRole("button", { name: "Rename", exact: true }).click();
  await expect(page.getByRole("heading", { level: 1, name: "Drawn by hand", exact: true })).toBeVisible();
  // The edits are still there and are saved.
  await expect(graph.locator("text")).toHaveText(["False"]);
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await expect(page.getByText("Saved. New messages use this version.", { exact: true })).toBeVisible();
  expect((await stored()).map(({ fromIndex, toIndex, type }) => [fromIndex, toIndex, type])).toEqual([[0, 1, "False"]]);
  expect(((await platform.call("GET", `/api/ruleChain/${id.id}`)) as { name: string }).name).toBe("Drawn by hand");
});
