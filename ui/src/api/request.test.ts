import { afterEach, describe, expect, it, vi } from "vitest";
import { session } from "../lib/session.svelte";
import { json, problem, server } from "../testing/server";
import { part, request, RequestError, tagOf } from "./request";

afterEach(() => {
  vi.unstubAllGlobals();
  session.end();
});

const login = { token: "t", user: "admin", role: "admin", expires_at_unix_ms: Date.now() + 60_000 } as const;

describe("request", () => {
  it("sends_login_query_body_and_version", async () => {
    session.begin({ ...login, has_first_password: false, must_change_password: false, must_set_up_totp: false });
    const asked = server(() => json({}));
    await request("PUT", "/api/v1/rules/r", {
      query: { text: "a&b", limit: 5, none: undefined, empty: "", off: false },
      body: { id: 1 },
      ifMatch: '"3"',
    });
    expect(asked).toMatchObject([
      {
        method: "PUT",
        path: "/api/v1/rules/r",
        headers: { Authorization: "Bearer t", "Content-Type": "application/json", "If-Match": '"3"' },
        body: { id: 1 },
      },
    ]);
    expect([...(asked[0]?.query ?? [])]).toEqual([
      ["text", "a&b"],
      ["limit", "5"],
      ["off", "false"],
    ]);
  });

  it("a_rejected_login_ends_and_stops_further_requests", async () => {
    session.begin({ ...login, has_first_password: false, must_change_password: false, must_set_up_totp: false });
    const asked = server(() => problem(401, { detail: "The login has expired." }));
    await expect(request("GET", "/api/v1/node")).rejects.toThrow("The login has expired.");
    expect(session.hasEnded).toBe(true);
    await expect(request("GET", "/api/v1/node")).rejects.toThrow("You are not logged in.");
    expect(asked).toHaveLength(1);
  });

  it("the_version_of_an_answer_is_remembered_without_its_weak_mark", async () => {
    server(() => json({ id: 1 }, { ETag: 'W/"7"' }));
    expect(tagOf(await request<object>("GET", "/x"))).toBe('"7"');
    expect(tagOf({})).toBeUndefined();
  });

  it("answers_without_content_and_as_text", async () => {
    server(() => new Response(null, { status: 204 }));
    expect(await request("DELETE", "/x")).toBeUndefined();
    server(() => new Response("a 1", { headers: { "Content-Type": "text/plain" } }));
    expect(await request("GET", "/metrics")).toBe("a 1");
  });
});

describe("errors", () => {
  it.each([
    [{ detail: "Unknown action." }, "Unknown action."],
    [{ message: "Device not found" }, "Device not found"],
    [{ field: "sql", detail: "Syntax error.", expected: "FROM" }, "sql: Syntax error. Expected: FROM."],
    [
      {
        detail: "Invalid.",
        errors: [
          { field: "a", detail: "no" },
          { field: "b", detail: "bad" },
        ],
      },
      "Invalid. a: no; b: bad",
    ],
    ["no JSON object", "The server answered with status 400."],
  ])("%j", async (body, text) => {
    server(() => problem(400, body));
    const error = await request("GET", "/x").catch((one: unknown) => one);
    expect(error).toBeInstanceOf(RequestError);
    expect(error).toMatchObject({ status: 400, message: text });
  });

  it("a_server_that_does_not_answer_has_status_0", async () => {
    vi.stubGlobal("fetch", () => Promise.reject(new TypeError("failed")));
    await expect(request("GET", "/x")).rejects.toMatchObject({ status: 0, message: "The server does not answer." });
  });

  it("a_cancelled_request_is_no_server_error", async () => {
    vi.stubGlobal("fetch", () => Promise.reject(new DOMException("cancelled", "AbortError")));
    await expect(request("GET", "/x")).rejects.toMatchObject({ name: "AbortError" });
  });
});

describe("path segments", () => {
  it("are_escaped_and_dots_are_refused", () => {
    expect(part("a/b?c")).toBe("a%2Fb%3Fc");
    expect(part("...")).toBe("...");
    expect(() => part("..")).toThrow("Browsers cannot request");
    expect(() => part(".")).toThrow("Browsers cannot request");
  });
});
