import { describe, expect, test } from "vitest";
import type { ConfigValue } from "../api/generated";
import { moved, optionsOf, presentDraft, textOf, toToml } from "./accessoptions";

const value = (key: string, shown: string, type = "string", more: Partial<ConfigValue> = {}): ConfigValue => ({
  key,
  value: shown,
  origin: "default",
  is_default: true,
  is_pinned: false,
  needs_restart: true,
  description: `About ${key}.`,
  type,
  choices: [],
  fixed_reason: null,
  is_runtime: false,
  value_in_force: null,
  ...more,
});

const set = { is_default: false, origin: "/etc/tidewire/tidewire.toml:3" };
const configuration = [
  value("access.providers", '["users"]', "list of word", set),
  value("access.sources", '["rules"]', "list of word"),
  value("access.http.url", '"http://auth/"', "string", set),
  value("access.http.verify", "true", "boolean"),
  value("access.http.timeout", '"5s"', "duration"),
  value("access.http.body.username", '"${username}"', "string", set),
  value("access.http.headers.authorization", '"***"', "secret string", set),
  value("access.redis.servers", '["127.0.0.1:6379"]', "list of string"),
  value("access.redis.password", '""', "secret string"),
  value("access.redis.database", "0", "integer"),
  value("access.source.redis.servers", '["127.0.0.1:6379"]', "list of string"),
  value("access.source.redis.password", '"***"', "secret string", set),
];

describe("values of the configuration", () => {
  test.each([
    ['"a \\"b\\" \\\\ c"', 'a "b" \\ c'],
    [`'{"username": "x"}'`, '{"username": "x"}'],
    ['["a", "b,c"]', "a\nb,c"],
    ["[]", ""],
    ["17", "17"],
    ["true", "true"],
    ['""', ""],
  ])("%s becomes text", (shown, text) => expect(textOf(shown)).toBe(text));

  test("tables are options with lines", () => {
    const options = optionsOf(configuration, "access.http");
    expect(options.map((one) => [one.name, one.type, one.text])).toEqual([
      ["url", "text", "http://auth/"],
      ["verify", "boolean", "true"],
      ["timeout", "text", "5s"],
      ["body", "table", "username = ${username}"],
      ["headers", "secrets", "authorization"],
    ]);
  });
});

describe("the generated configuration", () => {
  test("of the present state has only the lists", () => {
    const toml = toToml(configuration, presentDraft(configuration));
    expect(toml).toBe('[access]\nproviders = ["users"]\nsources = ["rules"]\n');
  });

  test("has changed and set options, and no secrets", () => {
    const draft = {
      providers: ["http", "redis", "users"],
      sources: ["redis", "rules"],
      values: {
        "access.http.timeout": "1s",
        "access.http.verify": "false",
        "access.http.body": "username = ${username}\npass.word = a = b",
        "access.redis.servers": "r1:6379\n r2:6379 ",
        "access.redis.database": "3",
        "access.redis.password": "sesame",
        "access.source.redis.password": "sesame",
      },
    };
    const toml = toToml(configuration, draft);
    expect(toml).not.toContain("sesame");
    expect(toml).toBe(`[access]
providers = ["http", "redis", "users"]
sources = ["redis", "rules"]

[access.http]
url = "http://auth/"
verify = false
timeout = "1s"

[access.http.body]
username = "\${username}"
"pass.word" = "a = b"

[access.http.headers]
# authorization = "the secret value"

[access.redis]
servers = ["r1:6379", "r2:6379"]
# password: set TIDEWIRE__ACCESS__REDIS__PASSWORD, or TIDEWIRE__ACCESS__REDIS__PASSWORD_FILE to the path of a file
database = 3
`);
  });

  test("quotes a number that is none", () => {
    const draft = { providers: ["redis"], sources: [], values: { "access.redis.database": "a few" } };
    expect(toToml(configuration, draft)).toContain('database = "a few"');
  });
});

test("items move within their list", () => {
  expect(moved(["a", "b", "c"], 2, -1)).toEqual(["a", "c", "b"]);
  expect(moved(["a", "b"], 0, 1)).toEqual(["b", "a"]);
});
