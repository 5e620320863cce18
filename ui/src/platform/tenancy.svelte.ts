// The login to the device platform, which needs a user of a tenant. For an administrator of the node, the console
// creates a temporary user per login and deletes it at logout. Other users log in with their own account.
import { logInToPlatform } from "../api/generated";
import { RequestError, requestAs, type RequestOptions } from "../api/request";
import { session } from "../lib/session.svelte";
import type { Page, PlatformUser, Tenant } from "./model";

interface Tokens {
  token: string;
  refreshToken: string;
}
interface StoredLogin {
  admin?: Tokens;
  own?: Tokens;
  user?: string;
  tenant?: { id: string; title: string };
}
type Phase = "checking" | "off" | "login" | "choose" | "ready";

const KEY = "tidewire-devices";
const LAST_TENANT = "tidewire-tenant";
const USER_PREFIX = "console-";
const USER_DOMAIN = "@tidewire.invalid";
/** A refresh token is valid for seven days. Users of older logins can be deleted. */
const USER_LIFE_MS = 8 * 86_400_000;
const EARLY_MS = 60_000;

class Tenancy {
  #stored = $state.raw<StoredLogin>(load());
  phase = $state<Phase>("checking");
  tenants = $state.raw<Tenant[]>([]);
  #renewed: Promise<Tokens> | undefined;
  #adminRenewed: Promise<Tokens> | undefined;
  #entering: Promise<void> | undefined;
  /** The key of a wall screen. It reads one dashboard and its data. */
  #screen = $state("");
  #identity = 0;
  /** The key of the screen is no longer valid. */
  isScreenOver = $state(false);

  get isScreen(): boolean {
    return this.#screen !== "";
  }

  /** Changes with each login. A connection belongs to one identity. */
  get identity(): number {
    return this.#identity;
  }

  /** Uses a screen key. Returns a function that ends it, unless another screen has started. */
  useScreenKey(key: string): () => void {
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

  retryScreenKey(): void {
    this.isScreenOver = false;
  }

  get tenant(): string {
    return this.#stored.tenant?.title ?? "";
  }

  /** A user of a tenant is logged in. */
  get isLoggedIn(): boolean {
    return this.#stored.own !== undefined;
  }

  /** The customer of the user. Empty for a tenant administrator. */
  get customer(): string {
    const ownClaims = this.#screen ? {} : claims(this.#stored.own?.token ?? "");
    return ownClaims.scopes?.includes("CUSTOMER_USER") ? (ownClaims.customerId ?? "") : "";
  }

  /** Why the user cannot change the tenant, or undefined. */
  get readOnlyReason(): string | undefined {
    return this.customer ? "Requires a tenant administrator" : undefined;
  }

  get mayChoose(): boolean {
    return this.#stored.admin !== undefined;
  }

  /** Call it when a page of the platform is opened. */
  async check(): Promise<void> {
    if (this.#stored.own) this.phase = "ready";
    else if (this.#stored.admin) await this.choose();
    else if (!(await isThere())) this.phase = "off";
    else if (await this.#hasLoggedInAsAdministrator()) await this.choose();
    else this.phase = "login";
  }

  /** Uses the login of an administrator to the console. */
  logInAsAdministrator(): Promise<void> {
    // The login page and the first page of the platform may call this at the same time.
    this.#entering ??= logInToPlatform()
      .then((tokens) => {
        this.#store({ admin: tokens });
        this.phase = "checking";
      })
      .finally(() => {
        this.#entering = undefined;
      });
    return this.#entering;
  }

  /** The earlier login to the platform ends when the second factor is turned on or off. */
  async #hasLoggedInAsAdministrator(): Promise<boolean> {
    if (!session.isAdmin || !session.hasPassword) return false;
    try {
      await this.logInAsAdministrator();
      return true;
    } catch {
      return false;
    }
  }

  /** Logs in with a console login or a platform user. Fails if the platform does not know the user. */
  async logIn(username: string, password: string): Promise<void> {
    const tokens = await plain<Tokens>("POST", "/api/auth/login", { body: { username, password } });
    const user = await as<PlatformUser>(tokens, "GET", "/api/auth/user");
    this.#store(user.authority === "SYS_ADMIN" ? { admin: tokens } : { own: tokens });
    this.phase = "checking";
  }

  /** Selects the only tenant or the last one. Otherwise the user chooses. */
  async choose(isAsked = false): Promise<void> {
    const page = await this.#asAdmin<Page<Tenant>>("GET", "/api/tenants", {
      query: { pageSize: 100, page: 0, sortProperty: "title" },
    });
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
    void this.#deleteStaleUsers(tenant.id.id);
    const email = `${USER_PREFIX}${session.user.replace(/[^A-Za-z0-9_-]/g, "_")}.${random()}${USER_DOMAIN}`;
    const body = {
      email,
      firstName: session.user,
      lastName: "(console)",
      authority: "TENANT_ADMIN",
      tenantId: tenant.id,
    };
    const user = await this.#asAdmin<PlatformUser>("POST", "/api/user", { body });
    const link = await this.#asAdmin<string>("GET", `/api/user/${user.id.id}/activationLink`);
    const own = await plain<Tokens>("POST", "/api/noauth/activate", {
      body: { activateToken: new URL(link).searchParams.get("activateToken"), password: random() },
    });
    this.#store({ ...this.#stored, own, user: user.id.id, tenant: { id: tenant.id.id, title: tenant.title } });
    localStorage.setItem(LAST_TENANT, tenant.id.id);
    this.phase = "ready";
  }

  /** Ends together with the console's login. */
  async end(): Promise<void> {
    await this.#leaveTenant().catch(() => undefined);
    this.forget();
  }

  /** Returns an access token, renewed if it expires soon. */
  async token(): Promise<string> {
    if (this.#screen) return this.#screen;
    const own = this.#stored.own;
    if (!own) throw new RequestError(401, { detail: "You are not logged in to the device platform." });
    if (expiry(own.token) > Date.now() + EARLY_MS) return own.token;
    this.#renewed ??= renew(own).finally(() => {
      this.#renewed = undefined;
    });
    try {
      const fresh = await this.#renewed;
      this.#store({ ...this.#stored, own: fresh });
      return fresh.token;
    } catch (error) {
      if (error instanceof RequestError && error.status === 401) this.rejectToken();
      throw error;
    }
  }

  /** Handles a rejected token: the user was deleted, or the server has new keys. The login starts over. */
  rejectToken(): void {
    if (this.#screen) {
      this.isScreenOver = true;
      return;
    }
    const { own: _, user: __, ...rest } = this.#stored;
    this.#store(rest);
    this.phase = "checking";
  }

  async #asAdmin<T>(method: string, path: string, options?: RequestOptions): Promise<T> {
    let tokens = this.#stored.admin;
    if (!tokens) throw new RequestError(401, { detail: "You are not logged in to the device platform." });
    if (expiry(tokens.token) < Date.now() + EARLY_MS) {
      // A refresh token is valid once, so requests at the same time share one renewal.
      this.#adminRenewed ??= renew(tokens).finally(() => {
        this.#adminRenewed = undefined;
      });
      tokens = await this.#adminRenewed;
      this.#store({ ...this.#stored, admin: tokens });
    }
    return as<T>(tokens, method, path, options, () => {
      this.forget();
      this.phase = "login";
    });
  }

  async #leaveTenant(): Promise<void> {
    const { user, own: _, tenant: __, ...rest } = this.#stored;
    if (!user) return;
    this.#store({ ...rest });
    await this.#asAdmin("DELETE", `/api/user/${user}`).catch(() => undefined);
  }

  /** Deletes users of logins that never ended. */
  async #deleteStaleUsers(tenant: string): Promise<void> {
    const page = await this.#asAdmin<Page<PlatformUser>>("GET", `/api/tenant/${tenant}/users`, {
      query: { pageSize: 100, page: 0, textSearch: USER_PREFIX },
    });
    const old = page.data.filter((user) => isOfConsole(user.email) && user.createdTime < Date.now() - USER_LIFE_MS);
    for (const user of old) await this.#asAdmin("DELETE", `/api/user/${user.id.id}`);
  }

  #store(stored: StoredLogin): void {
    if (stored.user !== this.#stored.user || !stored.own !== !this.#stored.own) this.#identity++;
    this.#stored = stored;
    sessionStorage.setItem(KEY, JSON.stringify(stored));
  }

  /** Forgets the login. */
  forget(): void {
    this.#identity++;
    this.#stored = {};
    sessionStorage.removeItem(KEY);
    this.phase = "checking";
  }
}

const renew = (tokens: Tokens): Promise<Tokens> =>
  plain<Tokens>("POST", "/api/auth/token", { body: { refreshToken: tokens.refreshToken } });

const plain = <T>(method: string, path: string, options?: RequestOptions): Promise<T> =>
  requestAs<T>({ headers: {}, ended: () => undefined }, method, path, options);

const as = <T>(
  tokens: Tokens,
  method: string,
  path: string,
  options?: RequestOptions,
  ended: () => void = () => undefined,
): Promise<T> =>
  requestAs<T>({ headers: { "X-Authorization": `Bearer ${tokens.token}` }, ended }, method, path, options);

async function isThere(): Promise<boolean> {
  try {
    await plain("GET", "/api/noauth/userPasswordPolicy");
    return true;
  } catch (error) {
    if (error instanceof RequestError && error.status === 404) return false;
    throw error;
  }
}

interface Claims {
  exp?: number;
  scopes?: string[];
  customerId?: string;
}

/** Decodes the claims of a token. */
function claims(token: string): Claims {
  try {
    return JSON.parse(atob((token.split(".")[1] ?? "").replaceAll("-", "+").replaceAll("_", "/"))) as Claims;
  } catch {
    return {};
  }
}

/** In milliseconds since 1970. */
const expiry = (token: string): number => (claims(token).exp ?? 0) * 1000;

/** Whether the console created this user for a login. */
export const isOfConsole = (email: string): boolean => email.startsWith(USER_PREFIX) && email.endsWith(USER_DOMAIN);

/** Replaces the names of such users in a text with the names of their console users. */
export const readable = (text: string): string =>
  text.replace(/console-([A-Za-z0-9_-]+)\.[0-9a-f]{20}@tidewire\.invalid/g, "$1 (console)");

export function random(): string {
  return Array.from(crypto.getRandomValues(new Uint8Array(10)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function load(): StoredLogin {
  try {
    return JSON.parse(sessionStorage.getItem(KEY) ?? "{}") as StoredLogin;
  } catch {
    return {};
  }
}

export const tenancy = new Tenancy();
