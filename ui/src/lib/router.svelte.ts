// The current page. Its address stands behind `#`, so that the server does not need to know the pages.
import { unsaved } from "./unsaved.svelte";

/** Stored with each entry of the browser's history: the number of entries before it. */
interface HistoryState {
  at: number;
}

class Router {
  #hash = $state(location.hash);
  /**
   * The target of a navigation by the console itself, after saving or deleting. Such a navigation does not ask about
   * unsaved changes.
   */
  #ownTarget = "";
  #at = (history.state as HistoryState | null)?.at ?? 0;
  #isAsking = false;

  constructor() {
    history.replaceState({ at: this.#at } satisfies HistoryState, "");
    addEventListener("hashchange", () => void this.#follow(location.hash));
  }

  async #follow(hash: string): Promise<void> {
    const isOwn = hash === this.#ownTarget;
    this.#ownTarget = "";
    const before = this.#at;
    // An entry without a number is new and follows the current one.
    this.#at = (history.state as HistoryState | null)?.at ?? before + 1;
    history.replaceState({ at: this.#at } satisfies HistoryState, "");
    if (!isOwn && path(hash) !== path(this.#hash) && unsaved.is) {
      // The address has changed already. Until the user answers, show the address of the current page at its own place
      // in the history.
      const way = this.#at - before;
      history.go(-way);
      if (this.#isAsking) return;
      this.#isAsking = true;
      const confirmLeave = await unsaved.confirmLeave();
      this.#isAsking = false;
      if (!confirmLeave) return;
      this.#ownTarget = hash;
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
    // Without a change there is no hashchange event.
    if (location.hash !== before) this.#ownTarget = location.hash;
  }

  /** Shows a page in place of the current history entry. */
  replace(target: string): void {
    history.replaceState({ at: this.#at } satisfies HistoryState, "", target);
    this.#hash = location.hash;
  }

  /** Writes parameters to the address of the current page without a new history entry. Empty values are removed. */
  setParameters(named: Record<string, string>): void {
    const query = this.query;
    for (const [name, value] of Object.entries(named)) {
      if (value) query.set(name, value);
      else query.delete(name);
    }
    const text = query.toString();
    const hash = `#/${path(this.#hash)}${text ? `?${text}` : ""}`;
    if (hash === this.#hash) return;
    history.replaceState({ at: this.#at } satisfies HistoryState, "", hash);
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

/** Returns the address of a page. */
export const to = (...segments: string[]): string => `#/${segments.map(encodeURIComponent).join("/")}`;

/** In place of a name, this segment opens the form for a new object. */
export const NEW = "new";
const ESCAPED_NEW = ".new";

/** Returns the address of an object with a user-defined name, such as a rule. These names cannot start with a dot. */
export const toNamed = (path: string, name: string): string => to(path, name === NEW ? ESCAPED_NEW : name);

/** Returns the name for a segment made by `toNamed`. */
export const nameAt = (segment: string): string => (segment === ESCAPED_NEW ? NEW : segment);

export const router = new Router();
