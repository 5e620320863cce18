// The frame: login, navigation, colours, small screens, the keyboard.
import { drawn, fits, textsOf } from "../support/reads";
import { expect, logIn, open, test, watch } from "../support/test";

test("a wrong password is refused and says so", async ({ page, node }) => {
  await page.goto(node.url);
  await page.getByLabel("Password", { exact: true }).fill("wrong");
  await page.getByRole("button", { name: "Log in", exact: true }).click();
  await expect(page.getByRole("alert")).toContainText("user or password is wrong");
});

test("one logs in, stays so over a reload, and logs out", async ({ page, node }) => {
  const complaints = watch(page, node.url);
  await logIn(page, node);
  await page.reload();
  await expect(page.getByRole("heading", { name: "Home", exact: true })).toBeVisible();
  await page.getByRole("button", { name: "Log out", exact: true }).click();
  await expect(page.getByRole("button", { name: "Log in", exact: true })).toBeVisible();
  expect(complaints).toEqual([]);
});

test("a login that the server does not know any more leads to the login page", async ({ page, node }) => {
  await logIn(page, node);
  await page.evaluate(() => {
    const login = JSON.parse(sessionStorage.getItem("tidewire-login") ?? "{}");
    sessionStorage.setItem("tidewire-login", JSON.stringify({ ...login, token: "tw_unknown" }));
  });
  await page.reload();
  await expect(page.getByText("Your login has ended")).toBeVisible();
});

test("every page is reached from the navigation and by keyboard", async ({ console: page }) => {
  const links = page.getByRole("navigation", { name: "Pages", exact: true }).getByRole("link");
  for (const name of await textsOf(links, 16)) {
    await links.getByText(name, { exact: true }).focus();
    await page.keyboard.press("Enter");
    await expect(page.getByRole("heading", { level: 1, name, exact: true })).toBeVisible();
    await expect(page).toHaveTitle(`${name} · tidewire`);
  }
  await open(page, "nowhere");
  await expect(page.getByRole("heading", { name: "There is no such page", exact: true })).toBeVisible();
});

test("colours are as the system has them, or as chosen", async ({ console: page }) => {
  const ground = () => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  await page.emulateMedia({ colorScheme: "light" });
  const light = await ground();
  await page.emulateMedia({ colorScheme: "dark" });
  await expect.poll(ground).not.toBe(light);
  const dark = await ground();
  await page.emulateMedia({ colorScheme: "light" });
  await expect.poll(ground).toBe(light);
  const button = page.getByRole("button", { name: /^Colours:/ });
  await button.click();
  await button.click();
  await expect(button).toHaveText("Colours: dark");
  await expect.poll(ground).toBe(dark);
  await page.reload();
  await expect(button).toHaveText("Colours: dark");
});

test("no page is wider than a telephone, and the menu opens there", async ({ console: page }) => {
  await page.setViewportSize({ width: 360, height: 740 });
  const menu = page.getByRole("button", { name: "Menu", exact: true });
  for (const name of await textsOf(page.getByRole("navigation", { name: "Pages", exact: true, includeHidden: true }).getByRole("link", { includeHidden: true }), 16)) {
    await menu.click();
    await page.getByRole("navigation", { name: "Pages", exact: true }).getByRole("link", { name, exact: true }).click();
    await expect(page.getByRole("heading", { level: 1, name, exact: true })).toBeVisible();
    await drawn(page);
    await fits(page, name);
  }
});

test("the page may run nothing inline and reach nobody but this node", async ({ node, request }) => {
  const policy = (await request.get(node.url)).headers()["content-security-policy"] ?? "";
  expect(policy).toContain("script-src 'self'");
  expect(policy).not.toContain("unsafe");
  expect(policy).not.toContain("https:");
  expect(policy).toMatch(/connect-src 'self' ws:\/\/127\.0\.0\.1:\d+;/);
});

test("the login form offers who was logged in", async ({ page, node }) => {
  const { password } = (await node.call("POST", "/api/v1/console-users", { name: "lena", role: "viewer" })) as { password: string };
  await page.goto(node.url);
  await expect(page.getByLabel("User", { exact: true })).toHaveValue("admin");
  const enter = async (with_: string) => {
    await page.getByLabel("Password", { exact: true }).fill(with_);
    await page.getByRole("button", { name: "Log in", exact: true }).click();
  };
  await page.getByLabel("User", { exact: true }).fill("lena");
  await enter(password);
  await page.getByLabel("Present password", { exact: true }).fill(password);
  await page.getByLabel("New password", { exact: true }).fill("one of her own");
  await page.getByLabel("Once more", { exact: true }).fill("one of her own");
  await page.getByRole("button", { name: "Change", exact: true }).click();
  await expect(page.getByText("The password was changed. Please log in with the new one.")).toBeVisible();
  await expect(page.getByLabel("User", { exact: true })).toHaveValue("lena");
  await enter("one of her own");
  await expect(page.getByText("lena (viewer)")).toBeVisible();
});
