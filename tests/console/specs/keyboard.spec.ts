// Keyboard use: everything is reachable by Tab and works with Enter, Space, arrows and Escape. The focus stays visible.
import type { Locator, Page } from "@playwright/test";
import { press, reach } from "../support/keys";
import { keepsFocus } from "../support/reads";
import { expect, logIn, open, test, watch } from "../support/test";
import { Platform } from "../support/platform";

test.use({ hasPlatform: true });

const button = (page: Page | Locator, name: string | RegExp) => page.getByRole("button", typeof name === "string" ? { name, exact: true } : { name });

test("a client is disconnected by keyboard", async ({ page, node }) => {
  const pageErrors = watch(page, node.url);
  await node.subscriber("by-keys", "keys/#");
  await page.goto(node.url);
  await expect(page.getByLabel("Password", { exact: true })).toBeFocused();
  await page.keyboard.type(node.firstPassword);
  await page.keyboard.press("Enter");
  await expect(page.getByRole("heading", { name: "Home", exact: true })).toBeVisible();
  await reach(page, page.getByRole("link", { name: "Skip to content", exact: true }));
  await page.keyboard.press("Enter");
  await expect(page.getByRole("main")).toBeFocused();
  await press(page, page.getByRole("navigation", { name: "Pages", exact: true }).getByRole("link", { name: "Clients", exact: true }));
  await expect(page.getByRole("heading", { level: 1, name: "Clients", exact: true })).toBeVisible();
  await press(page, page.getByRole("main").getByRole("link", { name: "by-keys", exact: true }));
  await expect(page.getByRole("heading", { level: 1, name: "by-keys", exact: true })).toBeVisible();

  const kick = button(page, /^Disconnect/);
  const dialog = page.getByRole("dialog");
  await press(page, kick);
  await expect(dialog).toBeVisible();
  // The page behind the dialog is not reachable in either direction.
  for (const key of ["Tab", "Tab", "Tab", "Shift+Tab", "Shift+Tab", "Shift+Tab", "Shift+Tab"]) {
    await page.keyboard.press(key);
    await expect.poll(() => page.evaluate(() => document.activeElement === document.body || document.activeElement?.closest("dialog") !== null), key).toBe(true);
  }
  await page.keyboard.press("Escape");
  await expect(dialog).toBeHidden();
  await expect(kick).toBeFocused();
  await page.keyboard.press("Enter");
  await press(page, button(dialog, "Cancel"));
  await expect(dialog).toBeHidden();
  await expect(kick).toBeFocused();
  await page.keyboard.press("Enter");
  await press(page, button(dialog, "Disconnect"));
  await expect(dialog).toBeHidden();
  await keepsFocus(page);
  expect(pageErrors).toEqual([]);
});

test("the topic tree is opened and closed by keyboard", async ({ console: page, node }) => {
  await open(page, "topics");
  await reach(page, page.getByLabel("Topic filter", { exact: true }));
  await page.keyboard.type("keys/#");
  await press(page, button(page, "Watch"));
  await expect(button(page, "Stop")).toBeVisible();
  await expect(page.getByText("No messages yet.")).toBeVisible();
  await node.publish("keys/house/kitchen", '{"value": 21.5}', "-r");
  const tree = page.getByRole("list", { name: "Topics", exact: true });
  await press(page, button(tree, "Close keys/house"));
  await expect(tree.getByText("kitchen")).toBeHidden();
  await expect(button(tree, "Open keys/house")).toBeFocused();
  await page.keyboard.press("Enter");
  await press(page, button(tree, "kitchen"));
  await expect(page.getByRole("region", { name: "Payload", exact: true })).toContainText('"value": 21.5');
});

test("the rule editor is left and completes by keyboard", async ({ console: page }) => {
  await open(page, "rules/new");
  const sql = page.getByRole("textbox", { name: "SQL of the rule", exact: true });
  await reach(page, sql);
  await page.keyboard.press("Control+a");
  await page.keyboard.type("SELECT * FROM \"t/#\" WHERE upp");
  await page.keyboard.press("Tab");
  await expect(sql).toHaveValue(/upper/);
  await expect(sql).toBeFocused();
  // A name that is both a column and a function appears once.
  await page.keyboard.type(" AND clienti");
  await page.keyboard.press("Tab");
  await expect(sql).toHaveValue(/ AND clientid$/);
  await page.keyboard.type(" AND upp");
  await page.keyboard.press("Escape");
  await page.keyboard.press("Tab");
  await expect(sql).not.toBeFocused();
  await page.keyboard.press("Shift+Tab");
  await expect(sql).toBeFocused();
  await page.keyboard.press("Shift+Tab");
  await expect(sql).not.toBeFocused();
});

test("rule nodes are moved and connected by keyboard", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const made = (await platform.call("POST", "/api/ruleChain", { name: "Keys", type: "CORE" })) as { id: { id: string } };
  const type = "org.thingsboard.rule.engine.action.TbLogNode";
  const nodes = ["First", "Second"].map((name, n) => ({ type, name, configuration: { scriptLang: "JS", jsScript: "return 'x';" }, additionalInfo: { layoutX: 40 + n * 240, layoutY: 40 } }));
  await platform.call("POST", "/api/ruleChain/metadata", { ruleChainId: made.id, firstNodeIndex: 0, nodes, connections: [], ruleChainConnections: null });
  await open(page, `chains/${made.id.id}`);
  const first = button(page, "Node First");
  await press(page, first);
  const panel = page.getByRole("region", { name: "Node", exact: true });
  await expect(panel.getByLabel("Node name", { exact: true })).toHaveValue("First");
  for (const key of ["ArrowDown", "ArrowDown", "ArrowRight"]) await page.keyboard.press(key);
  await expect(first).toBeFocused();
  await expect(first).toHaveCSS("top", "80px");
  await expect(first).toHaveCSS("left", "60px");
  await reach(page, panel.getByRole("combobox", { name: "To", exact: true }));
  await page.keyboard.type("Second");
  await press(page, button(panel, "Connect"));
  await expect(panel.getByText("Success → Second", { exact: true })).toBeVisible();
  await expect(button(panel, "Connect")).toBeFocused();
  // The focused button is removed with the node. The focus stays nearby.
  await press(page, button(panel, "Remove node"));
  await expect(first).toBeHidden();
  await keepsFocus(page);
  await reach(page, button(page, "Discard changes"), "Shift+Tab");
  await page.keyboard.press("Enter");
  await press(page, button(page.getByRole("dialog"), "Discard changes"));
  await expect(first).toBeVisible();
});

test("widgets are moved and resized by keyboard", async ({ console: page, node }) => {
  const platform = await Platform.open(node, "Main");
  const id = await platform.device("keys");
  const widget = (title: string, row: number) => ({ typeFullFqn: "system.cards.value_card", type: "latest", sizeX: 6, sizeY: 3, row, col: 0, config: { title, showTitle: true, datasources: [{ type: "entity", entityAliasId: "e", dataKeys: [{ name: "x", type: "timeseries", label: "x" }] }] } });
  const place = (row: number) => ({ sizeX: 6, sizeY: 3, row, col: 0 });
  const configuration = {
    widgets: { a: { id: "a", ...widget("Upper", 0) }, b: { id: "b", ...widget("Lower", 3) } },
    states: { default: { name: "Keys", root: true, layouts: { main: { widgets: { a: place(0), b: place(3) } } } } },
    entityAliases: { e: { id: "e", alias: "keys", filter: { type: "singleEntity", singleEntity: { entityType: "DEVICE", id } } } },
    timewindow: {},
  };
  const made = (await platform.call("POST", "/api/dashboard", { title: "Keys", configuration })) as { id: { id: string } };
  await open(page, `dashboards/${made.id.id}`);
  await press(page, button(page, "Edit"));
  const move = button(page, "Move Upper");
  await expect(move).toBeVisible();
  await reach(page, move);
  const at = () => page.getByRole("region", { name: "Upper", exact: true }).evaluate((one) => `${getComputedStyle(one).gridColumnStart} ${getComputedStyle(one).gridColumnEnd} ${getComputedStyle(one).gridRowStart} ${getComputedStyle(one).gridRowEnd}`);
  await expect.poll(at).toBe("1 span 6 1 span 3");
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("Shift+ArrowRight");
  await expect.poll(at).toBe("2 span 7 1 span 3");
  // The other widget makes room. The focus moves with the widget.
  for (let n = 0; n < 6; n += 1) await page.keyboard.press("ArrowDown");
  await expect(move).toBeFocused();
  await expect.poll(at).not.toBe("2 span 7 1 span 3");
  await reach(page, button(page, "Remove Upper"));
  await page.keyboard.press("Enter");
  await expect(page.getByRole("region", { name: "Upper", exact: true })).toBeHidden();
  await keepsFocus(page);
  await reach(page, button(page, "Add widget…"), "Shift+Tab");
  await page.keyboard.press("Enter");
  await expect(page.getByRole("dialog")).toBeVisible();
  await page.keyboard.press("Escape");
  await expect(button(page, "Add widget…")).toBeFocused();
});

test("the menu on a phone is used by keyboard", async ({ page, node }) => {
  await page.setViewportSize({ width: 360, height: 740 });
  await logIn(page, node);
  const menu = button(page, "Menu");
  const pages = page.getByRole("navigation", { name: "Pages", exact: true });
  await press(page, menu);
  await expect(pages).toBeVisible();
  await reach(page, pages.getByRole("link", { name: "Retained messages", exact: true }));
  await page.keyboard.press("Escape");
  await expect(pages).toBeHidden();
  await expect(menu).toBeFocused();
  await page.keyboard.press("Enter");
  await press(page, pages.getByRole("link", { name: "Clients", exact: true }));
  await expect(page.getByRole("heading", { level: 1, name: "Clients", exact: true })).toBeVisible();
  await expect(pages).toBeHidden();
  // The link that had the focus is hidden.
  await expect(page.getByRole("main")).toBeFocused();
});

test("table rows are sorted, selected and deleted by keyboard", async ({ console: page, node }) => {
  for (const name of ["keys/t/a", "keys/t/b"]) await node.publish(name, "1", "-r");
  await open(page, "retained");
  const tick = page.getByRole("checkbox", { name: "Select keys/t/a", exact: true });
  await press(page, tick, "Space");
  await expect(tick).toBeChecked();
  await reach(page, button(page, "Delete 1 message…"), "Shift+Tab");
  await page.keyboard.press("Enter");
  await press(page, button(page.getByRole("dialog"), "Delete"));
  await expect(tick).toBeHidden();
  await keepsFocus(page);
  await node.subscriber("sorted", "sorted/#");
  await open(page, "clients");
  const head = page.getByRole("region", { name: "Table: Clients", exact: true }).getByRole("columnheader").getByRole("button").first();
  await press(page, head);
  await expect(head).toBeFocused();
});
