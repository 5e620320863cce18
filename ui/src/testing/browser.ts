// The parts of a browser that modules of the console use when they are imported.

class MemoryStorage implements Storage {
  #items = new Map<string, string>();

  get length(): number {
    return this.#items.size;
  }
  clear(): void {
    this.#items.clear();
  }
  getItem(key: string): string | null {
    return this.#items.get(key) ?? null;
  }
  key(index: number): string | null {
    return [...this.#items.keys()][index] ?? null;
  }
  removeItem(key: string): void {
    this.#items.delete(key);
  }
  setItem(key: string, value: string): void {
    this.#items.set(key, value);
  }
}

const address = new URL("http://broker.example:18083/");

/** Only what the router needs: one entry without a history before it. */
const entry = {
  state: null as unknown,
  replaceState(state: unknown, _unused: string, target?: string): void {
    entry.state = state;
    if (target !== undefined) address.hash = target;
  },
};

Object.assign(globalThis, {
  location: address,
  history: entry,
  localStorage: new MemoryStorage(),
  sessionStorage: new MemoryStorage(),
  addEventListener: () => undefined,
});

export {};
