// What is said in passing: that something was done, or why it was not. While a dialog is open the page behind it is out of reach: it is said in the dialog then.

import { Refused } from "../api/request";

export interface Toast { id: number; text: string; kind: "good" | "bad" }

const SHOWN_MAX = 4;
const SHOWN_MS = { good: 4_000, bad: 10_000 };

/** Says what goes wrong while it is the top one. */
export interface OpenDialog { problem: string }

class Toasts {
  all = $state<Toast[]>([]);
  /** Open dialogs, the top one last. */
  dialogs = $state<OpenDialog[]>([]);
  #next = 0;

  good(text: string): void {
    this.#show(text, "good");
  }

  bad(error: unknown): void {
    const text = error instanceof Error ? error.message : String(error);
    const dialog = this.dialogs.at(-1);
    if (dialog) {
      dialog.problem = text;
      return;
    }
    // What somebody else has changed, or what is in the way, is read again while it is mended.
    const isConflict = error instanceof Refused && error.status === 409;
    this.#show(text, "bad", isConflict ? Infinity : SHOWN_MS.bad);
  }

  close(id: number): void {
    this.all = this.all.filter((toast) => toast.id !== id);
  }

  /** What went wrong before is tried once more. */
  again(): void {
    const dialog = this.dialogs.at(-1);
    if (dialog) dialog.problem = "";
  }

  /** Until it is closed by what this returns. */
  open(dialog: OpenDialog): () => void {
    this.dialogs.push(dialog);
    return () => { this.dialogs = this.dialogs.filter((one) => one !== dialog); };
  }

  /** For so long, or until it is closed. */
  #show(text: string, kind: Toast["kind"], ms: number = SHOWN_MS[kind]): void {
    const id = this.#next++;
    this.all = [...this.all.slice(1 - SHOWN_MAX), { id, text, kind }];
    if (Number.isFinite(ms)) setTimeout(() => this.close(id), ms);
  }
}

export const toasts = new Toasts();

/** Does it, says that it was done or why not; true if it was. */
export async function attempt(done: string, work: () => Promise<unknown>): Promise<boolean> {
  toasts.again();
  try {
    await work();
    if (done) toasts.good(done);
    return true;
  } catch (error) {
    toasts.bad(error);
    return false;
  }
}
