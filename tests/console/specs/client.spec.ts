// The API client of the console is what this server describes. What the server has beyond it does no harm.
import { execFileSync } from "node:child_process";
import { readFileSync } from "node:fs";
import { expect, test } from "../support/test";

const UI = "../../ui";

test("every type and operation of the client is in the server's description", async ({ node }, info) => {
  const fresh = info.outputPath("generated.ts");
  execFileSync(process.execPath, [`${UI}/scripts/client.mjs`, `${node.url}/api/openapi.json`, fresh]);
  const declarations = (file: string) => readFileSync(file, "utf8").split(/^export /m).slice(1).map((text) => text.replace(/\/\*\*[\s\S]*?\*\//g, "").trim());
  const there = new Set(declarations(fresh));
  const gone = declarations(`${UI}/src/api/generated.ts`).filter((one) => !there.has(one));
  expect(gone, "dev/ui client makes the client anew").toEqual([]);
});
