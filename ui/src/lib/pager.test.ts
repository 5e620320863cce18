import { expect, it } from "vitest";
import { Pager } from "./pager.svelte";

it("pages_are_remembered_by_their_cursors", () => {
  const pager = new Pager();
  expect([pager.number, pager.cursor]).toEqual([1, undefined]);
  pager.next("b");
  pager.next("c");
  expect([pager.number, pager.cursor]).toEqual([3, "c"]);
  pager.back();
  expect([pager.number, pager.cursor]).toEqual([2, "b"]);
  pager.first();
  expect([pager.number, pager.cursor]).toEqual([1, undefined]);
});

it("there_is_no_page_after_the_last_or_before_the_first", () => {
  const pager = new Pager();
  for (const cursor of [undefined, null, ""]) pager.next(cursor);
  pager.back();
  expect([pager.number, pager.cursor]).toEqual([1, undefined]);
});
