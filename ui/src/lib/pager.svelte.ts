// A list that comes page by page from the server: forward by its cursor, back by those that were kept.

export interface Paged<T> { items: T[]; cursor?: string | null }

export class Pager {
  /** Cursors of the pages up to this one; the first has none. */
  #before = $state<(string | undefined)[]>([undefined]);

  get cursor(): string | undefined {
    return this.#before.at(-1);
  }

  get number(): number {
    return this.#before.length;
  }

  next(cursor: string | null | undefined): void {
    if (cursor) this.#before = [...this.#before, cursor];
  }

  back(): void {
    if (this.#before.length > 1) this.#before = this.#before.slice(0, -1);
  }

  /** When what is asked for changes. */
  first(): void {
    this.#before = [undefined];
  }
}
