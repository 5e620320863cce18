// Rule SQL for the editor: tokens for colours, words for completion, and the position of an error.

import { COLUMNS, EVENTS, FUNCTIONS } from "./words";

export type TokenKind = "keyword" | "function" | "text" | "number" | "comment" | "plain";
export interface Token {
  kind: TokenKind;
  text: string;
}
export interface Mistake {
  line: number;
  column: number;
  text: string;
}

const KEYWORDS = [
  "SELECT",
  "FROM",
  "WHERE",
  "AS",
  "AND",
  "OR",
  "NOT",
  "IN",
  "CASE",
  "WHEN",
  "THEN",
  "ELSE",
  "END",
  "FOREACH",
  "DO",
  "INCASE",
  "DIV",
  "MOD",
  "TRUE",
  "FALSE",
  "NULL",
  "UNDEFINED",
];

const PATTERN =
  /(--[^\n]*)|('(?:[^'\\]|\\.)*'?|"[^"]*"?)|(\b\d+(?:\.\d+)?(?:[eE][+-]?\d+)?\b)|([A-Za-z_][\w.]*)|([\s\S])/g;
const keywords = new Set(KEYWORDS);
const functions = new Set(FUNCTIONS);

export function tokens(sql: string): Token[] {
  return [...sql.matchAll(PATTERN)].map(([text, comment, quoted, number, word]): Token => {
    if (comment !== undefined) return { kind: "comment", text };
    if (quoted !== undefined) return { kind: "text", text };
    if (number !== undefined) return { kind: "number", text };
    if (word === undefined) return { kind: "plain", text };
    return { kind: keywords.has(word.toUpperCase()) ? "keyword" : functions.has(word) ? "function" : "plain", text };
  });
}

/** Parses the server's error format `line 1, column 26: …`. */
export function mistake(message: string): Mistake | undefined {
  const found = /line (\d+), column (\d+): ([\s\S]*)/.exec(message);
  return found ? { line: Number(found[1]), column: Number(found[2]), text: found[3] ?? "" } : undefined;
}

/** Returns the word before the cursor and its completions. A name can be both a column and a function. */
export function completions(sql: string, cursor: number): { from: number; words: string[] } {
  const event = /"(\$[\w/]*)$/.exec(sql.slice(0, cursor))?.[1];
  if (event !== undefined)
    return {
      from: cursor - event.length,
      words: EVENTS.map(({ name }) => name).filter((name) => name.startsWith(event) && name !== event),
    };
  const word = /[A-Za-z_][\w.]*$/.exec(sql.slice(0, cursor))?.[0] ?? "";
  const from = cursor - word.length;
  if (word.length < 1 || isQuoted(sql, from)) return { from, words: [] };
  const begins = (one: string) =>
    one.toLowerCase().startsWith(word.toLowerCase()) && one.toLowerCase() !== word.toLowerCase();
  return { from, words: [...new Set([...KEYWORDS, ...COLUMNS, ...FUNCTIONS])].filter(begins).slice(0, 8) };
}

function isQuoted(sql: string, at: number): boolean {
  let quote = "";
  for (const letter of sql.slice(0, at)) {
    if (quote ? letter === quote : letter === "'" || letter === '"') quote = quote ? "" : letter;
  }
  return quote !== "";
}

/** Returns the names in FROM, in order. */
const sources = (sql: string): string[] =>
  [...(/\bFROM\s+((?:"[^"]*"(?:\s+AS\s+\w+)?\s*,?\s*)+)/i.exec(sql)?.[1] ?? "").matchAll(/"([^"]*)"/g)].map(
    ([, name]) => name ?? "",
  );

const isEvent = (name: string): boolean => /^\$(events|bridges|sources)\//.test(name);

/** Returns the event of a rule, or undefined for a rule on messages. */
export const eventIn = (sql: string): string | undefined => {
  const all = sources(sql);
  return all.every(isEvent) ? all[0] : undefined;
};

export const filtersIn = (sql: string): string[] => sources(sql).filter((name) => name !== "" && !isEvent(name));

/** Returns a topic that matches the first filter in FROM. */
export function topicFor(sql: string): string {
  const filter = filtersIn(sql)[0] ?? "demo/#";
  return filter
    .split("/")
    .map((level) => (level === "#" || level === "+" ? "1" : level))
    .join("/");
}
