import { describe, expect, it } from "vitest";
import { parse, row } from "./csv";

const fields = (text: string, needed = ["name"]) => parse(text, needed).map((one) => one.fields);

describe("parse", () => {
  it("reads_columns_by_name_in_any_order_and_case", () => {
    expect(fields("Label, NAME\nHall,d1\n")).toEqual([{ label: "Hall", name: "d1" }]);
  });

  it.each([",", ";", "\t"])("separator %j", (separator) => {
    expect(fields(`name${separator}label\nd1${separator}a\n`)).toEqual([{ name: "d1", label: "a" }]);
  });

  it("quoted_cells_contain_separators_quotes_and_line_ends", () => {
    expect(fields('name,label\nd1,"a, ""b""\nc"\nd2,x')).toEqual([
      { name: "d1", label: 'a, "b"\nc' },
      { name: "d2", label: "x" },
    ]);
  });

  it("rows_know_the_line_of_the_file", () => {
    const rows = parse('name\r\n"a\r\nb"\r\n\r\nc\r\n', ["name"]);
    expect(rows.map(({ line, fields: { name } }) => [line, name])).toEqual([
      [2, "a\r\nb"],
      [5, "c"],
    ]);
  });

  it("byte_order_mark_and_empty_rows_are_ignored", () => {
    expect(fields('\uFEFF"name",label\n,\nd1\n\n')).toEqual([{ name: "d1", label: "" }]);
  });

  it("errors_name_the_missing_columns", () => {
    expect(() => parse("", ["name"])).toThrow("The file is empty.");
    expect(() => parse("a,b\n", ["name", "b", "type"])).toThrow(
      "The first line has no column name, type. Its columns are a, b.",
    );
  });
});

describe("row", () => {
  it("quotes_only_where_needed_and_is_read_back", () => {
    const cells = ["plain", 'a "b"', "x,y", "two\r\nlines", undefined, 0];
    expect(row(cells)).toBe('plain,"a ""b""","x,y","two\r\nlines",,0');
    expect(fields(`name,b,c,d,e,f\n${row(cells)}\n`)).toEqual([
      { name: "plain", b: 'a "b"', c: "x,y", d: "two\r\nlines", e: "", f: "0" },
    ]);
  });
});
