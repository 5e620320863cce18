import { describe, expect, it } from "vitest";
import { filled, markdown } from "./markdown";

const text = (words: string) => ({ kind: "text", text: words });

describe("blocks", () => {
  it("each_kind", () => {
    const source =
      "# Hall #\r\n\r\n- a\n* b\n\n1. one\n2) two\n\n> said\n> twice\n\n```\n# code\n```\n\n---\nplain\ntext";
    expect(markdown(source)).toEqual([
      { kind: "heading", level: 1, inlines: [text("Hall")] },
      { kind: "list", isNumbered: false, items: [[text("a")], [text("b")]] },
      { kind: "list", isNumbered: true, items: [[text("one")], [text("two")]] },
      { kind: "quote", inlines: [text("said\ntwice")] },
      { kind: "code", text: "# code" },
      { kind: "rule" },
      { kind: "paragraph", inlines: [text("plain\ntext")] },
    ]);
  });

  it("table_needs_a_separator_line", () => {
    expect(markdown("| a | b |\n|---|:-:|\n| 1 | 2 |")).toEqual([
      { kind: "table", head: [[text("a")], [text("b")]], rows: [[[text("1")], [text("2")]]] },
    ]);
    expect(markdown("| a |\n| 1 |").map(({ kind }) => kind)).toEqual(["paragraph", "paragraph"]);
  });

  it("unclosed_code_ends_with_the_text", () => {
    expect(markdown("```\nx")).toEqual([{ kind: "code", text: "x" }]);
  });
});

describe("inlines", () => {
  const inlines = (source: string) => {
    const [block] = markdown(source);
    return block?.kind === "paragraph" ? block.inlines : undefined;
  };

  it("emphasis_code_and_line_breaks", () => {
    expect(inlines("a **b** _c_ `d*e*`  \nf")).toEqual([
      text("a "),
      { kind: "strong", text: "b" },
      text(" "),
      { kind: "emphasis", text: "c" },
      text(" "),
      { kind: "code", text: "d*e*" },
      { kind: "break" },
      text("f"),
    ]);
  });

  it("underscores_in_names_and_html_stay_text", () => {
    expect(inlines("snake_case_name")).toEqual([text("snake_case_name")]);
    expect(inlines("<b onclick=x>a</b>")).toEqual([text("<b onclick=x>a</b>")]);
  });

  it("only_web_mail_and_page_links_are_links", () => {
    expect(inlines("[x](https://example.com)")).toEqual([{ kind: "link", text: "x", href: "https://example.com" }]);
    expect(inlines("[x](#/home)")).toEqual([{ kind: "link", text: "x", href: "#/home" }]);
    for (const href of ["JAVASCRIPT:alert`1`", "data:text/html,x", "//example.com", "file:///etc"])
      expect(inlines(`[x](${href})`), href).toEqual([text("x")]);
  });
});

describe("placeholders", () => {
  it("values_have_the_wanted_decimals", () => {
    const values: Record<string, unknown> = { temperature: 21.456, name: "Hall", zero: 0 };
    const value = (key: string) => values[key];
    expect(filled("${name}: ${temperature:1} °C, ${ temperature }", value)).toBe("Hall: 21.5 °C, 21.456");
    expect(filled("${zero:2} ${missing} ${name:1} $name", value)).toBe("0.00 – Hall $name");
  });
});
