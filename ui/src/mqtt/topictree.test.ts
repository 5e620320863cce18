import { describe, expect, it } from "vitest";
import type { Publish } from "./codec";
import { byName, STORED_BYTES_MAX, TOPICS_MAX, TopicTree } from "./topictree";

const message = (topic: string, payload = new Uint8Array(), retain = false): Publish => ({
  topic,
  payload,
  retain,
  qos: 0,
  dup: false,
  packetId: 0,
  properties: {},
});

describe("tree", () => {
  it("counts_messages_of_a_topic_and_below", () => {
    const tree = new TopicTree();
    tree.add(message("a/b", Uint8Array.of(1)));
    tree.add(message("a/b", Uint8Array.of(2), true));
    tree.add(message("a"));
    tree.settle();
    expect(tree.topics).toBe(2);
    expect(tree.root.messages).toBe(3);
    expect(tree.find("a")).toMatchObject({ messages: 3, own: { messages: 1 } });
    expect(tree.find("a/b")?.own).toMatchObject({ messages: 2, payload: Uint8Array.of(2), isRetained: true });
    expect(tree.find("a/c")).toBeUndefined();
  });

  it("empty_levels_are_levels", () => {
    const tree = new TopicTree();
    for (const topic of ["/a", "a/", "a"]) tree.add(message(topic));
    tree.settle();
    expect(tree.topics).toBe(3);
    expect(tree.find("/a")?.topic).toBe("/a");
    expect(tree.find("a/")?.topic).toBe("a/");
  });

  it("payload_is_copied_from_the_receive_buffer", () => {
    const tree = new TopicTree();
    const buffer = Uint8Array.of(1, 2, 3);
    tree.add(message("a", buffer.subarray(1)));
    tree.settle();
    buffer.fill(9);
    expect(tree.find("a")?.own?.payload).toEqual(Uint8Array.of(2, 3));
  });

  it("rate_is_the_number_of_messages_since_the_last_tick", () => {
    const tree = new TopicTree();
    tree.add(message("a"));
    tree.add(message("a"));
    tree.settle();
    tree.tick();
    expect(tree.find("a")?.perSecond).toBe(2);
    tree.tick();
    expect(tree.find("a")?.perSecond).toBe(0);
  });
});

describe("search and order", () => {
  it("finds_topics_with_messages_in_any_case_up_to_a_limit", () => {
    const tree = new TopicTree();
    for (const topic of ["Site/one/temp", "site/two/temp", "other"]) tree.add(message(topic));
    tree.settle();
    expect(tree.search("SITE", 5).found.map(({ topic }) => topic)).toEqual(["Site/one/temp", "site/two/temp"]);
    expect(tree.search("site", 1)).toMatchObject({ isMore: true, found: [{ topic: "Site/one/temp" }] });
    expect(tree.search("site", 2).isMore).toBe(false);
    // `site/two` itself has no message.
    expect(tree.search("two", 5).found.map(({ topic }) => topic)).toEqual(["site/two/temp"]);
  });

  it("numbers_in_names_are_compared_as_numbers", () => {
    const tree = new TopicTree();
    for (const topic of ["room-10", "room-2"]) tree.add(message(topic));
    expect(byName(tree.root.children).map(({ name }) => name)).toEqual(["room-2", "room-10"]);
  });
});

describe("limits", () => {
  it("topics_beyond_the_limit_are_counted_but_not_stored", () => {
    const tree = new TopicTree();
    for (let n = 0; n < TOPICS_MAX + 100; n += 1) tree.add(message(`t/${n}`));
    tree.add(message(`t/${TOPICS_MAX}`));
    expect(tree.topics).toBe(TOPICS_MAX);
    expect(tree.leftOut).toBe(101);
    expect(tree.topicsLeftOut).toBeGreaterThanOrEqual(99);
    expect(tree.topicsLeftOut).toBeLessThanOrEqual(101);
    expect(tree.find(`t/${TOPICS_MAX}`)).toBeUndefined();
  });

  it("long_payloads_use_at_most_a_part_of_the_memory", () => {
    const tree = new TopicTree();
    const payload = new Uint8Array(100_000);
    for (let n = 0; n < 1_000; n += 1) tree.add(message(`t/${n}`, payload));
    tree.settle();
    expect(tree.bytes).toBeLessThanOrEqual(STORED_BYTES_MAX);
    expect(tree.find("t/0")?.own).toMatchObject({ payloadBytes: 100_000 });
    expect(tree.find("t/0")?.own?.payload).toHaveLength(64 * 1024);
    expect(tree.find("t/999")?.own?.payload).toHaveLength(256);
    const { bytes } = tree;
    // A short message in place of a long one frees its memory.
    tree.add(message("t/0"));
    tree.settle();
    expect(tree.bytes).toBe(bytes - (64 * 1024 - 256));
  });
});
