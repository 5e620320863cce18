import { beforeEach, expect, it } from "vitest";
import { nameAt, router, to, toNamed } from "./router.svelte";

beforeEach(() => router.setParameters({ text: "", page: "" }));

it("addresses_escape_their_segments", () => {
  expect(to("clients", "a/b c?#%")).toBe("#/clients/a%2Fb%20c%3F%23%25");
});

it("an_object_named_new_is_not_the_form_for_a_new_object", () => {
  expect(toNamed("rules", "new")).toBe("#/rules/.new");
  expect(nameAt(".new")).toBe("new");
  expect(nameAt("other")).toBe("other");
});

it("parameters_are_added_changed_and_removed", () => {
  router.setParameters({ text: "a b&c", page: "2" });
  expect(router.query.get("text")).toBe("a b&c");
  router.setParameters({ text: "", page: "3" });
  expect([...router.query]).toEqual([["page", "3"]]);
  expect(location.hash).toBe("#/?page=3");
});
