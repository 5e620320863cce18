// Browser tests of the console against the real binary. Each spec file has a server of its own, so files run in
// parallel. The tests of a file run in order, unless the file is configured as parallel. Such a file has a server per
// worker. Tests with @quiet measure time: dev/ui runs them alone with one worker.
//   CONSOLE_SLOW=4  simulates a machine that is four times slower: pages get a quarter of the CPU, answers are delayed
//                   by up to 300 ms, and all timeouts are four times longer. A failure then shows a spec that reads
//                   a page too early, or a fault of the console on slow machines.
//   CONSOLE_SEED=1  the seed of the delays
import { existsSync } from "node:fs";
import { defineConfig } from "@playwright/test";
import { SEED, seconds, SLOW } from "./support/slow";

if (SLOW > 1) console.log(`CONSOLE_SLOW=${SLOW} CONSOLE_SEED=${SEED}`);

// The headless shell needs half the CPU time of Chromium.
const executablePath = process.env["CHROMIUM"] ?? ["/usr/bin/chromium-headless-shell", "/usr/bin/chromium"].find((path) => existsSync(path));

// Pages served from a directory have no address, so the browser would block their access to this machine.
const local = process.env["CONSOLE_DIST"] ? ["--disable-features=LocalNetworkAccessChecks"] : [];
// For hostnames.spec.ts. Arguments of its own would need a browser of its own.
const args = ["--no-sandbox", "--host-resolver-rules=MAP broker.lan 127.0.0.1", ...local];

const WAITING = ["heap", "kafka", "usage"].map((name) => `**/${name}.spec.ts`);

export default defineConfig({
  testDir: "specs",
  outputDir: "../../target/console-tests",
  timeout: seconds(90),
  expect: { timeout: seconds(20), toPass: { timeout: seconds(40) } },
  // Two tests keep two cores busy. The other workers run tests that wait for the server or a timer.
  workers: 5,
  // Files run in the order of their names. Those that wait for a minute or more begin first, so that at the end no core
  // is idle until they are done.
  projects: [{ name: "waiting", testMatch: WAITING }, { name: "others", testIgnore: WAITING }],
  forbidOnly: true,
  reporter: [["list"], ["./support/failures.ts"]],
  use: {
    browserName: "chromium",
    viewport: { width: 1280, height: 900 },
    launchOptions: { executablePath, args },
    actionTimeout: seconds(20),
    // Traces contain actions only. Screenshots and snapshots would cost a fifth of the CPU time or more, also in
    // passing tests.
    trace: { mode: "retain-on-failure", screenshots: false, snapshots: false },
    screenshot: "only-on-failure",
  },
});
