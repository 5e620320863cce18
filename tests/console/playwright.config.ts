// The console in a real browser against the real binary. Each worker has a server of its own.
import { defineConfig } from "@playwright/test";

// What a test serves from a directory has no address, and so may not reach this machine unless told.
const args = ["--no-sandbox", ...(process.env["CONSOLE_DIST"] ? ["--disable-features=LocalNetworkAccessChecks"] : [])];

export default defineConfig({
  testDir: "specs",
  outputDir: "../../target/console-tests",
  timeout: 45_000,
  expect: { timeout: 12_000 },
  workers: 1,
  forbidOnly: true,
  reporter: [["list"]],
  use: {
    browserName: "chromium",
    viewport: { width: 1280, height: 900 },
    launchOptions: { executablePath: process.env["CHROMIUM"] ?? "/usr/bin/chromium", args },
    actionTimeout: 12_000,
    trace: "retain-on-failure",
  },
});
