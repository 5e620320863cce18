// Unsaved input of a page. Leaving the page or the console asks first.
import { confirm } from "./confirm.svelte";

class Unsaved {
  #pages = new Set<() => boolean>();

  constructor() {
    // The browser shows its own question.
    addEventListener("beforeunload", (event) => {
      if (this.is) event.preventDefault();
    });
  }

  get is(): boolean {
    return [...this.#pages].some((isChanged) => isChanged());
  }

  add(isChanged: () => boolean): () => void {
    this.#pages.add(isChanged);
    return () => this.#pages.delete(isChanged);
  }

  /** Returns true at once if nothing was typed. */
  async confirmLeave(): Promise<boolean> {
    return (
      !this.is ||
      confirm.ask({ title: "Leave without saving?", text: "Your changes on this page will be lost.", action: "Leave" })
    );
  }

  /** Asks before a button discards the changes. */
  async confirmDiscard(): Promise<boolean> {
    return (
      !this.is ||
      confirm.ask({ title: "Discard changes?", text: "Your unsaved changes will be lost.", action: "Discard changes" })
    );
  }
}

export const unsaved = new Unsaved();

/** Call it while a component is created. The guard ends with the component. */
export function guard(isChanged: () => boolean): void {
  $effect(() => unsaved.add(isChanged));
}
