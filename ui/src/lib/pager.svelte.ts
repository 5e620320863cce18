// Pages of a list. The server returns a cursor for the next page. Earlier cursors are remembered for going back.

export interface Paged<T> {
  items: T[];
  cursor?: string | null;
}

export class Pager {
  /** Cursors of the pages up to the current one. The first page has none. */
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

  /** Call it when the query changes. */
  first(): void {
    this.#before = [undefined];
  }
}
