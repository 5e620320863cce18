// Writes src/lib/words.ts, the functions, columns and events that the rule editor completes and colours, from the rule language itself.
import { readFile, readdir, writeFile } from "node:fs/promises";

const rules = new URL("../../crates/rules/src/", import.meta.url);
const files = (await readdir(new URL("functions/", rules))).filter((name) => name.endsWith(".rs"));
const texts = await Promise.all(files.map((name) => readFile(new URL(`functions/${name}`, rules), "utf8")));
const functions = texts.flatMap((text) => [...text.matchAll(/^\s+"([a-z_0-9]+)" \(/gm)].map((found) => found[1]));
const events = await readFile(new URL("event.rs", rules), "utf8");
const columns = [...events.matchAll(/^ {4}\w+ "([a-z_]+)" Kinds::/gm)].map((found) => found[1]);
// The new name of each, and when it happens. Messages are named by their topics.
const named = [...events.matchAll(/^ {4}\w+ "[a-z_.]+" \["(\$events\/[a-z_/]+)"[^\]]*\] "([^"]+)":/gm)].filter(([, name]) => name !== "$events/message_publish").map(([, name, about]) => ({ name, about }));
if (functions.length < 50 || columns.length < 10 || named.length < 10) throw new Error("the tables of the rule language have another form now: change this script");

const list = (names) => [...new Set(names)].sort().map((name) => `  ${JSON.stringify(name)},`).join("\n");
await writeFile(new URL("../src/lib/words.ts", import.meta.url), [
  "// Made by scripts/words.mjs from the rule language; `dev/ui client` makes it anew.\n",
  `export const FUNCTIONS = [\n${list(functions)}\n];\n`,
  `export const COLUMNS = [\n${list(columns)}\n];\n`,
  `export const EVENTS: { name: string; about: string }[] = [\n${named.map(({ name, about }) => `  { name: ${JSON.stringify(name)}, about: ${JSON.stringify(about)} },`).join("\n")}\n];\n`,
].join("\n"));
