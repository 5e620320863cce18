// After the build: compresses what is in dist/assets, writes the table of files that the server embeds, and keeps the first
// load within its budget.
import { readFile, readdir, rm, writeFile } from "node:fs/promises";
import { gzipSync } from "node:zlib";

const FIRST_LOAD_BYTES_MAX = 250 * 1024;
const FIRST_PAGE = "src/routes/Home.svelte";
const CONTENT_TYPES = { js: "text/javascript; charset=utf-8", css: "text/css; charset=utf-8" };

const dist = new URL("../dist/", import.meta.url);
const manifest = JSON.parse(await readFile(new URL(".vite/manifest.json", dist), "utf8"));
await rm(new URL(".vite/", dist), { recursive: true });

const sizes = new Map();
for (const name of (await readdir(new URL("assets/", dist))).sort()) {
  const file = new URL(`assets/${name}`, dist);
  const bytes = gzipSync(await readFile(file), { level: 9 });
  sizes.set(`assets/${name}`, bytes.length);
  await writeFile(new URL(`assets/${name}.gz`, dist), bytes);
  await rm(file);
}

const rust = [...sizes.keys()].map((name) => entry(`/${name}`, CONTENT_TYPES[name.split(".").pop()], `${name}.gz`, true));
await writeFile(new URL("../../crates/api/src/console_files.rs", import.meta.url), [
  "//! The files of the console, as `dev/ui build` has made them. This table is made by it, too.\n",
  "use crate::endpoints::console::File;\n",
  "pub static FILES: &[File] = &[",
  entry("/", "text/html; charset=utf-8", "index.html", false),
  entry("/favicon.svg", "image/svg+xml", "favicon.svg", false),
  ...rust,
  "];\n",
].join("\n"));

function entry(path, contentType, file, isGzip) {
  if (!contentType) throw new Error(`${file}: what type is this? Add it to CONTENT_TYPES`);
  return [
    "    File {",
    `        path: "${path}",`,
    `        content_type: "${contentType}",`,
    `        bytes: include_bytes!("../../../ui/dist/${file}"),`,
    `        is_gzip: ${isGzip},`,
    "    },",
  ].join("\n");
}

/** Files that are loaded with a chunk. */
function filesOf(name, seen = new Set()) {
  if (seen.has(name)) return [];
  seen.add(name);
  const chunk = manifest[name];
  return [chunk.file, ...(chunk.css ?? []), ...(chunk.imports ?? []).flatMap((one) => filesOf(one, seen))];
}

const first = new Set([...filesOf("index.html"), ...filesOf(FIRST_PAGE)]);
const bytes = [...first].reduce((sum, file) => sum + (sizes.get(file) ?? 0), 0);
const all = [...sizes.values()].reduce((a, b) => a + b, 0);
console.log(`first load ${(bytes / 1024).toFixed(1)} KiB compressed, of at most ${FIRST_LOAD_BYTES_MAX / 1024}; all pages ${(all / 1024).toFixed(1)} KiB`);
if (bytes > FIRST_LOAD_BYTES_MAX) throw new Error("the first load is too large");
