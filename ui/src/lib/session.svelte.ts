// Who is logged in, for as long as the browser's tab lives. A token, not a cookie: no other page can make the browser send
// it, so there is nothing to forge.
import type { LoginAnswer } from "../api/generated";

const KEY = "tidewire-login";
const LAST_KEY = "tidewire-user";
export const ENDED = "Your login has ended. Please log in again.";

class Session {
  #login = $state.raw<LoginAnswer | undefined>(kept());
  /** Said on the login page. */
  notice = $state("");
  /** The server knows it no more. Its pages are kept out of sight, with what was typed in them, for the same user to come back to. */
  hasEnded = $state(false);

  get token(): string | undefined {
    return this.#login?.token;
  }

  get user(): string {
    return this.#login?.user ?? "";
  }

  /** Who was logged in last in this tab, for the login form. */
  get lastUser(): string {
    return sessionStorage.getItem(LAST_KEY) ?? "";
  }

  get isAdmin(): boolean {
    return this.#login?.role === "admin";
  }

  get expiresAt(): number {
    return this.#login?.expires_at_unix_ms ?? 0;
  }

  get hasFirstPassword(): boolean {
    return this.#login?.has_first_password ?? false;
  }

  /** Somebody else has made the password: the server allows nothing but changing it. */
  get mustChangePassword(): boolean {
    return this.#login?.must_change_password ?? false;
  }

  begin(login: LoginAnswer): void {
    this.#login = login;
    this.hasEnded = false;
    this.notice = "";
    sessionStorage.setItem(KEY, JSON.stringify(login));
    sessionStorage.setItem(LAST_KEY, login.user);
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

function kept(): LoginAnswer | undefined {
  try {
    const login = JSON.parse(sessionStorage.getItem(KEY) ?? "null") as LoginAnswer | null;
    return login && login.expires_at_unix_ms > Date.now() ? login : undefined;
  } catch {
    return undefined;
  }
}

export const session = new Session();
