// Runs after Vite. Fails if the first page exceeds its budget of compressed bytes. Removes Vite's manifest, which the
// server does not need.
import { readFile, rm } from "node:fs/promises";
import { gzipSync } from "node:zlib";

const FIRST_LOAD_BYTES_MAX = 250 * 1024;
const FIRST_PAGE = "src/routes/node/Home.svelte";

const dist = new URL("../dist/", import.meta.url);
const manifest = JSON.parse(await readFile(new URL(".vite/manifest.json", dist), "utf8"));
await rm(new URL(".vite/", dist), { recursive: true });

/** Returns all files that a chunk loads. */
function filesOf(name, seen = new Set()) {
  if (seen.has(name)) return [];
  seen.add(name);
  const chunk = manifest[name];
  return [chunk.file, ...(chunk.css ?? []), ...(chunk.imports ?? []).flatMap((one) => filesOf(one, seen))];
}

const first = new Set([...filesOf("index.html"), ...filesOf(FIRST_PAGE)]);
const sizes = await Promise.all(
  [...first].map(async (file) => gzipSync(await readFile(new URL(file, dist)), { level: 9 }).length),
);
const bytes = sizes.reduce((a, b) => a + b, 0);
console.log(`first load ${(bytes / 1024).toFixed(1)} KiB compressed, of at most ${FIRST_LOAD_BYTES_MAX / 1024}`);
if (bytes > FIRST_LOAD_BYTES_MAX) throw new Error("the first load exceeds its budget (FIRST_LOAD_BYTES_MAX)");
