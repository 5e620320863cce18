// Generates src/api/generated.ts from the server's OpenAPI document: types, and one function per operation.
//   node scripts/client.mjs <openapi.json or URL> [output]
import { readFile, writeFile } from "node:fs/promises";

const from = process.argv[2];
if (!from) throw new Error("missing argument: the OpenAPI document, a file or the URL of a server's /api/openapi.json");
const text = from.startsWith("http") ? await (await fetch(from)).text() : await readFile(from, "utf8");
const document = JSON.parse(text);
const schemas = document.components.schemas;

const isName = (name) => /^[A-Za-z_$][\w$]*$/.test(name);
const key = (name) => (isName(name) ? name : JSON.stringify(name));
const camel = (id) => id.replace(/_(.)/g, (_, letter) => letter.toUpperCase());
const union = (types) => [...new Set(types)].join(" | ");

function type(schema) {
  if (schema === true || schema === undefined || Object.keys(schema).length === 0) return "unknown";
  if (schema.$ref) return schema.$ref.split("/").pop();
  if ("const" in schema) return JSON.stringify(schema.const);
  if (schema.enum) return union(schema.enum.map((value) => JSON.stringify(value)));
  const choices = schema.oneOf ?? schema.anyOf;
  if (choices) {
    const each = union(choices.map(type));
    return schema.properties ? `${object(schema)} & (${each})` : choices.length > 1 ? `(${each})` : each;
  }
  if (schema.allOf) return schema.allOf.map(type).join(" & ");
  if (Array.isArray(schema.type)) return `(${union(schema.type.map((one) => type({ ...schema, type: one })))})`;
  switch (schema.type) {
    case "string":
      return "string";
    case "integer":
    case "number":
      return "number";
    case "boolean":
      return "boolean";
    case "null":
      return "null";
    case "array":
      return schema.prefixItems ? `[${schema.prefixItems.map(type).join(", ")}]` : `${type(schema.items)}[]`;
    case "object":
      return object(schema);
    default:
      return schema.properties ? object(schema) : "unknown";
  }
}

function object(schema) {
  const properties = Object.entries(schema.properties ?? {});
  const rest = schema.additionalProperties;
  if (properties.length === 0) return `Record<string, ${rest && rest !== true ? type(rest) : "unknown"}>`;
  const required = new Set(schema.required ?? []);
  const fields = properties.map(
    ([name, value]) =>
      `${comment(value.description, "  ")}  ${key(name)}${required.has(name) ? "" : "?"}: ${type(value)};`,
  );
  if (rest === true) fields.push("  [other: string]: unknown;");
  return `{\n${fields.join("\n")}\n}`;
}

function comment(text, indent) {
  if (!text) return "";
  return `${indent}/** ${text.replaceAll("*/", "* /").split("\n").join(`\n${indent} * `)} */\n`;
}

function answer(operation) {
  for (const [status, response] of Object.entries(operation.responses)) {
    if (!status.startsWith("2")) continue;
    const content = response.content ?? {};
    const [kind] = Object.keys(content);
    return kind ? type(content[kind].schema) : "void";
  }
  return undefined;
}

/** Returns the function of an operation. Empty for a WebSocket, which has no successful answer. */
function operation(method, path, operation) {
  const returns = answer(operation);
  if (returns === undefined) return "";
  const parameters = operation.parameters ?? [];
  const inPath = parameters.filter((one) => one.in === "path");
  const inQuery = parameters.filter((one) => one.in === "query");
  const takes = inPath.map((one) => `${camel(one.name)}: string`);
  const body = operation.requestBody?.content["application/json"]?.schema;
  if (body) takes.push(`body: ${type(body)}`);
  if (inQuery.length) {
    const isOptional = inQuery.every((one) => !one.required);
    const fields = inQuery.map((one) => `${key(one.name)}${one.required ? "" : "?"}: ${type(one.schema)} | undefined`);
    takes.push(`query${isOptional ? "?" : ""}: { ${fields.join("; ")} }`);
  }
  const hasIfMatch = parameters.some((one) => one.in === "header" && one.name === "If-Match");
  if (hasIfMatch) takes.push("ifMatch?: string");
  takes.push("signal?: AbortSignal");
  const target = path.replace(/\{(\w+)\}/g, (_, name) => `\${part(${camel(name)})}`);
  const options = [body ? "body" : "", inQuery.length ? "query" : "", hasIfMatch ? "ifMatch" : "", "signal"]
    .filter(Boolean)
    .join(", ");
  const quoted = target === path ? JSON.stringify(path) : `\`${target}\``;
  return (
    `${comment(operation.summary, "")}export const ${camel(operation.operationId)} = ` +
    `(${takes.join(", ")}): Promise<${returns}> =>\n  request("${method.toUpperCase()}", ${quoted}, { ` +
    `${options} });\n`
  );
}

const types = Object.entries(schemas).map(
  ([name, schema]) => `${comment(schema.description, "")}export type ${name} = ${type(schema)};\n`,
);
const operations = Object.entries(document.paths).flatMap(([path, methods]) =>
  Object.entries(methods).map(([method, one]) => operation(method, path, one)),
);

await writeFile(
  process.argv[3] ?? new URL("../src/api/generated.ts", import.meta.url),
  [
    "// Generated by scripts/client.mjs from the server's OpenAPI document. Update it with `dev/ui client`.\n",
    'import { part, request } from "./request";\n',
    ...types,
    ...operations.filter(Boolean),
  ].join("\n"),
);
