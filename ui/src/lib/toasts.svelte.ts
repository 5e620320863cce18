// Short notices about completed actions and errors. An open dialog makes the page inert, so errors then appear in the
// dialog.

import { RequestError } from "../api/request";

export interface Toast {
  id: number;
  text: string;
  kind: "good" | "bad";
}

const SHOWN_MAX = 4;
const SHOWN_MS = { good: 4_000, bad: 10_000 };

/** Shows errors while it is the top dialog. */
export interface OpenDialog {
  problem: string;
}

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
    // Conflicts stay visible until closed: the user reads them while resolving them.
    const isConflict = error instanceof RequestError && error.status === 409;
    this.#show(text, "bad", isConflict ? Infinity : SHOWN_MS.bad);
  }

  close(id: number): void {
    this.all = this.all.filter((toast) => toast.id !== id);
  }

  /** Clears the previous error before another attempt. */
  again(): void {
    const dialog = this.dialogs.at(-1);
    if (dialog) dialog.problem = "";
  }

  /** Registers an open dialog until the returned function is called. */
  open(dialog: OpenDialog): () => void {
    this.dialogs.push(dialog);
    return () => {
      this.dialogs = this.dialogs.filter((one) => one !== dialog);
    };
  }

  /** Shows a notice for `ms` milliseconds, or until it is closed. */
  #show(text: string, kind: Toast["kind"], ms: number = SHOWN_MS[kind]): void {
    const id = this.#next++;
    this.all = [...this.all.slice(1 - SHOWN_MAX), { id, text, kind }];
    if (Number.isFinite(ms)) setTimeout(() => this.close(id), ms);
  }
}

export const toasts = new Toasts();

/** Runs an action and reports its success or error. Returns whether it succeeded. */
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
