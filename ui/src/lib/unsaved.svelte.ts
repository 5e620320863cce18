// What was typed on a page and is not saved: whoever leaves the page, or the console, is asked first.
import { confirm } from "./confirm.svelte";

class Unsaved {
  #pages = new Set<() => boolean>();

  constructor() {
    // The browser asks in its own words.
    addEventListener("beforeunload", (event) => { if (this.is) event.preventDefault(); });
  }

  get is(): boolean {
    return [...this.#pages].some((isChanged) => isChanged());
  }

  add(isChanged: () => boolean): () => void {
    this.#pages.add(isChanged);
    return () => this.#pages.delete(isChanged);
  }

  /** True at once where nothing was typed. */
  async mayLeave(): Promise<boolean> {
    return !this.is || confirm.ask({ title: "Leave without saving?", text: "What you have changed on this page is not saved, and is gone then.", action: "Leave" });
  }

  /** Before a button throws it away. */
  async mayUndo(): Promise<boolean> {
    return !this.is || confirm.ask({ title: "Undo all?", text: "What you have changed and not saved is gone then.", action: "Undo all" });
  }
}

export const unsaved = new Unsaved();

/** To be called while a component is made; it ends with it. */
export function guard(isChanged: () => boolean): void {
  $effect(() => unsaved.add(isChanged));
}
