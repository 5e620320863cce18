// Options of authentication providers and sources of access rules as TOML, for the configuration file.
import type { ConfigValue } from "../api/generated";

/** The two lists, and the edited options as text: lists with one item per line, tables as lines `name = value`. */
export interface AccessDraft {
  providers: string[];
  sources: string[];
  values: Record<string, string>;
}

/** Kinds in the order of the reference. */
export const PROVIDER_KINDS = [
  "users",
  "certificate",
  "http",
  "postgresql",
  "mysql",
  "sqlite",
  "mongodb",
  "redis",
  "jwt",
  "ldap",
  "kerberos",
];
export const SOURCE_KINDS = ["rules", "http", "postgresql", "mysql", "sqlite", "mongodb", "redis"];

/** Title and page of the book of each kind. */
const KINDS: Record<string, { title: string; guide?: string }> = {
  users: { title: "Users of this server", guide: "guides/secure.html#2-add-mqtt-users" },
  certificate: { title: "Client certificates", guide: "guides/client-certificates.html" },
  http: { title: "HTTP service", guide: "guides/authentication-by-http.html" },
  postgresql: { title: "PostgreSQL", guide: "guides/database-logins.html" },
  mysql: { title: "MySQL or MariaDB", guide: "guides/database-logins.html" },
  sqlite: { title: "SQLite", guide: "guides/database-logins.html" },
  mongodb: { title: "MongoDB", guide: "guides/mongodb-logins.html" },
  redis: { title: "Redis or Valkey", guide: "guides/database-logins.html" },
  jwt: { title: "JSON Web Tokens", guide: "guides/json-web-tokens.html" },
  ldap: { title: "LDAP directory", guide: "guides/ldap-logins.html" },
  kerberos: { title: "Kerberos", guide: "guides/kerberos.html" },
  rules: { title: "Access rules of this server" },
  anonymous: { title: "Clients without credentials" },
  unknown_users: { title: "Unknown users" },
  bans: { title: "Bans" },
  devices: { title: "Devices of the platform" },
  access_rules: { title: "Access rules for connecting" },
};

export const titleOf = (kind: string): string => KINDS[kind]?.title ?? kind;

/** Sources of rules have a page of their own. */
export function guideOf(kind: string, isSource: boolean): string | undefined {
  return isSource ? "guides/ask-for-permissions.html" : KINDS[kind]?.guide;
}

/** Kinds without options. */
export const isLocal = (kind: string): boolean => kind === "users" || kind === "certificate" || kind === "rules";

export const sectionOf = (kind: string, isSource: boolean): string => (isSource ? "access.source." : "access.") + kind;

/** An option, or a table with free names. */
export interface AccessOption {
  key: string;
  name: string;
  description: string;
  /** `table` is a table with free names, `secrets` one whose values are secrets. */
  type: "text" | "number" | "boolean" | "choice" | "list" | "secret" | "table" | "secrets";
  choices: string[];
  /** The present value as text. */
  text: string;
  isDefault: boolean;
  /** What sets the value, if the file cannot. */
  pinnedBy: string;
  isEssential: boolean;
}

/** Options that nearly every installation sets. */
const ESSENTIAL = [
  "principal",
  "keytab_file",
  "url",
  "servers",
  "host",
  "port",
  "database",
  "user",
  "password",
  "file",
  "query",
  "cmd",
  "collection",
  "filter",
  "password_hash_algorithm",
  "jwks_url",
  "secret",
  "public_key_file",
  "user_name_claim",
  "base_dn",
  "body",
  "headers",
  "tls",
  "on_failure",
];

/** Tables with free names by section. The configuration lists only the entries that are set. */
const TABLES: Record<string, { name: string; type: "table" | "secrets"; description: string }[]> = {
  "access.http": [
    { name: "body", type: "table", description: "Fields of the body, one per line: `username = ${username}`." },
    { name: "headers", type: "secrets", description: "Names of headers, one per line. Their values are secrets." },
  ],
  "access.source.http": [
    { name: "body", type: "table", description: "Fields of the body, one per line: `topic = ${topic}`." },
    { name: "headers", type: "secrets", description: "Names of headers, one per line. Their values are secrets." },
  ],
  "access.jwt": [
    {
      name: "verify_claims",
      type: "table",
      description: "Claims that a token must have, one per line: `sub = ${username}`.",
    },
  ],
  "access.ldap": [
    {
      name: "client_attrs",
      type: "table",
      description: "Attributes of the client, one per line: the name, and the attribute of the entry.",
    },
  ],
};

/** Returns the options of a section in the order of the reference, and its tables. */
export function optionsOf(all: ConfigValue[], section: string): AccessOption[] {
  const tables = TABLES[section] ?? [];
  const own = all.filter((one) => one.key.startsWith(`${section}.`));
  const isOfTable = (one: ConfigValue) => tables.some((table) => one.key.startsWith(`${section}.${table.name}.`));
  const single = own
    .filter((one) => !isOfTable(one))
    .map((one): AccessOption => {
      const name = one.key.slice(section.length + 1);
      return {
        key: one.key,
        name,
        description: one.description,
        type: typeOf(one),
        choices: one.choices,
        text: textOf(one.value),
        isDefault: one.is_default,
        pinnedBy: one.is_pinned ? one.origin : "",
        isEssential: ESSENTIAL.includes(name),
      };
    });
  const free = tables.map((table): AccessOption => {
    const prefix = `${section}.${table.name}.`;
    const entries = own.filter((one) => one.key.startsWith(prefix) && !one.is_pinned);
    const line = (one: ConfigValue) => {
      const name = one.key.slice(prefix.length).replace(/^"(.*)"$/, "$1");
      return table.type === "secrets" ? name : `${name} = ${textOf(one.value)}`;
    };
    return {
      key: `${section}.${table.name}`,
      name: table.name,
      description: table.description,
      type: table.type,
      choices: [],
      text: entries.map(line).join("\n"),
      isDefault: entries.length === 0,
      pinnedBy: "",
      isEssential: ESSENTIAL.includes(table.name),
    };
  });
  return [...single, ...free];
}

function typeOf(one: ConfigValue): AccessOption["type"] {
  if (one.type.includes("secret")) return "secret";
  if (one.type === "boolean") return "boolean";
  if (one.type === "integer") return "number";
  if (one.type.startsWith("list")) return "list";
  return one.choices.length ? "choice" : "text";
}

/** Converts a value as the configuration shows it to the text of a form field. */
export function textOf(value: string): string {
  return value.startsWith("[") ? stringsIn(value).join("\n") : (stringsIn(value)[0] ?? value);
}

/** Returns the strings of a TOML value: basic strings and literal ones. */
function stringsIn(value: string): string[] {
  const found = value.match(/"(?:[^"\\]|\\.)*"|'[^']*'/g) ?? [];
  return found.map((text) => (text.startsWith("'") ? text.slice(1, -1) : unescape(text)));
}

function unescape(text: string): string {
  try {
    return String(JSON.parse(text));
  } catch {
    // TOML has escapes that JSON does not have.
    return text.slice(1, -1);
  }
}

/** Texts that a new member of a list begins with: the fields that EMQX's examples have. */
const FIRST_TEXTS: Record<string, Record<string, string>> = {
  "access.http": { body: "username = ${username}\npassword = ${password}\nclientid = ${clientid}" },
  "access.source.http": {
    body: "username = ${username}\nclientid = ${clientid}\naction = ${action}\ntopic = ${topic}\nqos = ${qos}",
  },
};

/** Fills in the options of a kind that was never configured. */
export function fillIn(all: ConfigValue[], draft: AccessDraft, section: string): void {
  for (const [name, text] of Object.entries(FIRST_TEXTS[section] ?? {})) {
    const option = optionsOf(all, section).find((one) => one.name === name);
    if (option?.isDefault) draft.values[option.key] ??= text;
  }
}

/** Returns the draft that describes the present configuration. */
export function presentDraft(all: ConfigValue[]): AccessDraft {
  const list = (key: string) => {
    const text = textOf(all.find((one) => one.key === key)?.value ?? "[]");
    return linesOf(text === "[]" ? "" : text);
  };
  return { providers: list("access.providers"), sources: list("access.sources"), values: {} };
}

export function linesOf(text: string): string[] {
  return text
    .split("\n")
    .map((line) => line.trim())
    .filter(Boolean);
}

// DEL is the only control character that JSON does not escape and TOML does not accept.
const quoted = (text: string): string => JSON.stringify(text).replaceAll("\u007f", "\\u007f");
const listed = (items: string[]): string => `[${items.map(quoted).join(", ")}]`;
const bareOrQuoted = (name: string): string => (/^[A-Za-z0-9_-]+$/.test(name) ? name : quoted(name));

/** Returns the variable that sets an option. */
export const variableOf = (key: string): string => `TIDEWIRE__${key.replaceAll(".", "__").toUpperCase()}`;

/** Returns the configuration that a draft describes: both lists, and the options of their members. */
export function toToml(all: ConfigValue[], draft: AccessDraft): string {
  const blocks = [
    `[access]\nproviders = ${listed(draft.providers)}\nsources = ${listed(draft.sources)}`,
    ...draft.providers.map((kind) => block(all, draft, sectionOf(kind, false), kind)),
    ...draft.sources.map((kind) => block(all, draft, sectionOf(kind, true), kind)),
  ];
  return `${blocks.filter(Boolean).join("\n\n")}\n`;
}

function block(all: ConfigValue[], draft: AccessDraft, section: string, kind: string): string {
  if (isLocal(kind)) return "";
  const options = optionsOf(all, section);
  const text = (one: AccessOption) => draft.values[one.key] ?? one.text;
  const isWritten = (one: AccessOption) => !one.pinnedBy && (!one.isDefault || text(one) !== one.text);
  const lines = [`[${section}]`];
  for (const one of options) {
    if (one.type === "secret") lines.push(...secretLines(one));
    else if (isWritten(one) && one.type !== "table" && one.type !== "secrets")
      lines.push(`${one.name} = ${literal(one, text(one))}`);
  }
  for (const one of options) {
    const entries = linesOf(text(one));
    if (one.type === "table" && isWritten(one) && entries.length) {
      lines.push("", `[${one.key}]`, ...entries.map(entryLine));
    }
    if (one.type === "secrets" && isWritten(one) && entries.length) {
      lines.push("", `[${one.key}]`, ...entries.map((name) => `# ${bareOrQuoted(name)} = "the secret value"`));
    }
  }
  return lines.length > 1 ? lines.join("\n") : "";
}

/** A secret is never part of the text. */
function secretLines(one: AccessOption): string[] {
  if (one.pinnedBy || !one.isDefault) return [];
  const variable = variableOf(one.key);
  return [`# ${one.name}: set ${variable}, or ${variable}_FILE to the path of a file`];
}

function entryLine(line: string): string {
  const at = line.indexOf("=");
  const [name, value] = at < 0 ? [line, ""] : [line.slice(0, at).trim(), line.slice(at + 1).trim()];
  return `${bareOrQuoted(name)} = ${quoted(value)}`;
}

function literal(one: AccessOption, text: string): string {
  if (one.type === "list") return listed(linesOf(text));
  // Another text is quoted, so that the check names the option.
  if (one.type === "number" && /^-?\d+$/.test(text.trim())) return text.trim();
  if (one.type === "boolean" && (text === "true" || text === "false")) return text;
  return quoted(text);
}

/** Moves an item of a list. */
export function moved<T>(list: T[], index: number, by: number): T[] {
  const next = [...list];
  const [item] = next.splice(index, 1);
  if (item !== undefined) next.splice(index + by, 0, item);
  return next;
}
