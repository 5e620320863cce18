// Sends one API request with the login token. Turns a refusal into an error with the server's explanation.
import { session } from "../lib/session.svelte";
import type { Problem } from "./generated";

export type Query = Record<string, string | number | boolean | undefined>;

export interface RequestOptions {
  body?: unknown;
  query?: Query | undefined;
  /** Entity tag of the version to change. The server answers 412 if the object has changed since. */
  ifMatch?: string | undefined;
  signal?: AbortSignal | undefined;
  /** Replaces the default timeout, for slow requests. */
  timeoutMs?: number;
}

/**
 * Milliseconds until a request fails. Reads are fast: a missing answer means a broken connection. Changes may take
 * longer.
 */
const TIMEOUT_MS = { read: 15_000, other: 120_000 };

/** Requests of the login page. Others are not sent after the login has ended. */
const WITHOUT_LOGIN = ["/api/v1/login", "/api/v1/oidc"];

/** The login that a request uses: the console's own, or one of the device platform. */
export interface Login {
  headers: Record<string, string>;
  /** Called when the server no longer accepts the login. */
  ended: () => void;
}

/** A refused or failed request, with the server's explanation. Status 0: the server did not answer. */
export class RequestError extends Error {
  constructor(
    readonly status: number,
    readonly problem: Partial<Problem & PlatformProblem>,
  ) {
    super(sentence(problem, status));
    this.name = "RequestError";
  }
}

/** The error body of the device platform. */
interface PlatformProblem {
  message: string;
}

function sentence(problem: Partial<Problem & PlatformProblem>, status: number): string {
  const detail = problem.detail ?? problem.message ?? `The server answered with status ${status}.`;
  const where = problem.field ? `${problem.field}: ` : "";
  const expected = problem.expected ? ` Expected: ${problem.expected}.` : "";
  const errors = problem.errors?.map((error) => `${error.field}: ${error.detail}`).join("; ");
  return `${where}${detail}${expected}${errors ? ` ${errors}` : ""}`;
}

/** Encodes one path segment. */
export function part(text: string): string {
  // Browsers resolve these segments even when they are encoded.
  if (text === "." || text === "..")
    throw new RequestError(0, { detail: `Browsers cannot request an object with the name “${text}”.` });
  return encodeURIComponent(text);
}

export async function request<T>(method: string, path: string, options: RequestOptions = {}): Promise<T> {
  if (session.hasEnded && !WITHOUT_LOGIN.includes(path))
    throw new RequestError(401, { detail: "You are not logged in." });
  const headers: Record<string, string> =
    session.token && !session.hasEnded ? { Authorization: `Bearer ${session.token}` } : {};
  // A 401 without a token is a wrong password, not an expired login.
  return requestAs<T>(
    {
      headers,
      ended: () => {
        if (session.token) session.ended();
      },
    },
    method,
    path,
    options,
  );
}

export async function requestAs<T>(
  login: Login,
  method: string,
  path: string,
  options: RequestOptions = {},
): Promise<T> {
  const headers = { ...login.headers };
  const timeout = AbortSignal.timeout(options.timeoutMs ?? (method === "GET" ? TIMEOUT_MS.read : TIMEOUT_MS.other));
  const init: RequestInit = {
    method,
    headers,
    signal: options.signal ? AbortSignal.any([options.signal, timeout]) : timeout,
  };
  if (options.body !== undefined) {
    headers["Content-Type"] = "application/json";
    init.body = JSON.stringify(options.body);
  }
  if (options.ifMatch !== undefined) headers["If-Match"] = options.ifMatch;
  const answer = await reach(path + search(options.query), init);
  if (answer.status === 401) login.ended();
  if (!answer.ok)
    throw new RequestError(
      answer.status,
      (await answer.json().catch(() => ({}))) as Partial<Problem & PlatformProblem>,
    );
  if (answer.status === 204) return undefined as T;
  const isJson = answer.headers.get("Content-Type")?.includes("json") ?? false;
  const text = await answer.text().catch(unreachable);
  const value = (isJson && text ? JSON.parse(text) : text) as T;
  const tag = answer.headers.get("ETag");
  // Compressing proxies mark the tag as weak. It still names the same version.
  if (tag && typeof value === "object" && value !== null) tags.set(value, tag.replace(/^W\//, ""));
  return value;
}

const tags = new WeakMap<object, string>();

/** Returns the entity tag that came with an answer. */
export function tagOf(answer: object | null | undefined): string | undefined {
  return answer ? tags.get(answer) : undefined;
}

function reach(target: string, init: RequestInit): Promise<Response> {
  return fetch(target, init).catch(unreachable);
}

function unreachable(error: unknown): never {
  if (error instanceof DOMException && error.name === "AbortError") throw error;
  throw new RequestError(0, { detail: "The server does not answer." });
}

function search(query: Query | undefined): string {
  const pairs = Object.entries(query ?? {}).filter(([, value]) => value !== undefined && value !== "");
  const text = new URLSearchParams(pairs.map(([name, value]) => [name, String(value)])).toString();
  return text ? `?${text}` : "";
}
