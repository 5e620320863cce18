// One request to the API: the token goes along, and what is refused becomes an error that says what the server said.
import { session } from "../lib/session.svelte";
import type { Problem } from "./generated";

export type Query = Record<string, string | number | boolean | undefined>;

export interface RequestOptions {
  body?: unknown;
  query?: Query | undefined;
  signal?: AbortSignal | undefined;
}

/** Why not, in the server's words. */
export class Refused extends Error {
  constructor(readonly status: number, readonly problem: Partial<Problem>) {
    super(sentence(problem, status));
    this.name = "Refused";
  }
}

function sentence(problem: Partial<Problem>, status: number): string {
  const detail = problem.detail ?? `The server answered with status ${status}.`;
  const where = problem.field ? `${problem.field}: ` : "";
  const expected = problem.expected ? ` Expected: ${problem.expected}.` : "";
  const errors = problem.errors?.map((error) => `${error.field}: ${error.detail}`).join("; ");
  return `${where}${detail}${expected}${errors ? ` ${errors}` : ""}`;
}

/** A segment of a path. */
export const part = (text: string): string => encodeURIComponent(text);

export async function request<T>(method: string, path: string, options: RequestOptions = {}): Promise<T> {
  const headers: Record<string, string> = {};
  if (session.token) headers["Authorization"] = `Bearer ${session.token}`;
  const init: RequestInit = { method, headers };
  if (options.signal) init.signal = options.signal;
  if (options.body !== undefined) {
    headers["Content-Type"] = "application/json";
    init.body = JSON.stringify(options.body);
  }
  const answer = await reach(path + search(options.query), init);
  if (!answer.ok) throw await refusal(answer);
  if (answer.status === 204) return undefined as T;
  const isJson = answer.headers.get("Content-Type")?.includes("json") ?? false;
  return (isJson ? await answer.json() : await answer.text()) as T;
}

async function reach(target: string, init: RequestInit): Promise<Response> {
  try {
    return await fetch(target, init);
  } catch (error) {
    if (error instanceof DOMException && error.name === "AbortError") throw error;
    throw new Refused(0, { detail: "The server does not answer." });
  }
}

async function refusal(answer: Response): Promise<Refused> {
  const problem = (await answer.json().catch(() => ({}))) as Partial<Problem>;
  // A login that has ended, not a wrong password.
  if (answer.status === 401 && session.token) session.ended();
  return new Refused(answer.status, problem);
}

function search(query: Query | undefined): string {
  const pairs = Object.entries(query ?? {}).filter(([, value]) => value !== undefined && value !== "");
  const text = new URLSearchParams(pairs.map(([name, value]) => [name, String(value)])).toString();
  return text ? `?${text}` : "";
}
