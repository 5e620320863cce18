// The console in a real browser against the real binary. Each worker has a server of its own.
//   CONSOLE_SLOW=4  as on a machine that is that much slower: pages get a quarter of the processor, answers of the server come late by up to 300 ms, and every limit is four
//                   times as long. What fails then reads a page before it is drawn, or is a fault of the console that only slow machines show.
//   CONSOLE_SEED=1  what the delays come from
import { defineConfig } from "@playwright/test";
import { SEED, seconds, SLOW } from "./support/slow";

if (SLOW > 1) console.log(`CONSOLE_SLOW=${SLOW} CONSOLE_SEED=${SEED}`);

// What a test serves from a directory has no address, and so may not reach this machine unless told.
const args = ["--no-sandbox", ...(process.env["CONSOLE_DIST"] ? ["--disable-features=LocalNetworkAccessChecks"] : [])];

export default defineConfig({
  testDir: "specs",
  outputDir: "../../target/console-tests",
  timeout: seconds(90),
  expect: { timeout: seconds(20), toPass: { timeout: seconds(40) } },
  workers: 1,
  forbidOnly: true,
  reporter: [["list"]],
  use: {
    browserName: "chromium",
    viewport: { width: 1280, height: 900 },
    launchOptions: { executablePath: process.env["CHROMIUM"] ?? "/usr/bin/chromium", args },
    actionTimeout: seconds(20),
    trace: "retain-on-failure",
  },
});
