// Where in the console we are: the part of the address behind `#`, so that the server need not know.
import { unsaved } from "./unsaved.svelte";

class Router {
  #hash = $state(location.hash);
  /** Where the console itself leads, after something was saved or deleted: nobody is asked then. */
  #own = "";

  constructor() {
    addEventListener("hashchange", () => void this.#follow(location.hash));
  }

  async #follow(hash: string): Promise<void> {
    const isOwn = hash === this.#own;
    this.#own = "";
    if (!isOwn && path(hash) !== path(this.#hash) && unsaved.is) {
      // The address has changed by now; it is that of the page in sight until one has answered.
      history.replaceState(null, "", this.#hash || "#/");
      if (!await unsaved.mayLeave()) return;
      history.replaceState(null, "", hash);
    }
    this.#hash = hash;
  }

  /** Decoded segments: `#/clients/a%2Fb` is `["clients", "a/b"]`. */
  get segments(): string[] {
    return path(this.#hash).split("/").filter(Boolean).map(decode);
  }

  get query(): URLSearchParams {
    return new URLSearchParams(this.#hash.split("?")[1] ?? "");
  }

  go(target: string): void {
    const before = location.hash;
    location.hash = target;
    // Without a change nobody hears of it.
    if (location.hash !== before) this.#own = location.hash;
  }
}

const path = (hash: string): string => hash.replace(/^#\/?/, "").split("?")[0] ?? "";

function decode(segment: string): string {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment;
  }
}

/** The address of a page. */
export const to = (...segments: string[]): string => `#/${segments.map(encodeURIComponent).join("/")}`;

export const router = new Router();
