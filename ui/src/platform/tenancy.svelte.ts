// The login to the device platform. Devices belong to tenants, and only users of a tenant have them. Who logs in to the console as an administrator of the node is
// let into a tenant as a user that the console makes for this login, and deletes when it ends: nobody needs to think about it. Others log in with a user of theirs.
import { Refused, requestAs, type RequestOptions } from "../api/request";
import { session } from "../lib/session.svelte";
import type { Page, PlatformUser, Tenant } from "./model";

interface Tokens { token: string; refreshToken: string }
interface Kept { admin?: Tokens; own?: Tokens; user?: string; tenant?: { id: string; title: string } }
type Phase = "checking" | "off" | "login" | "choose" | "ready";

const KEY = "tidewire-devices";
const LAST_TENANT = "tidewire-tenant";
const USER_PREFIX = "console-";
const USER_DOMAIN = "@tidewire.invalid";
/** A refresh token holds for seven days; a user whose login cannot go on is garbage. */
const USER_LIFE_MS = 8 * 86_400_000;
const EARLY_MS = 60_000;

class Tenancy {
  #kept = $state.raw<Kept>(load());
  phase = $state<Phase>("checking");
  tenants = $state.raw<Tenant[]>([]);
  #renewed: Promise<Tokens> | undefined;
  /** The key of a screen on a wall, which is all that it has: it reads one dashboard and what is on it. */
  #screen = $state("");
  #identity = 0;
  /** The key of the screen is good for nothing any more. */
  isScreenOver = $state(false);

  get isScreen(): boolean {
    return this.#screen !== "";
  }

  /** Another number: another identity. A connection of the one is none of the other. */
  get identity(): number {
    return this.#identity;
  }

  /** Gives what ends it, unless another screen has begun meanwhile. */
  beScreen(key: string): () => void {
    const mine = ++this.#identity;
    this.#screen = key;
    this.isScreenOver = false;
    return () => {
      if (this.#identity !== mine) return;
      this.#identity++;
      this.#screen = "";
      this.isScreenOver = false;
    };
  }

  tryScreenAgain(): void {
    this.isScreenOver = false;
  }

  get tenant(): string {
    return this.#kept.tenant?.title ?? "";
  }

  /** Somebody is let into a tenant. */
  get isIn(): boolean {
    return this.#kept.own !== undefined;
  }

  /** Of whose customer somebody is; empty: they administer the tenant. */
  get customer(): string {
    const said = this.#screen ? {} : claims(this.#kept.own?.token ?? "");
    return said.scopes?.includes("CUSTOMER_USER") ? (said.customerId ?? "") : "";
  }

  /** Why somebody changes nothing of the tenant, if so. */
  get why(): string | undefined {
    return this.customer ? "Only administrators of the tenant do that" : undefined;
  }

  get mayChoose(): boolean {
    return this.#kept.admin !== undefined;
  }

  /** When a page of the platform is looked at. */
  async check(): Promise<void> {
    if (this.#kept.own) this.phase = "ready";
    else if (this.#kept.admin) await this.choose();
    else this.phase = (await isThere()) ? "login" : "off";
  }

  /** Of the console, or of a user of the platform; says whether the platform knows them. */
  async logIn(username: string, password: string): Promise<void> {
    const tokens = await plain<Tokens>("POST", "/api/auth/login", { body: { username, password } });
    const user = await as<PlatformUser>(tokens, "GET", "/api/auth/user");
    this.#keep(user.authority === "SYS_ADMIN" ? { admin: tokens } : { own: tokens });
    this.phase = "checking";
  }

  /** The only tenant, or the one that was looked at last; otherwise the person chooses. */
  async choose(isAsked = false): Promise<void> {
    const page = await this.#asAdmin<Page<Tenant>>("GET", "/api/tenants", { query: { pageSize: 100, page: 0, sortProperty: "title" } });
    this.tenants = page.data;
    const last = localStorage.getItem(LAST_TENANT);
    const found = page.data.length === 1 ? page.data[0] : page.data.find((one) => one.id.id === last);
    if (found && !isAsked) await this.enter(found);
    else this.phase = "choose";
  }

  async create(title: string): Promise<void> {
    await this.enter(await this.#asAdmin<Tenant>("POST", "/api/tenant", { body: { title } }));
  }

  async enter(tenant: Tenant): Promise<void> {
    await this.#leaveTenant();
    void this.#tidy(tenant.id.id);
    const email = `${USER_PREFIX}${session.user.replace(/[^A-Za-z0-9_-]/g, "_")}.${random()}${USER_DOMAIN}`;
    const body = { email, firstName: session.user, lastName: "(console)", authority: "TENANT_ADMIN", tenantId: tenant.id };
    const user = await this.#asAdmin<PlatformUser>("POST", "/api/user", { body });
    const link = await this.#asAdmin<string>("GET", `/api/user/${user.id.id}/activationLink`);
    const own = await plain<Tokens>("POST", "/api/noauth/activate", { body: { activateToken: new URL(link).searchParams.get("activateToken"), password: random() } });
    this.#keep({ ...this.#kept, own, user: user.id.id, tenant: { id: tenant.id.id, title: tenant.title } });
    localStorage.setItem(LAST_TENANT, tenant.id.id);
    this.phase = "ready";
  }

  /** With the login of the console. */
  async end(): Promise<void> {
    await this.#leaveTenant().catch(() => undefined);
    this.forget();
  }

  /** A token that holds for a while yet. */
  async token(): Promise<string> {
    if (this.#screen) return this.#screen;
    const own = this.#kept.own;
    if (!own) throw new Refused(401, { detail: "Nobody is logged in to the device platform." });
    if (expiry(own.token) > Date.now() + EARLY_MS) return own.token;
    this.#renewed ??= plain<Tokens>("POST", "/api/auth/token", { body: { refreshToken: own.refreshToken } }).finally(() => { this.#renewed = undefined; });
    try {
      const fresh = await this.#renewed;
      this.#keep({ ...this.#kept, own: fresh });
      return fresh.token;
    } catch (error) {
      if (error instanceof Refused && error.status === 401) this.lost();
      throw error;
    }
  }

  /** The user was deleted, or the server has other keys now: the gate begins anew. */
  lost(): void {
    if (this.#screen) {
      this.isScreenOver = true;
      return;
    }
    const { own: _, user: __, ...rest } = this.#kept;
    this.#keep(rest);
    this.phase = "checking";
  }

  async #asAdmin<T>(method: string, path: string, options?: RequestOptions): Promise<T> {
    let tokens = this.#kept.admin;
    if (!tokens) throw new Refused(401, { detail: "Nobody is logged in to the device platform." });
    if (expiry(tokens.token) < Date.now() + EARLY_MS) {
      tokens = await plain<Tokens>("POST", "/api/auth/token", { body: { refreshToken: tokens.refreshToken } });
      this.#keep({ ...this.#kept, admin: tokens });
    }
    return as<T>(tokens, method, path, options, () => { this.forget(); this.phase = "login"; });
  }

  async #leaveTenant(): Promise<void> {
    const { user, own: _, tenant: __, ...rest } = this.#kept;
    if (!user) return;
    this.#keep({ ...rest });
    await this.#asAdmin("DELETE", `/api/user/${user}`).catch(() => undefined);
  }

  /** Users of logins that never ended. */
  async #tidy(tenant: string): Promise<void> {
    const page = await this.#asAdmin<Page<PlatformUser>>("GET", `/api/tenant/${tenant}/users`, { query: { pageSize: 100, page: 0, textSearch: USER_PREFIX } });
    const old = page.data.filter((user) => isOfConsole(user.email) && user.createdTime < Date.now() - USER_LIFE_MS);
    for (const user of old) await this.#asAdmin("DELETE", `/api/user/${user.id.id}`);
  }

  #keep(kept: Kept): void {
    if (kept.user !== this.#kept.user || !kept.own !== !this.#kept.own) this.#identity++;
    this.#kept = kept;
    sessionStorage.setItem(KEY, JSON.stringify(kept));
  }

  /** Nobody is logged in. */
  forget(): void {
    this.#identity++;
    this.#kept = {};
    sessionStorage.removeItem(KEY);
    this.phase = "checking";
  }
}

const plain = <T>(method: string, path: string, options?: RequestOptions): Promise<T> => requestAs<T>({ headers: {}, ended: () => undefined }, method, path, options);

const as = <T>(tokens: Tokens, method: string, path: string, options?: RequestOptions, ended: () => void = () => undefined): Promise<T> =>
  requestAs<T>({ headers: { "X-Authorization": `Bearer ${tokens.token}` }, ended }, method, path, options);

async function isThere(): Promise<boolean> {
  try {
    await plain("GET", "/api/noauth/userPasswordPolicy");
    return true;
  } catch (error) {
    if (error instanceof Refused && error.status === 404) return false;
    throw error;
  }
}

interface Claims { exp?: number; scopes?: string[]; customerId?: string }

/** What a token says itself. */
function claims(token: string): Claims {
  try {
    return JSON.parse(atob((token.split(".")[1] ?? "").replaceAll("-", "+").replaceAll("_", "/"))) as Claims;
  } catch {
    return {};
  }
}

/** In milliseconds since 1970. */
const expiry = (token: string): number => (claims(token).exp ?? 0) * 1000;

/** A user that was made for a login. */
export const isOfConsole = (email: string): boolean => email.startsWith(USER_PREFIX) && email.endsWith(USER_DOMAIN);

/** A text that may name such users, with the names of those who had logged in to the console. */
export const readable = (text: string): string => text.replace(/console-([A-Za-z0-9_-]+)\.[0-9a-f]{20}@tidewire\.invalid/g, "$1 (console)");

export function random(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(10)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function load(): Kept {
  try {
    return JSON.parse(sessionStorage.getItem(KEY) ?? "{}") as Kept;
  } catch {
    return {};
  }
}

export const tenancy = new Tenancy();
