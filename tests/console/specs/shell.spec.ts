// The frame of the console: login, navigation, colours, small screens.
import { drawn, fits, textsOf } from "../support/reads";
import { expect, logIn, open, test, watch } from "../support/test";

test("a wrong password is refused", async ({ page, node }) => {
  await page.goto(node.url);
  await page.getByLabel("Password", { exact: true }).fill("wrong");
  await page.getByRole("button", { name: "Log in", exact: true }).click();
  await expect(page.getByRole("alert")).toContainText("wrong user name or password");
});

test("a login survives a reload and ends with the logout", async ({ page, node }) => {
  const pageErrors = watch(page, node.url);
  await logIn(page, node);
  await page.reload();
  await expect(page.getByRole("heading", { name: "Home", exact: true })).toBeVisible();
  await page.getByRole("button", { name: "Log out", exact: true }).click();
  await expect(page.getByRole("button", { name: "Log in", exact: true })).toBeVisible();
  expect(pageErrors).toEqual([]);
});

test("an unknown token opens the login page", async ({ page, node }) => {
  await logIn(page, node);
  await page.evaluate(() => {
    const login = JSON.parse(sessionStorage.getItem("tidewire-login") ?? "{}");
    sessionStorage.setItem("tidewire-login", JSON.stringify({ ...login, token: "tw_unknown" }));
  });
  await page.reload();
  await expect(page.getByText("Your login has ended")).toBeVisible();
});

test("every page is reachable by keyboard", async ({ console: page }) => {
  const links = page.getByRole("navigation", { name: "Pages", exact: true }).getByRole("link");
  for (const name of await textsOf(links, 16)) {
    await links.getByText(name, { exact: true }).focus();
    await page.keyboard.press("Enter");
    await expect(page.getByRole("heading", { level: 1, name, exact: true })).toBeVisible();
    await expect(page).toHaveTitle(`${name} · tidewire`);
  }
  await open(page, "nowhere");
  await expect(page.getByRole("heading", { name: "Page not found", exact: true })).toBeVisible();
});

test("colours follow the system or the user's choice", async ({ console: page }) => {
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

test("pages fit a phone and its menu opens", async ({ console: page }) => {
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

test("the content security policy blocks other origins", async ({ node, request }) => {
  const policy = (await request.get(node.url)).headers()["content-security-policy"] ?? "";
  expect(policy).toContain("script-src 'self'");
  expect(policy).not.toContain("unsafe");
  expect(policy).not.toContain("https:");
  expect(policy).toMatch(/connect-src 'self' ws:\/\/127\.0\.0\.1:\d+;/);
});

test("the login form offers the last user", async ({ page, node }) => {
  const { password } = (await node.call("POST", "/api/v1/console-users", { name: "lena", role: "viewer" })) as { password: string };
  await page.goto(node.url);
  await expect(page.getByLabel("User", { exact: true })).toHaveValue("admin");
  const enter = async (with_: string) => {
    await page.getByLabel("Password", { exact: true }).fill(with_);
    await page.getByRole("button", { name: "Log in", exact: true }).click();
  };
  await page.getByLabel("User", { exact: true }).fill("lena");
  await enter(password);
  await page.getByLabel("Current password", { exact: true }).fill(password);
  await page.getByLabel("New password", { exact: true }).fill("one of her own");
  await page.getByLabel("Repeat new password", { exact: true }).fill("one of her own");
  await page.getByRole("button", { name: "Change password", exact: true }).click();
  await expect(page.getByText("Password changed. Log in with the new password.")).toBeVisible();
  await expect(page.getByLabel("User", { exact: true })).toHaveValue("lena");
  await enter("one of her own");
  await expect(page.getByText("lena (viewer)")).toBeVisible();
});
