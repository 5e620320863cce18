// Answers the requests of a test in place of a server.
import { vi } from "vitest";

export interface Asked {
  method: string;
  path: string;
  query: URLSearchParams;
  headers: Record<string, string>;
  body: unknown;
}

/** Replaces `fetch`. Returns the requests in the order in which they arrive. */
export function server(answer: (asked: Asked) => Response): Asked[] {
  const all: Asked[] = [];
  vi.stubGlobal("fetch", (target: string, init: RequestInit) => {
    const { pathname, searchParams } = new URL(target, location.href);
    const asked: Asked = {
      method: init.method ?? "GET",
      path: pathname,
      query: searchParams,
      headers: init.headers as Record<string, string>,
      body: typeof init.body === "string" ? (JSON.parse(init.body) as unknown) : undefined,
    };
    all.push(asked);
    return Promise.resolve(answer(asked));
  });
  return all;
}

export const json = (value: unknown, headers: Record<string, string> = {}): Response =>
  new Response(JSON.stringify(value), { headers: { "Content-Type": "application/json", ...headers } });

export const problem = (status: number, value: unknown): Response =>
  new Response(JSON.stringify(value), { status, headers: { "Content-Type": "application/problem+json" } });
