// Where in the console we are: the part of the address behind `#`, so that the server need not know.
import { unsaved } from "./unsaved.svelte";

/** Kept with each entry of the browser's history: how many are before it. */
interface Kept { at: number }

class Router {
  #hash = $state(location.hash);
  /** Where the console itself leads, after something was saved or deleted: nobody is asked then. */
  #own = "";
  #at = (history.state as Kept | null)?.at ?? 0;
  #isAsking = false;

  constructor() {
    history.replaceState({ at: this.#at } satisfies Kept, "");
    addEventListener("hashchange", () => void this.#follow(location.hash));
  }

  async #follow(hash: string): Promise<void> {
    const isOwn = hash === this.#own;
    this.#own = "";
    const before = this.#at;
    // One without it is new, and comes after the one that was in sight.
    this.#at = (history.state as Kept | null)?.at ?? before + 1;
    history.replaceState({ at: this.#at } satisfies Kept, "");
    if (!isOwn && path(hash) !== path(this.#hash) && unsaved.is) {
      // The address has changed by now. Until one has answered it is that of the page in sight, in its own place of the history.
      const way = this.#at - before;
      history.go(-way);
      if (this.#isAsking) return;
      this.#isAsking = true;
      const mayLeave = await unsaved.mayLeave();
      this.#isAsking = false;
      if (!mayLeave) return;
      this.#own = hash;
      history.go(way);
      return;
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

  /** In the address of the page in sight, in the same place of the history; what is empty is taken out. */
  note(named: Record<string, string>): void {
    const query = this.query;
    for (const [name, value] of Object.entries(named)) {
      if (value) query.set(name, value);
      else query.delete(name);
    }
    const text = query.toString();
    const hash = `#/${path(this.#hash)}${text ? `?${text}` : ""}`;
    if (hash === this.#hash) return;
    history.replaceState({ at: this.#at } satisfies Kept, "", hash);
    this.#hash = hash;
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

/** In the place of a name it is the form for another one. */
export const NEW = "new";
const CALLED_NEW = ".new";

/** The address of the page of a rule, a connector and what else has a name that somebody gave it. None of these begins with a dot. */
export const toNamed = (path: string, name: string): string => to(path, name === NEW ? CALLED_NEW : name);

/** The name that such an address is of. */
export const nameAt = (segment: string): string => (segment === CALLED_NEW ? NEW : segment);

export const router = new Router();
