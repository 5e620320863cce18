// One request to the API: the token goes along, and what is refused becomes an error that says what the server said.
import { session } from "../lib/session.svelte";
import type { Problem } from "./generated";

export type Query = Record<string, string | number | boolean | undefined>;

export interface RequestOptions {
  body?: unknown;
  query?: Query | undefined;
  /** The tag of what is to be changed; refused with 412 if it is something else by now. */
  ifMatch?: string | undefined;
  signal?: AbortSignal | undefined;
  /** Something that takes long by itself. */
  timeoutMs?: number;
}

/** What is read comes at once, or the server is not there: a connection that has broken says nothing of itself. What is done may take its time. */
const TIMEOUT_MS = { read: 15_000, other: 120_000 };

/** Who asks: the login of the console, or one of the device platform. */
export interface Asker {
  headers: Record<string, string>;
  /** The login has ended. */
  ended: () => void;
}

/** Why not, in the server's words. */
export class Refused extends Error {
  constructor(readonly status: number, readonly problem: Partial<Problem & PlatformProblem>) {
    super(sentence(problem, status));
    this.name = "Refused";
  }
}

/** Of the device platform. */
interface PlatformProblem { message: string }

function sentence(problem: Partial<Problem & PlatformProblem>, status: number): string {
  const detail = problem.detail ?? problem.message ?? `The server answered with status ${status}.`;
  const where = problem.field ? `${problem.field}: ` : "";
  const expected = problem.expected ? ` Expected: ${problem.expected}.` : "";
  const errors = problem.errors?.map((error) => `${error.field}: ${error.detail}`).join("; ");
  return `${where}${detail}${expected}${errors ? ` ${errors}` : ""}`;
}

/** A segment of a path. */
export function part(text: string): string {
  // However it is written, an address means by them the place above.
  if (text === "." || text === "..") throw new Refused(0, { detail: `No browser can ask for something that is called “${text}”.` });
  return encodeURIComponent(text);
}

export async function request<T>(method: string, path: string, options: RequestOptions = {}): Promise<T> {
  // Nothing is asked in the name of nobody, but to become somebody.
  if (session.hasEnded && path !== "/api/v1/login") throw new Refused(401, { detail: "Nobody is logged in." });
  const headers: Record<string, string> = session.token && !session.hasEnded ? { Authorization: `Bearer ${session.token}` } : {};
  // A login that has ended, not a wrong password.
  return requestAs<T>({ headers, ended: () => { if (session.token) session.ended(); } }, method, path, options);
}

export async function requestAs<T>(asker: Asker, method: string, path: string, options: RequestOptions = {}): Promise<T> {
  const headers = { ...asker.headers };
  const timeout = AbortSignal.timeout(options.timeoutMs ?? (method === "GET" ? TIMEOUT_MS.read : TIMEOUT_MS.other));
  const init: RequestInit = { method, headers, signal: options.signal ? AbortSignal.any([options.signal, timeout]) : timeout };
  if (options.body !== undefined) {
    headers["Content-Type"] = "application/json";
    init.body = JSON.stringify(options.body);
  }
  if (options.ifMatch !== undefined) headers["If-Match"] = options.ifMatch;
  const answer = await reach(path + search(options.query), init);
  if (answer.status === 401) asker.ended();
  if (!answer.ok) throw new Refused(answer.status, (await answer.json().catch(() => ({}))) as Partial<Problem & PlatformProblem>);
  if (answer.status === 204) return undefined as T;
  const isJson = answer.headers.get("Content-Type")?.includes("json") ?? false;
  const text = await answer.text().catch(unreachable);
  const value = (isJson && text ? JSON.parse(text) : text) as T;
  const tag = answer.headers.get("ETag");
  // A proxy that compresses calls it weak; it is the same.
  if (tag && typeof value === "object" && value !== null) tags.set(value, tag.replace(/^W\//, ""));
  return value;
}

const tags = new WeakMap<object, string>();

/** The entity tag that an answer came with. */
export function tagOf(answer: object | null | undefined): string | undefined {
  return answer ? tags.get(answer) : undefined;
}

function reach(target: string, init: RequestInit): Promise<Response> {
  return fetch(target, init).catch(unreachable);
}

function unreachable(error: unknown): never {
  if (error instanceof DOMException && error.name === "AbortError") throw error;
  throw new Refused(0, { detail: "The server does not answer." });
}

function search(query: Query | undefined): string {
  const pairs = Object.entries(query ?? {}).filter(([, value]) => value !== undefined && value !== "");
  const text = new URLSearchParams(pairs.map(([name, value]) => [name, String(value)])).toString();
  return text ? `?${text}` : "";
}
