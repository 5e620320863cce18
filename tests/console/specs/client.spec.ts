// The generated API client matches the server's description. Additional endpoints of the server are allowed.
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { expect, test } from "../support/test";

const UI = "../../ui";

test("the server describes all types and operations of the client", async ({ node }, info) => {
  const fresh = info.outputPath("generated.ts");
  execFileSync(process.execPath, [`${UI}/scripts/client.mjs`, `${node.url}/api/openapi.json`, fresh]);
  const declarations = (file: string) => readFileSync(file, "utf8").split(/^export /m).slice(1).map((text) => text.replace(/\/\*\*[\s\S]*?\*\//g, "").trim());
  const there = new Set(declarations(fresh));
  const gone = declarations(`${UI}/src/api/generated.ts`).filter((one) => !there.has(one));
  expect(gone, "run dev/ui client to update the client").toEqual([]);
});
