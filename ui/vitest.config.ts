// Unit tests of the modules. They run in Node, without a browser: pages and components are tested in tests/console.
import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vitest/config";

process.env["TZ"] = "UTC";

export default defineConfig({
  plugins: [svelte()],
  // Without this condition, runes would run as on a server, where state is not reactive.
  resolve: { conditions: ["browser"] },
  test: { include: ["src/**/*.test.ts"], setupFiles: ["src/testing/browser.ts"], unstubGlobals: false },
});
