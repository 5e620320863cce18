// Login with an identity provider. The server performs it; the console begins it and collects its token.
import { to } from "./router.svelte";

/** Address that sends the browser to the identity provider. */
export const START = "/api/v1/oidc/login";
/** Page to which the server sends the browser at the end. */
export const PAGE = "single-sign-on";
const KEY = "tidewire-page";

const FAILURES: Record<string, string> = {
  unavailable:
    "The identity provider does not answer as expected. Log in with a user of this server, or try again later. " +
    "The server log has the reason.",
  refused: "The identity provider refused the login.",
  invalid: "The answer of the identity provider is not valid. The server log has the reason.",
  "no-role": "Your account has no role on this server. Ask an administrator.",
  expired: "The login took too long, or began in another tab. Try again.",
  busy: "Too many users are logging in. Try again.",
  "foreign-page": "Another website tried to log you in. To log in, use the button below.",
};

/** Returns the text for a name of a failure in the address. */
export const failure = (name: string): string =>
  (Object.hasOwn(FAILURES, name) && FAILURES[name]) || "The login failed.";

/** Stores the current page, to show it after the login. */
export function rememberPage(): void {
  if (!location.hash.startsWith(to(PAGE))) sessionStorage.setItem(KEY, location.hash);
}

/** Returns the stored page once, or the home page. */
export function rememberedPage(): string {
  const page = sessionStorage.getItem(KEY);
  sessionStorage.removeItem(KEY);
  return page?.startsWith("#/") ? page : to("home");
}
