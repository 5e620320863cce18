import { expect, it } from "vitest";
import { diff } from "./diff";

const marked = (before: string, after: string): string =>
  diff(before, after)
    .map(({ kind, text }) => `${{ same: " ", removed: "-", new: "+" }[kind]}${text}`)
    .join("\n");

it("equal_texts_have_no_changes", () => {
  expect(marked("a\nb", "a\nb")).toBe(" a\n b");
});

it("changed_line_is_removed_before_the_new_one", () => {
  expect(marked("a\nb\nc", "a\nB\nc")).toBe(" a\n-b\n+B\n c");
});

it("longest_common_part_stays", () => {
  expect(marked("a\nb\nc\nd", "b\nc\nd\na")).toBe("-a\n b\n c\n d\n+a");
});

it("lines_at_the_end_are_added_and_removed", () => {
  expect(marked("a", "a\nb\nc")).toBe(" a\n+b\n+c");
  expect(marked("a\nb", "a")).toBe(" a\n-b");
  expect(marked("", "a")).toBe("-\n+a");
});
