// The login of this browser tab. It uses a token in session storage and no cookie, so that other pages cannot send
// requests with it.
import type { LoginAnswer, OwnLogin } from "../api/generated";
import { partsOf } from "./roles";

const KEY = "tidewire-login";
const LAST_KEY = "tidewire-user";
/** Begins the names of users of the identity provider. */
const PROVIDER_PREFIX = "oidc:";
export const ENDED = "Your login has ended. Please log in again.";

class Session {
  #login = $state.raw<LoginAnswer | undefined>(stored());
  /** Message on the login page. */
  notice = $state("");
  /** The server has rejected the token. The pages stay hidden with their input, for the same user to log in again. */
  hasEnded = $state(false);

  get token(): string | undefined {
    return this.#login?.token;
  }

  get user(): string {
    return this.#login?.user ?? "";
  }

  /** The user logs in with a password of this server. */
  get hasPassword(): boolean {
    return !this.user.startsWith(PROVIDER_PREFIX);
  }

  /** The last user of this tab with a password, for the login form. */
  get lastUser(): string {
    return sessionStorage.getItem(LAST_KEY) ?? "";
  }

  get role(): LoginAnswer["role"] {
    return this.#login?.role ?? "viewer";
  }

  /** The namespace to which the role is limited. Empty: the whole server. */
  get namespace(): string {
    return partsOf(this.role).namespace;
  }

  /** An administrator of the whole server. */
  get isAdmin(): boolean {
    return this.role === "admin";
  }

  /** May change subscriptions of the clients that the role reaches. */
  get isAdminOfClients(): boolean {
    return partsOf(this.role).name === "admin";
  }

  /** May run the node, or the clients of the namespace: an operator or an administrator. */
  get isOperator(): boolean {
    return partsOf(this.role).name !== "viewer";
  }

  get expiresAt(): number {
    return this.#login?.expires_at_unix_ms ?? 0;
  }

  get hasFirstPassword(): boolean {
    return this.#login?.has_first_password ?? false;
  }

  /** Another person set the password. The server allows nothing but changing it. */
  get mustChangePassword(): boolean {
    return this.#login?.must_change_password ?? false;
  }

  /** The server requires a second factor. It allows nothing but setting it up. */
  get mustSetUpTotp(): boolean {
    return this.#login?.must_set_up_totp ?? false;
  }

  begin(login: LoginAnswer): void {
    this.#login = login;
    this.hasEnded = false;
    this.notice = "";
    sessionStorage.setItem(KEY, JSON.stringify(login));
    if (this.hasPassword) sessionStorage.setItem(LAST_KEY, login.user);
  }

  /** Takes over the role that the server reports, after an administrator has changed it. */
  update({ user, role }: OwnLogin): void {
    if (!this.#login || this.#login.user !== user || this.#login.role === role) return;
    this.#login = { ...this.#login, role };
    sessionStorage.setItem(KEY, JSON.stringify(this.#login));
  }

  /** The user has set up the second factor. */
  completeTotp(): void {
    if (!this.#login) return;
    this.#login = { ...this.#login, must_set_up_totp: false };
    sessionStorage.setItem(KEY, JSON.stringify(this.#login));
  }

  end(): void {
    this.#login = undefined;
    this.hasEnded = false;
    sessionStorage.removeItem(KEY);
  }

  ended(): void {
    this.hasEnded = true;
    sessionStorage.removeItem(KEY);
  }
}

function stored(): LoginAnswer | undefined {
  try {
    const login = JSON.parse(sessionStorage.getItem(KEY) ?? "null") as LoginAnswer | null;
    return login && login.expires_at_unix_ms > Date.now() ? login : undefined;
  } catch {
    return undefined;
  }
}

export const session = new Session();
