import { expect, it } from "vitest";
import { valueOf } from "./metrics";
import { dropOf, endOf } from "./reasons";

it("known_reasons_are_explained_and_linked", () => {
  expect(dropOf("offline_qos0")).toMatchObject({
    title: "Offline QoS 0",
    about: expect.stringContaining("mqtt.queue_qos0") as string,
    href: "#/configuration?text=mqtt.queue_qos0",
  });
  expect(endOf("taken_over")).toContain("same client id");
});

it("unknown_reasons_show_their_name", () => {
  expect(dropOf("new_reason")).toEqual({ title: "New reason", about: "" });
  expect(endOf("new_reason")).toBe("");
});

it("metric_is_summed_over_its_labels", () => {
  const text = '# HELP drops x\ndrops{reason="a} b"} 2\ndrops{reason="c"} 3.5 1700000000\ndrops_total 100\nup 1\n';
  expect(valueOf(text, "drops")).toBe(5.5);
  expect(valueOf(text, "up")).toBe(1);
  expect(valueOf(text, "gone")).toBeUndefined();
});
