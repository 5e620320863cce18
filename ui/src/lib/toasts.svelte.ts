// What is said in passing: that something was done, or why it was not.

export interface Toast { id: number; text: string; kind: "good" | "bad" }

const SHOWN_MAX = 4;
const SHOWN_MS = { good: 4_000, bad: 10_000 };

class Toasts {
  all = $state<Toast[]>([]);
  #next = 0;

  good(text: string): void {
    this.#show(text, "good");
  }

  bad(error: unknown): void {
    this.#show(error instanceof Error ? error.message : String(error), "bad");
  }

  close(id: number): void {
    this.all = this.all.filter((toast) => toast.id !== id);
  }

  #show(text: string, kind: Toast["kind"]): void {
    const id = this.#next++;
    this.all = [...this.all.slice(1 - SHOWN_MAX), { id, text, kind }];
    setTimeout(() => this.close(id), SHOWN_MS[kind]);
  }
}

export const toasts = new Toasts();

/** Does it, says that it was done or why not; true if it was. */
export async function attempt(done: string, work: () => Promise<unknown>): Promise<boolean> {
  try {
    await work();
    if (done) toasts.good(done);
    return true;
  } catch (error) {
    toasts.bad(error);
    return false;
  }
}
