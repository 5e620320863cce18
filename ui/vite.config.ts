// Build of the console: hashed files in dist/assets and nothing inlined, because the content security policy forbids
// inline code. `dev/ui serve` uses a running server.
import { svelte } from "@sveltejs/vite-plugin-svelte";
import { defineConfig } from "vite";

const server = process.env["TIDEWIRE_API"] ?? "http://127.0.0.1:18083";

export default defineConfig({
  plugins: [svelte()],
  build: {
    target: "es2022",
    assetsInlineLimit: 0,
    manifest: true,
    modulePreload: { polyfill: false },
    reportCompressedSize: false,
    chunkSizeWarningLimit: 300,
  },
  server: { proxy: { "/api": { target: server, ws: true }, "/metrics": server, "/readyz": server } },
});
