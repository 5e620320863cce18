import { describe, expect, it } from "vitest";
import { completions, eventIn, filtersIn, mistake, tokens, topicFor } from "./sql";

describe("tokens", () => {
  const kinds = (sql: string) =>
    tokens(sql)
      .filter(({ text }) => text.trim() !== "")
      .map(({ kind, text }) => `${kind}:${text}`);

  it("each_kind", () => {
    expect(kinds('select upper(payload.x), 1.5e3 FROM "a/#" -- why')).toEqual([
      "keyword:select",
      "function:upper",
      "plain:(",
      "plain:payload.x",
      "plain:)",
      "plain:,",
      "number:1.5e3",
      "keyword:FROM",
      'text:"a/#"',
      "comment:-- why",
    ]);
  });

  it("text_of_all_tokens_is_the_source", () => {
    const sql = "SELECT 'it\\'s -- no comment', \"open\nFROM 'x";
    expect(
      tokens(sql)
        .map(({ text }) => text)
        .join(""),
    ).toBe(sql);
    expect(tokens(sql).some(({ kind }) => kind === "comment")).toBe(false);
  });
});

describe("completions", () => {
  const at = (sql: string) => completions(sql, sql.length);

  it("words_begin_with_the_typed_letters_in_any_case", () => {
    expect(at("sel")).toEqual({ from: 0, words: ["SELECT"] });
    expect(at("SELECT cli").words).toContain("clientid");
    expect(at("SELECT cli").from).toBe(7);
  });

  it("complete_words_texts_and_spaces_offer_nothing", () => {
    expect(at("SELECT").words).toEqual([]);
    expect(at("SELECT ").words).toEqual([]);
    expect(at("SELECT 'cli").words).toEqual([]);
  });

  it("dollar_in_a_quoted_name_offers_events", () => {
    const { from, words } = at('SELECT * FROM "$ev');
    expect(from).toBe(15);
    expect(words).toContain("$events/client/connected");
    expect(words.every((word) => word.startsWith("$ev"))).toBe(true);
  });

  it("are_at_most_eight", () => {
    expect(at("SELECT s").words).toHaveLength(8);
  });
});

describe("sources", () => {
  it("filters_and_events_are_separate", () => {
    expect(filtersIn('SELECT * FROM "a/+" AS m, "$events/client/connected","b" WHERE x = "c"')).toEqual(["a/+", "b"]);
    expect(eventIn('SELECT * FROM "$events/client/connected"')).toBe("$events/client/connected");
    expect(eventIn('SELECT * FROM "a", "$events/client/connected"')).toBeUndefined();
    expect(eventIn("SELECT 1")).toBeUndefined();
  });

  it("topic_for_a_filter_has_no_wildcards", () => {
    expect(topicFor('SELECT * FROM "site/+/temp/#"')).toBe("site/1/temp/1");
    expect(topicFor("SELECT")).toBe("demo/1");
  });
});

describe("mistake", () => {
  it("position_and_text_come_from_the_message", () => {
    expect(mistake("rule x: line 2, column 14: unknown function `f`\nsee docs")).toEqual({
      line: 2,
      column: 14,
      text: "unknown function `f`\nsee docs",
    });
    expect(mistake("no position")).toBeUndefined();
  });
});
