// Selected rows of a list, and bulk actions on them: a few requests at a time, with progress and a stop button.
import { SvelteSet } from "svelte/reactivity";
import { toasts } from "./toasts.svelte";

/** Requests at the same time. */
const WORKERS = 4;

export class Selection<T> {
  #ids = new SvelteSet<string>();
  #rows: () => T[];
  #idOf: (row: T) => string;
  /** The running action in words, such as "Acknowledging". Empty if none runs. */
  doing = $state("");
  done = $state(0);
  total = $state(0);
  #isStopped = false;

  /** Only visible rows count: rows on other pages are not changed. */
  constructor(rows: () => T[], idOf: (row: T) => string) {
    this.#rows = rows;
    this.#idOf = idOf;
  }

  get rows(): T[] {
    return this.#rows().filter((row) => this.has(row));
  }

  get isAll(): boolean {
    return this.rows.length > 0 && this.rows.length === this.#rows().length;
  }

  has(row: T): boolean {
    return this.#ids.has(this.#idOf(row));
  }

  set(row: T, isWanted: boolean): void {
    if (isWanted) this.#ids.add(this.#idOf(row));
    else this.#ids.delete(this.#idOf(row));
  }

  setAll(isWanted: boolean): void {
    this.clear();
    if (isWanted) for (const row of this.#rows()) this.set(row, true);
  }

  clear(): void {
    this.#ids.clear();
  }

  stop(): void {
    this.#isStopped = true;
  }

  /** Runs an action on all items and reports the count. Failed items stay selected, with the first error. */
  async run(
    items: T[],
    { doing, done, work }: { doing: string; done: (count: number) => string; work: (item: T) => Promise<unknown> },
  ): Promise<void> {
    [this.doing, this.done, this.total, this.#isStopped] = [doing, 0, items.length, false];
    const failed: unknown[] = [];
    let [next, count] = [0, 0];
    const worker = async () => {
      for (let item = items[next++]; item !== undefined && !this.#isStopped; item = items[next++]) {
        try {
          await work(item);
          count += 1;
          this.set(item, false);
        } catch (error) {
          failed.push(error);
        }
        this.done += 1;
      }
    };
    await Promise.all(Array.from({ length: WORKERS }, worker));
    this.doing = "";
    if (count) toasts.good(done(count));
    const first = failed[0];
    if (first !== undefined)
      toasts.bad(
        new Error(
          `${failed.length} of ${items.length} failed: ${first instanceof Error ? first.message : String(first)}`,
        ),
      );
    else if (this.#isStopped)
      toasts.bad(new Error(`Stopped: ${items.length - count} of ${items.length} were not changed.`));
  }
}
