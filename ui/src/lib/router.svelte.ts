// Where in the console we are: the part of the address behind `#`, so that the server need not know.

class Router {
  #hash = $state(location.hash);

  constructor() {
    addEventListener("hashchange", () => { this.#hash = location.hash; });
  }

  /** Decoded segments: `#/clients/a%2Fb` is `["clients", "a/b"]`. */
  get segments(): string[] {
    const [path = ""] = this.#hash.replace(/^#\/?/, "").split("?");
    return path.split("/").filter(Boolean).map(decode);
  }

  get query(): URLSearchParams {
    return new URLSearchParams(this.#hash.split("?")[1] ?? "");
  }

  go(target: string): void {
    location.hash = target;
  }
}

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
