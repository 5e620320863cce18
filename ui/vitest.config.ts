// Unit tests of the modules. They run in Node, without a browser: pages and components are tested in tests/console.
import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vitest/config";

process.env["TZ"] = "UTC";

export default defineConfig({
  plugins: [svelte()],
  // Without this condition, runes would run as on a server, where state is not reactive.
  resolve: { conditions: ["browser"] },
  // The time limit only ends a test that hangs: a busy machine is slow.
  test: { testTimeout: 120_000, include: ["src/**/*.test.ts"], setupFiles: ["src/testing/browser.ts"] },
});
